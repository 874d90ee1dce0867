"""A daemon is lost or leaves: the run goes on elsewhere with its files, and nothing is left over."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from nexofork import ForkStatus, GitWorkspace
from nexofork.run.turns import INTERRUPTED
from nexofork.wire import messages as wire
from tests.support.conversation import call, says
from tests.support.fleet import lines_in
from tests.support.parents import body_of
from tests.support.repositories import Repo, from_elsewhere
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork import ForkHandle
    from nexofork.client.fleet import NatsForkSubagent
    from tests.support.fleet import Fleet, Process

DONE = "Scope: all\nResult: done"
EDIT = (
    "git checkout -q -b side; echo 1 >> a.txt; git commit -qam One; "
    "echo 2 >> a.txt; git add a.txt; echo 3 >> a.txt; echo n > new"
)
LOOK = "git log --format=%s -1; git branch --show-current; cat a.txt new; git diff --cached --stat; git status --short"


async def start(fleet: Fleet, **settings: Any) -> tuple[Repo, Process]:
    """A repository, and the first of two daemons with folders of their own."""
    repo = Repo(fleet.folder / "repo")
    return repo, await fleet.daemon("first", state_dir=str(fleet.folder / "first"), **settings)


async def forked(fleet: Fleet, forks: NatsForkSubagent, directive: str, repo: Repo) -> ForkHandle:
    """A fork of a parent whose repository is on another host."""
    params = await fleet.params(directive, workspace=GitWorkspace(repo.path))
    return await forks.fork(await from_elsewhere(forks, params))


async def checkpoints(fleet: Fleet, handle: ForkHandle) -> list[wire.Checkpoint]:
    """The checkpoints on a run's log."""
    return [report for report in await fleet.reports(handle.run_id) if isinstance(report, wire.Checkpoint)]


def answers(fleet: Fleet, index: int = -1) -> list[str]:
    """The tool results in the last message of the newest request."""
    content = body_of(fleet.sim, fleet.sim.log[index].index)["messages"][-1]["content"]
    return [block["content"] for block in content if block["type"] == "tool_result"]


def told(fleet: Fleet) -> str:
    """All text of the newest request's last message."""
    content = body_of(fleet.sim, fleet.sim.log[-1].index)["messages"][-1]["content"]
    return "\n".join(block["text"] for block in content if block["type"] == "text")


async def test_a_killed_daemons_run_goes_on_with_its_files(fleet: Fleet) -> None:
    """Branch, commit, staged, unstaged and untracked work are there on another host; the child is told where."""
    repo, first = await start(fleet)
    turns = ({"tools": [call(command=EDIT)]}, {"tools": [call(command=LOOK)], "hold": "look"}, DONE)
    async with fleet.connect() as forks:
        handle = await forked(fleet, forks, says("apple", *turns), repo)
        await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.Checkpoint))
        await fleet.sim.received(3)
        await first.kill()
        await fleet.daemon("heir", state_dir=str(fleet.folder / "heir"))
        await fleet.sim.received(4)
        moved = told(fleet)
        fleet.sim.release("look")
        result = await handle.result()
        fetched = await handle.fetch(repo.path)

    assert (result.status, result.daemon, result.attempts) == (ForkStatus.COMPLETED, "heir", 2)
    shown = answers(fleet)[0]
    assert shown.splitlines()[:2] == ["One", "side"]
    assert "one\n1\n2\n3\nn\n" in shown
    assert "a.txt | 1 +" in shown
    assert shown.splitlines()[-2:] == ["MM a.txt", "?? new"]
    assert f"is in {fleet.folder}/heir/runs/{handle.run_id}/work now" in moved
    assert [commit.subject for commit in fetched.commits] == [f"Uncommitted work of fork {handle.run_id}", "One"]
    notices = {report.notice for report in await fleet.reports(handle.run_id) if report.kind == "workspace"}
    assert len(notices) == 1
    assert f"{fleet.folder}/first/runs" in notices.pop()


