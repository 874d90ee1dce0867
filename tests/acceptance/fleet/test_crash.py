"""A daemon is killed: another one finishes the run, pays no turn twice and repeats no side effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nexofork import ForkStatus
from nexofork.run.turns import INTERRUPTED
from nexofork.wire import messages as wire
from tests.support.conversation import call, declared, says
from tests.support.fleet import asked, epochs, finals, group_of, lines_in
from tests.support.parents import results_in
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork import ForkHandle
    from tests.support.fleet import Fleet, Process

DONE = "Scope: all\nResult: done"


async def claimant(fleet: Fleet, handle: ForkHandle) -> Process:
    """The daemon that has the run."""
    await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.Claimed))
    claims = [report for report in await fleet.reports(handle.run_id) if isinstance(report, wire.Claimed)]
    return fleet.owner(claims[-1].daemon.name)


def last_results(fleet: Fleet, word: str) -> list[str]:
    """The tool results the newest request about a directive ends with."""
    bodies = [record.index for record in fleet.sim.log if word.encode() in (fleet.sim.body(record.index) or b"")]
    return [str(block["content"]) for block in results_in(fleet.sim, bodies[-1])]


@pytest.mark.parametrize("events", [0, 4], ids=["before the first byte", "in mid-stream"])
async def test_a_run_whose_first_call_was_under_way_is_done_by_another_daemon(fleet: Fleet, events: int) -> None:
    """Killed while the model answers, the call is made again elsewhere and the run completes."""
    await fleet.daemons(2)
    async with fleet.connect() as forks:
        turn = {"text": DONE, "hold": {"gate": "first", "after_events": events}}
        handle = await forks.fork(await fleet.params(says("apricot", turn)))
        await (fleet.sim.begun if events else fleet.sim.received)(2)
        lost = await claimant(fleet, handle)

        await lost.kill()
        fleet.sim.release("first")
        result = await handle.result()

    assert (result.status, result.attempts) == (ForkStatus.COMPLETED, 2)
    assert result.daemon != lost.name
    assert asked(fleet.sim, "apricot") == [1, 1]
    assert len(finals(await fleet.reports(handle.run_id))) == 1


async def test_a_recorded_turn_is_not_asked_for_again(fleet: Fleet, tmp_path: Path) -> None:
    """Killed in its second call, the run goes on there: its first turn and its tool are not repeated."""
    tally = tmp_path / "tally"
    await fleet.daemons(2)
    async with fleet.connect() as forks:
        turns = ({"tools": [call(command=f"echo ran >> {tally}")]}, {"text": DONE, "hold": "second"})
        handle = await forks.fork(await fleet.params(says("banana", *turns)))
        await fleet.sim.received(3)
        lost = await claimant(fleet, handle)

        await lost.kill()
        fleet.sim.release("second")
        result = await handle.result()

    assert (result.status, result.attempts, result.turns) == (ForkStatus.COMPLETED, 2, 2)
    assert asked(fleet.sim, "banana") == [1, 2, 2]
    assert lines_in(tally) == 1
    assert fleet.sim.body(2) == fleet.sim.body(3), "the second call is the same bytes on both daemons"


async def test_a_daemon_killed_between_two_turns_costs_at_most_the_call_under_way(fleet: Fleet) -> None:
    """Killed the moment a tool's answer is recorded, nothing recorded is paid or done again."""
    await fleet.daemons(2)
    async with fleet.connect() as forks:
        turns = ({"tools": [call(command="true")]}, {"text": DONE, "delay_s": 0.3})
        handle = await forks.fork(await fleet.params(says("cherry", *turns)))
        lost = await claimant(fleet, handle)
        await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.ToolFinished))

        await lost.kill()
        result = await handle.result()

    assert (result.status, result.attempts) == (ForkStatus.COMPLETED, 2)
    assert asked(fleet.sim, "cherry").count(1) == 1
    starts = [report for report in await fleet.reports(handle.run_id) if isinstance(report, wire.ToolStarted)]
    assert len(starts) == 1


