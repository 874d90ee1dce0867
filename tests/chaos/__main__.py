"""Run chaos and judge it: ``make chaos``, or ``python -m tests.chaos``.

Three daemons work for five minutes, with one NATS server, while faults of all kinds happen to them, to NATS, to the
provider and to parents; then every run is judged from outside. It exits with 0 where every promise held. The logs of
all processes and what was judged (histories, calls, faults) stay in the folder it names if one did not.

- ``CHAOS_SEED`` fixes the schedule of faults and the work; without it one is chosen and printed.
- ``CHAOS_MINUTES`` says how long faults go on. On two busy processors 100 to 360 runs a minute were seen.
- ``CHAOS_SERVERS`` is 1 or 3.
- ``CHAOS_FAULTS`` names the kinds of faults, with commas, where not all are wanted.
- ``CHAOS_PRODUCT`` is the folder of the programs under test (``.venv/bin`` of another clone judges another commit).

``python -m tests.chaos soak`` puts ``CHAOS_FORKS`` short forks (20,000) through two daemons without faults. Memory,
descriptors, threads, files, subscriptions and consumers must stay as they were after the first 2,000.

Full disks need root, and clocks that jump need a C compiler; without them these faults are left out.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from tests.chaos.checks import (
    Judge,
    Sampler,
    consumers_left,
    leftovers,
    read_histories,
    read_stream,
    spread,
    subscriptions,
    use_of,
)
from tests.chaos.faults import KINDS, Faults, schedule
from tests.chaos.work import Work
from tests.chaos.world import LEASE_S, World

__all__ = ["Outcome", "chaos", "soak"]

_DAEMONS = 3
_SETTLE_S = 180.0
_LOOK_EVERY_S = 0.25
_STALL_S = 0.6
_HERDS = 3
_HERD_DELAY_S = 0.05
_SHOWN = 50
_SOAK_STEP = 2000
_IDLE_S = 3.0
_MAY_GROW = {"threads": 8, "descriptors": 8, "files": 8, "disk_kb": 1024, "subscriptions": 2, "consumers": 0}
_LEFT_S = 20.0
"""How long something may be left after the last end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it."""

    violations: list[str]
    figures: dict[str, Any]


async def chaos(
    folder: Path,
    *,
    seed: int,
    minutes: float,
    servers: int,
    judged_by_time: bool = True,
    only: frozenset[str] = frozenset(),
) -> Outcome:
    """Let faults happen to real processes for a time, wait until every run is over, and judge.

    Args:
        folder: Where everything is written.
        seed: Fixes the faults and the work.
        minutes: How long faults go on.
        servers: How many NATS servers there are.
        judged_by_time: Whether what comes late is a violation; a busy machine can only be judged by the rest.
        only: The kinds of faults; all where it is empty.
    """
    async with World.open(folder, servers=servers, daemons=_DAEMONS) as world:
        work = Work(world=world, random=random.Random(seed + 1))
        await work.open()
        without = set(KINDS - only) if only else set[str]()
        without |= set() if os.geteuid() == 0 else {"full_disk"}
        without |= set() if world.can_jump else {"clock_jump"}
        planned = schedule(seed, minutes=minutes, daemons=_DAEMONS, servers=servers, without=frozenset(without))
        faults, sampler = Faults(world=world, work=work), Sampler(world, work)
        await _herds(world, work)
        # One daemon has served since the start; another may not have made all of its subscriptions yet.
        usual = max(subscriptions(world).values())
        began, until = time.time(), time.time() + minutes * 60
        async with asyncio.TaskGroup() as tasks:
            looking = [tasks.create_task(_look(sampler)), tasks.create_task(_feel(sampler))]
            both = [tasks.create_task(work.run(until)), tasks.create_task(faults.run(planned, until))]
            await asyncio.wait(both)
            await work.settle(_SETTLE_S)
            for task in looking:
                task.cancel()
        settled = time.time()
        left = await _eventually_none(world, usual)
        judge = Judge(
            world=world,
            work=work,
            happened=faults.happened,
            kills=faults.kills,
            histories=await read_histories(world),
            ledger=await read_stream(world, "FORK_LEDGER"),
            stalls=sampler.stalls,
            judged_by_time=judged_by_time,
        )
        violations = [*judge.violations(), *(sampler.found if judged_by_time else ()), *left]
        if violations:
            _keep(folder, judge, violations)
        late = [late_s for late_s, _ in sampler.late.values()]
        figures = {
            "runs": len(work.asked),
            "kinds": _count(run.kind for run in work.asked.values()),
            "ends": _count(judge.histories[one].status for one in work.asked if one in judge.histories),
            **judge.figures,
            "faults left out": faults.left_out,
            "released after it could hear, in leases": spread([late_s / LEASE_S for late_s in late]),
            "stalls of the machine, in s": spread([ended - start for start, ended in sampler.stalls]),
            "daemons": {daemon.name: use_of(daemon) for daemon in world.daemons},
            "seconds": {"faults": round(until - began), "settled": round(settled - until), "judged": 0},
        }
        figures["seconds"]["judged"] = round(time.time() - settled)
        return Outcome(violations=violations, figures=figures)


async def _herds(world: World, work: Work) -> None:
    """Let one daemon have many runs that time out together; no fault excuses one that is late or lost."""
    others = world.daemons[1:]
    for daemon in others:
        daemon.signal(signal.SIGTERM)
        await daemon.gone()
    world.daemons[0].wires.become("delay", delay_s=_HERD_DELAY_S)
    for _ in range(_HERDS):
        await work.herd()
    world.daemons[0].wires.become("pass")
    for daemon in others:
        daemon.start()
        await world.until_ready(daemon)


async def soak(folder: Path, *, forks: int) -> Outcome:
    """Put many short forks through two daemons without faults, and see that what the daemons use stays flat."""
    async with World.open(folder, servers=1, daemons=2) as world:
        work = Work(world=world, random=random.Random(forks), outstanding=24, kinds={"plain": 1.0})
        await work.open()
        uses, began, step = list[dict[str, int]](), time.time(), min(_SOAK_STEP, forks // 2)
        for most in range(step, forks + 1, step):
            await work.run(math.inf, most)
            await work.settle(_SETTLE_S)
            await asyncio.sleep(_IDLE_S)
            uses.append(await _use(world))
            print(f"{most} forks, {time.time() - began:.0f} s: {json.dumps(uses[-1])}", flush=True)
        violations = [f"{len(work.asked) - len(work.over)} runs have no end"] if work.asked.keys() - work.over else []
        # What may come and go (a cache, a pool of threads) is small; a leak of one thing per fork is not.
        for name, most_more in {**_MAY_GROW, "rss_kb": uses[0]["rss_kb"] // 10}.items():
            if uses[-1][name] > uses[0][name] + most_more:
                violations.append(f"{name} was {uses[0][name]} after {step} forks and is {uses[-1][name]} at the end")
        return Outcome(violations=violations, figures={"runs": len(work.asked), "seconds": round(time.time() - began)})


async def _use(world: World) -> dict[str, int]:
    """What both daemons use now, together."""
    found = Counter[str]()
    for daemon in world.daemons:
        found.update(use_of(daemon))
        for place in (daemon.state, daemon.temporary):
            paths = list(place.rglob("*"))
            found.update({"files": len(paths), "disk_kb": sum(path.lstat().st_size for path in paths) >> 10})
    found["subscriptions"] = sum(subscriptions(world).values())
    found["consumers"] = int(world.servers[0].ask("jsz")["consumers"])
    return dict(found)


def _keep(folder: Path, judge: Judge, violations: list[str]) -> None:
    """Write down what was judged."""
    (folder / "violations.txt").write_text("".join(f"{violation}\n" for violation in violations))
    with open(folder / "histories.jsonl", "w") as out:
        for history in judge.histories.values():
            for message, at in history.messages:
                kept = {**message.body, "snapshot": None}
                out.write(json.dumps([history.run_id, message.seq, at, message.side, kept]) + "\n")
    with open(folder / "calls.jsonl", "w") as out:
        out.writelines(json.dumps(asdict(call)) + "\n" for call in judge.world.gate.calls)


async def _look(sampler: Sampler) -> None:
    while True:
        await asyncio.to_thread(sampler.look)
        await asyncio.sleep(_LOOK_EVERY_S)


async def _feel(sampler: Sampler) -> None:
    """Notice when this program gets no time: then a daemon may have had none either."""
    while True:
        began = time.time()
        await asyncio.sleep(0.1)
        if time.time() - began > _STALL_S:
            sampler.stalls.append((began, time.time()))


async def _eventually_none(world: World, usual: int) -> list[str]:
    """Give acknowledgements, folders and processes a moment to go after the ends."""
    give_up = time.time() + _LEFT_S
    while True:
        found = leftovers(world) + await consumers_left(world)
        for name, count in subscriptions(world).items():
            if count > usual:
                found.append(f"{name} has {count} subscriptions, and the usual number is {usual}")
        if not found or time.time() > give_up:
            return found
        await asyncio.sleep(0.5)


def _count(values: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for value in values:
        found[value] = found.get(value, 0) + 1
    return dict(sorted(found.items()))


def main() -> int:
    """Run it with the settings of the environment."""
    for noisy in ("nats", "aiohttp.server", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    if sys.argv[1:] == ["soak"]:
        forks = int(os.environ.get("CHAOS_FORKS", "20000"))
        print(f"{forks} forks; logs in {folder}", flush=True)
        outcome = uvloop.run(soak(folder, forks=forks))
    else:
        seed = int(os.environ.get("CHAOS_SEED", str(random.randrange(10**6))))
        minutes, servers = float(os.environ.get("CHAOS_MINUTES", "5")), int(os.environ.get("CHAOS_SERVERS", "1"))
        print(f"seed {seed}, {minutes:g} minutes, NATS servers: {servers}; logs in {folder}", flush=True)
        only = frozenset(os.environ.get("CHAOS_FAULTS", "").split(",")) & KINDS
        outcome = uvloop.run(chaos(folder, seed=seed, minutes=minutes, servers=servers, only=only))
    print(json.dumps(outcome.figures, indent=2))
    for violation in outcome.violations[:_SHOWN]:
        print(f"VIOLATION {violation}")
    print(f"{len(outcome.violations)} violations in {outcome.figures['runs']} runs")
    if not outcome.violations:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