async def test_a_call_whose_effects_were_lost_counts_as_interrupted(fleet: Fleet, tmp_path: Path) -> None:
    """Killed between answer and checkpoint: the heir has the files from before, and says so to the model."""
    repo, first = await start(fleet)
    begun, door = tmp_path / "begun", tmp_path / "door"
    edit = call(command="echo lost >> a.txt; echo answered")
    wait = call(command=f"echo x > {begun}; while [ ! -e {door} ]; do sleep 0.05; done")
    turns = ({"tools": [edit, wait]}, {"tools": [call(command="cat a.txt")]}, DONE)
    async with fleet.connect() as forks:
        handle = await forked(fleet, forks, says("birch", *turns), repo)
        await eventually(lambda: lines_in(begun) == 1)
        await first.kill()
        await fleet.daemon("heir", state_dir=str(fleet.folder / "heir"))
        result = await handle.result()

    assert result.status is ForkStatus.COMPLETED, result.error
    assert answers(fleet, -2) == [INTERRUPTED, INTERRUPTED]
    assert answers(fleet) == ["one\n"]


async def test_a_hand_over_takes_the_files_along(fleet: Fleet, tmp_path: Path) -> None:
    """Told to stop in the middle of a command, a daemon keeps what the command had written so far."""
    repo, first = await start(fleet, drain_s=0.1)
    begun = tmp_path / "begun"
    half = call(command=f"echo half > half.txt; echo x > {begun}; exec sleep 60")
    turns = ({"tools": [call(command="echo whole > whole.txt"), half]}, {"tools": [call(command="cat *.txt")]}, DONE)
    async with fleet.connect() as forks:
        handle = await forked(fleet, forks, says("cedar", *turns), repo)
        await eventually(lambda: lines_in(begun) == 1)
        first.signal(signal.SIGTERM)
        assert await first.gone() == 0
        await fleet.daemon("heir", state_dir=str(fleet.folder / "heir"))
        result = await handle.result()

    assert (result.status, result.daemon) == (ForkStatus.COMPLETED, "heir")
    assert answers(fleet, -2)[1] == INTERRUPTED
    assert answers(fleet) == ["one\nhalf\nwhole\n"]


async def test_a_turn_that_changes_nothing_ships_nothing(fleet: Fleet) -> None:
    """Its checkpoint says so without a bundle."""
    repo, _ = await start(fleet)
    turns = (
        {"tools": [call(command="cat a.txt")]},
        {"tools": [call(command="echo 1 > b")]},
        {"tools": [call(command="true")]},
        DONE,
    )
    async with fleet.connect() as forks:
        handle = await forked(fleet, forks, says("drum", *turns), repo)
        await handle.result()

    kept = await checkpoints(fleet, handle)
    assert [(one.turn, one.bundle is None) for one in kept] == [(1, True), (2, False), (3, True)]


async def test_what_a_dead_daemon_left_is_removed_and_a_living_ones_is_not(fleet: Fleet) -> None:
    """At the start of any daemon that shares the folder."""
    repo, first = await start(fleet)
    runs = fleet.folder / "first/runs"
    held = {"tools": [call(command="true")], "hold": "end"}
    async with fleet.connect() as forks:
        lost = await forked(fleet, forks, says("elder", held, DONE), repo)
        await fleet.until_logged(lost.run_id, lambda report: isinstance(report, wire.WorkspaceReady))
        await first.kill()
        assert (runs / lost.run_id / "work/a.txt").exists()
        await lost.abort("not needed")
        await fleet.daemon("second", state_dir=str(fleet.folder / "first"))
        assert not (runs / lost.run_id).exists()
        living = await forked(fleet, forks, says("elder", held, DONE), repo)
        await fleet.until_logged(living.run_id, lambda report: isinstance(report, wire.WorkspaceReady))
        await fleet.daemon("third", state_dir=str(fleet.folder / "first"))
        assert (runs / living.run_id / "work/a.txt").exists()
        fleet.sim.release("end")
        await living.result()

    assert list(runs.iterdir()) == []


async def test_what_a_checkpoint_could_not_hold_is_told(fleet: Fleet) -> None:
    """To the child that goes on without it, and in the result."""
    repo, first = await start(fleet)
    turns = ({"tools": [call(command="git init -q lib; echo 1 > lib/a")]}, {"tools": [call()], "hold": "look"}, DONE)
    async with fleet.connect() as forks:
        handle = await forked(fleet, forks, says("fern", *turns), repo)
        await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.Checkpoint))
        await fleet.sim.received(3)
        await first.kill()
        await fleet.daemon("heir", state_dir=str(fleet.folder / "heir"))
        await fleet.sim.received(4)
        moved = told(fleet)
        fleet.sim.release("look")
        result = await handle.result()

    left_out = "Repositories inside the checkout were left out: lib."
    assert left_out in moved
    assert result.workspace is not None
    assert result.workspace.problem == left_out
    assert {one.problem for one in await checkpoints(fleet, handle)} == {left_out}
