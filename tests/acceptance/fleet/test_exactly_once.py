"""Many forks over two daemons, one of which is killed in the middle: each run ends once, as completed."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from nexofork import ForkStatus
from nexofork.bus.reading import read_subject
from nexofork.wire.messages import Final, Turn, decode_report
from nexofork.wire.streams import log_stream
from tests.support.conversation import call, says

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fleet import Fleet

DONE = "Scope: all\nResult: done"


async def survive(fleet: Fleet, tmp_path: Path, count: int) -> None:
    """Fork so many, kill a daemon when a third of the calls were made, and check every log."""
    tally = tmp_path / "tally"
    doomed, _ = await fleet.daemons(2, slots=32)
    async with fleet.connect() as forks:
        script = ({"tools": [call(command=f"echo $$ >> {tally}")]}, DONE)
        params = await fleet.params("x")
        handles = await forks.fork_each(params, [says(f"part {number}", *script) for number in range(count)])
        await fleet.sim.received(2 * count // 3)

        await doomed.kill()
        results = [await handle.result() for handle in handles]

    assert Counter(result.status for result in results) == {ForkStatus.COMPLETED: count}
    assert any(result.attempts > 1 for result in results)
    finals: Counter[str] = Counter()
    turns: Counter[tuple[str, int]] = Counter()
    for stored in await read_subject(fleet.bus, log_stream(fleet.pool), f"agent.{fleet.pool}.*.reports"):
        run_id, report = stored.subject.split(".")[2], decode_report(stored.data)
        if isinstance(report, Final):
            finals[run_id] += 1
        elif isinstance(report, Turn):
            turns[run_id, report.turn] += 1
    assert finals == Counter(handle.run_id for handle in handles)
    assert set(turns.values()) == {1}
    assert len(tally.read_text().splitlines()) <= count, "a command with side effects ran twice"


@pytest.mark.timeout(90)
async def test_three_hundred_forks_outlive_a_daemon(fleet: Fleet, tmp_path: Path) -> None:
    """One final report per run, no turn recorded twice, no command run twice."""
    await survive(fleet, tmp_path, 300)


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_a_thousand_forks_outlive_a_daemon(fleet: Fleet, tmp_path: Path) -> None:
    """The same with more of everything."""
    await survive(fleet, tmp_path, int(os.environ.get("NEXOFORK_CHAOS_FORKS", "1000")))
