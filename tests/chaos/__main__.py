"""Run chaos and judge it: ``make chaos``, or ``python -m tests.chaos``.

``CHAOS_SEED`` fixes the schedule of faults and of work, ``CHAOS_MINUTES`` says how long faults go on, ``CHAOS_SERVERS``
is 1 or 3. Exits with 0 where every promise held. The logs of all processes stay where they are if one did not.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import time
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
from tests.chaos.faults import Faults, schedule
from tests.chaos.work import Work
from tests.chaos.world import LEASE_S, World

__all__ = ["Outcome", "chaos"]

_DAEMONS = 3
_SETTLE_S = 180.0
_LOOK_EVERY_S = 0.25
_STALL_S = 0.6
_LEFT_S = 20.0
"""How long something may be left after the last end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it."""

    violations: list[str]
    figures: dict[str, Any]


async def chaos(folder: Path, *, seed: int, minutes: float, servers: int, judged_by_time: bool = True) -> Outcome:
    """Let faults happen to real processes for a time, wait until every run is over, and judge.

    Args:
        folder: Where everything is written.
        seed: Fixes the faults and the work.
        minutes: How long faults go on.
        servers: How many NATS servers there are.
        judged_by_time: Whether what comes late is a violation; a busy machine can only be judged by the rest.
    """
    world = await World.make(folder, servers=servers, daemons=_DAEMONS)
    try:
        work = Work(world=world, random=random.Random(seed + 1))
        await work.open()
        before = subscriptions(world)
        without = set() if os.geteuid() == 0 else {"full_disk"}
        without |= set() if world.can_jump else {"clock_jump"}
        planned = schedule(seed, minutes=minutes, daemons=_DAEMONS, servers=servers, without=frozenset(without))
        faults, sampler = Faults(world=world, work=work), Sampler(world, work)
        began, until = time.time(), time.time() + minutes * 60
        async with asyncio.TaskGroup() as tasks:
            looking = [tasks.create_task(_look(sampler)), tasks.create_task(_feel(sampler))]
            both = [tasks.create_task(work.run(until)), tasks.create_task(faults.run(planned, until))]
            await asyncio.wait(both)
            await work.settle(_SETTLE_S)
            for task in looking:
                task.cancel()
        settled = time.time()
        left = await _eventually_none(world, before)
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
            _keep(folder, judge)
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
    finally:
        await world.close()


def _keep(folder: Path, judge: Judge) -> None:
    """Write down what was judged."""
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


async def _eventually_none(world: World, before: dict[str, int]) -> list[str]:
    """Give acknowledgements, folders and processes a moment to go after the ends."""
    give_up = time.time() + _LEFT_S
    while True:
        found = leftovers(world) + await consumers_left(world)
        now = subscriptions(world)
        for name, count in now.items():
            if count > before.get(name, count):
                found.append(f"{name} has {count} subscriptions and had {before[name]} at first")
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
    seed = int(os.environ.get("CHAOS_SEED", str(random.randrange(10**6))))
    minutes, servers = float(os.environ.get("CHAOS_MINUTES", "5")), int(os.environ.get("CHAOS_SERVERS", "1"))
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"seed {seed}, {minutes:g} minutes, {servers} NATS server{'s' if servers > 1 else ''}; logs in {folder}")
    outcome = uvloop.run(chaos(folder, seed=seed, minutes=minutes, servers=servers))
    print(json.dumps(outcome.figures, indent=2))
    for violation in outcome.violations[:50]:
        print(f"VIOLATION {violation}")
    print(f"{len(outcome.violations)} violations in {outcome.figures['runs']} runs")
    if not outcome.violations:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
