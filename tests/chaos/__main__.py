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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from tests.chaos.checks import Judge, Sampler, consumers_left, leftovers, read_histories, read_stream, use_of
from tests.chaos.faults import Faults, schedule
from tests.chaos.work import Work
from tests.chaos.world import World

__all__ = ["Outcome", "chaos"]

_DAEMONS = 3
_SETTLE_S = 180.0
_LOOK_EVERY_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it."""

    violations: list[str]
    figures: dict[str, Any]


async def chaos(folder: Path, *, seed: int, minutes: float, servers: int) -> Outcome:
    """Let faults happen to real processes for a time, wait until every run is over, and judge."""
    world = await World.make(folder, servers=servers, daemons=_DAEMONS)
    try:
        work = Work(world=world, random=random.Random(seed + 1))
        await work.open()
        without = set() if os.geteuid() == 0 else {"full_disk"}
        without |= set() if world.can_jump else {"clock_jump"}
        planned = schedule(seed, minutes=minutes, daemons=_DAEMONS, servers=servers, without=frozenset(without))
        faults, sampler, over = Faults(world=world, work=work), Sampler(world, work), asyncio.Event()
        until = time.time() + minutes * 60
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(_look(sampler))
            both = [tasks.create_task(work.run(until)), tasks.create_task(faults.run(planned, until))]
            for task in both:
                await asyncio.wait([task])
            await work.settle(_SETTLE_S)
            over.set()
            looking.cancel()
        await asyncio.sleep(2 * _LOOK_EVERY_S)
        left = leftovers(world, world.daemons) + await _eventually_none(world)
        judge = Judge(
            world=world,
            work=work,
            happened=faults.happened,
            kills=faults.kills,
            histories=await read_histories(world),
            ledger=await read_stream(world, "FORK_LEDGER"),
        )
        violations = [*judge.violations(), *sampler.found.values(), *left]
        figures = {
            "runs": len(work.asked),
            "kinds": _count(run.kind for run in work.asked.values()),
            "ends": _count(judge.histories[one].status for one in work.asked if one in judge.histories),
            **judge.figures,
            "daemons": {daemon.name: use_of(daemon) for daemon in world.daemons},
        }
        return Outcome(violations=violations, figures=figures)
    finally:
        await world.close()


async def _look(sampler: Sampler) -> None:
    while True:
        await asyncio.to_thread(sampler.look)
        await asyncio.sleep(_LOOK_EVERY_S)


async def _eventually_none(world: World) -> list[str]:
    """Acknowledgements may come a moment after the ends."""
    found = await consumers_left(world)
    for _ in range(40):
        if not found:
            break
        await asyncio.sleep(0.25)
        found = await consumers_left(world)
    return found


def _count(values: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for value in values:
        found[value] = found.get(value, 0) + 1
    return dict(sorted(found.items()))


def main() -> int:
    """Run it with the settings of the environment."""
    logging.getLogger("nats").setLevel(logging.CRITICAL)
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