async def test_a_tool_that_was_announced_and_not_begun_is_not_run(fleet: Fleet, tmp_path: Path) -> None:
    """Killed between announcement and start, the child is told that the call was interrupted."""
    tally, door = tmp_path / "tally", tmp_path / "door"
    await fleet.daemons(2)
    async with fleet.connect() as forks:
        turns = ({"tools": [call(command=f"echo ran >> {tally}", behind=str(door))]}, DONE)
        handle = await forks.fork(await fleet.params(says("damson", *turns)))
        lost = await claimant(fleet, handle)
        await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.ToolStarted))

        await lost.kill()
        result = await handle.result()

    assert (result.status, result.attempts) == (ForkStatus.COMPLETED, 2)
    assert lines_in(tally) == 0
    assert last_results(fleet, "damson") == [INTERRUPTED]
    assert asked(fleet.sim, "damson") == [1, 2]


async def test_a_tool_with_side_effects_is_not_run_twice(fleet: Fleet, tmp_path: Path) -> None:
    """Killed inside a tool, the child is told to look before it repeats it; the shell dies with its daemon."""
    tally, shell = tmp_path / "tally", tmp_path / "shell"
    await fleet.daemons(2)
    async with fleet.connect() as forks:
        command = f"echo ran >> {tally}; echo $$ > {shell}; exec sleep 60"
        handle = await forks.fork(await fleet.params(says("elder", {"tools": [call(command=command)]}, DONE)))
        lost = await claimant(fleet, handle)
        await eventually(lambda: lines_in(shell) == 1)

        await lost.kill()
        result = await handle.result()

    assert (result.status, result.attempts) == (ForkStatus.COMPLETED, 2)
    assert lines_in(tally) == 1
    assert last_results(fleet, "elder") == [INTERRUPTED]
    assert asked(fleet.sim, "elder") == [1, 2]
    await eventually(lambda: group_of(int(shell.read_text())) == [])


async def test_a_read_only_tool_is_run_again(fleet: Fleet, tmp_path: Path) -> None:
    """Killed inside a tool that changes nothing, the next daemon simply runs it."""
    tally, door = tmp_path / "tally", tmp_path / "door"
    await fleet.daemons(2)
    fleet.captured = await fleet.agent.ask(tools=declared("Look"))
    async with fleet.connect() as forks:
        look = call("Look", tally=str(tally), until=str(door))
        handle = await forks.fork(await fleet.params(says("fig", {"tools": [look]}, DONE)))
        lost = await claimant(fleet, handle)
        await eventually(lambda: lines_in(tally) == 1)

        await lost.kill()
        await eventually(lambda: lines_in(tally) == 2)
        door.touch()
        result = await handle.result()

    assert (result.status, result.attempts) == (ForkStatus.COMPLETED, 2)
    assert last_results(fleet, "fig") == ["nothing new"]
    assert asked(fleet.sim, "fig") == [1, 2]


async def test_the_answered_half_of_a_turn_is_kept(fleet: Fleet, tmp_path: Path) -> None:
    """Of two calls in one turn the one that answered keeps its answer, the one that was cut off is named."""
    tally, begun = tmp_path / "tally", tmp_path / "begun"
    await fleet.daemons(2)
    async with fleet.connect() as forks:
        first = call(command=f"echo ran >> {tally}; echo first")
        second = call(command=f"echo ran >> {begun}; sleep 60")
        handle = await forks.fork(await fleet.params(says("grape", {"tools": [first, second]}, DONE)))
        lost = await claimant(fleet, handle)
        await eventually(lambda: lines_in(begun) == 1)

        await lost.kill()
        result = await handle.result()

    assert result.status is ForkStatus.COMPLETED
    assert last_results(fleet, "grape") == ["first\n", INTERRUPTED]
    assert (lines_in(tally), lines_in(begun)) == (1, 1)


async def test_a_run_that_kills_its_daemons_ends_at_the_epoch_limit(fleet: Fleet) -> None:
    """A child whose every turn kills its daemon is given up after so many, and says why."""
    limit = 3
    await fleet.daemons(limit + 1, epoch_limit=limit)
    async with fleet.connect() as forks:
        killer = {"tools": [call(command="kill -9 $PPID; sleep 9")]}
        handle = await forks.fork(await fleet.params(says("hazel", *[killer] * 9)))

        result = await handle.result()

    assert (result.status, result.end, result.attempts) == (ForkStatus.FAILED, "epoch_limit", limit)
    assert f"{limit} daemons were lost" in (result.error or "")
    assert sum(process.exit_code == -9 for process in fleet.processes) == limit
    reports = await fleet.reports(handle.run_id)
    assert len(finals(reports)) == 1
    assert epochs(reports) == sorted(epochs(reports))
