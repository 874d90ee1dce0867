"""Workspaces over NATS: what travels once, what is asked for again, what is refused, and what a child is told."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from nexofork import ForkStatus, GitWorkspace, ParentContext, PathWorkspace
from nexofork.bus.blobs import BlobStore
from nexofork.errors import ForkRefused
from nexofork.wire import messages as wire
from nexofork.wire.workspace import GitSpec
from nexofork.workspace import ShippedWorkspace
from tests.acceptance.fleet.test_blobs import lose_blobs, requested
from tests.support.conversation import call, declared, says
from tests.support.fleet import asked, finals, open_fleet
from tests.support.parents import body_of, results_in
from tests.support.repositories import ELSEWHERE, Repo, from_elsewhere
from tests.support.sandboxes import needs_bubblewrap
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork.simulator import Simulator
    from tests.support.fleet import Fleet, Nursery, RestartableServer

DONE = "Scope: all\nResult: done"


async def spec_of(fleet: Fleet, run_id: str) -> GitSpec:
    """How a run's workspace travelled."""
    spec = (await requested(fleet, run_id)).workspace
    assert isinstance(spec, GitSpec)
    return spec


@needs_bubblewrap
async def test_the_base_travels_once_and_later_commits_as_what_they_add(fleet: Fleet) -> None:
    """A second fork and a fork after more commits refer to the base that is there, and add kilobytes."""
    repo = Repo(fleet.folder / "repo", {f"{number}.txt": f"{number}\n" * 500 for number in range(100)})
    await fleet.daemon(sandbox="bwrap")
    async with fleet.connect() as forks:
        params = await fleet.params(says("apple", DONE), workspace=GitWorkspace(repo.path))
        first = await forks.fork(params)
        await first.result()
        repo.write("1.txt", "more\n")
        repo.commit("More")
        repo.write("2.txt", "dirty\n")
        second = await forks.fork(params)
        result = await second.result()

    assert result.status is ForkStatus.COMPLETED, result.error
    one, two = await spec_of(fleet, first.run_id), await spec_of(fleet, second.run_id)
    assert (one.base, one.bundle, one.thin) == (two.base, two.bundle, None)
    assert two.head != one.head
    assert two.thin is not None
    assert two.thin.size < 2_000
    bases = [path for path in (fleet.folder / "state/bases").iterdir() if path.is_dir()]
    assert [path.name for path in bases] == [one.base]


@needs_bubblewrap
async def test_a_lost_bundle_is_asked_for_again(
    restartable: RestartableServer, sim: Simulator, nursery: Nursery, tmp_path: Path
) -> None:
    """Base and thin bundle alike: the parent makes the one anew and still has the other."""
    repo = Repo(tmp_path / "repo")
    repo.write("a.txt", "dirty\n")
    async with (
        open_fleet((restartable.url,), sim=sim, nursery=nursery, folder=tmp_path) as fleet,
        fleet.connect() as forks,
    ):
        look = says("birch", {"tools": [call(command="cat a.txt")]}, DONE)
        handle = await forks.fork(await fleet.params(look, workspace=GitWorkspace(repo.path)))
        await lose_blobs(fleet)
        await fleet.daemon(sandbox="bwrap")
        result = await handle.result()

    assert result.status is ForkStatus.COMPLETED, result.error
    assert results_in(sim, 2)[0]["content"] == "dirty\n"


async def test_a_child_is_told_both_roots_and_edits_what_its_parent_had_seen(fleet: Fleet) -> None:
    """Paths the parent saw are translated; the folder below the root is where commands start."""
    repo = Repo(fleet.folder / "repo")
    await fleet.daemon()
    root = f"{fleet.folder}/state/runs"
    seen = {f"{ELSEWHERE}/src/b.txt": hashlib.sha256(b"two\n").hexdigest()}
    run_id = "told"
    fleet.captured = await fleet.agent.ask(tools=declared("FileEdit"))
    edit = call("FileEdit", file_path=f"{root}/{run_id}/work/src/b.txt", old_string="two", new_string="2")
    directive = says("cedar", {"tools": [call(command="pwd"), edit]}, DONE)
    async with fleet.connect() as forks:
        params = await fleet.params(
            directive, workspace=GitWorkspace(repo.path / "src"), parent_ctx=ParentContext(file_state=seen)
        )
        handle = await forks.fork(await from_elsewhere(forks, params), run_id=run_id)
        result = await handle.result()

    where, edited = results_in(fleet.sim, 2)
    assert where["content"] == f"{root}/{run_id}/work/src\n"
    assert edited["content"].startswith("Edited ")
    notice = body_of(fleet.sim, 1)["messages"][-1]["content"][-1]["text"]
    assert f"took place in {ELSEWHERE}. You work in {root}/{run_id}/work" in notice
    assert result.workspace is not None
    assert [file.path for file in result.workspace.files] == ["src/b.txt"]
    assert result.to_json()["workspace"]["insertions"] == 1


@needs_bubblewrap
async def test_an_aborted_child_returns_what_it_has(fleet: Fleet) -> None:
    """Uncommitted work included."""
    repo = Repo(fleet.folder / "repo")
    await fleet.daemon(sandbox="bwrap")
    turns = ({"tools": [call(command="echo half > half.txt")]}, {"text": DONE, "hold": "end"})
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(says("drum", *turns), workspace=GitWorkspace(repo.path)))
        await fleet.sim.received(3)
        await handle.abort("enough")
        result = await handle.result()
        fetched = await handle.fetch()

    assert result.status is ForkStatus.ABORTED
    assert repo.show(fetched.ref, "half.txt") == "half"


@needs_bubblewrap
async def test_a_run_without_transcript_has_a_workspace_too(fleet: Fleet) -> None:
    """No checkpoints are kept; the work comes back."""
    repo = Repo(fleet.folder / "repo")
    await fleet.daemon(sandbox="bwrap")
    turns = ({"tools": [call(command="echo x > x.txt")]}, DONE)
    async with fleet.connect() as forks:
        params = await fleet.params(says("elder", *turns), workspace=GitWorkspace(repo.path), skip_transcript=True)
        handle = await forks.fork(params)
        result = await handle.result()

    assert result.workspace is not None
    assert result.workspace.uncommitted
    assert not any(isinstance(report, wire.Checkpoint) for report in await fleet.reports(handle.run_id))


@needs_bubblewrap
async def test_a_workspace_that_grows_too_large_ends_its_run_alone(fleet: Fleet) -> None:
    """The end names the limit, and brings back what there is."""
    repo = Repo(fleet.folder / "repo")
    await fleet.daemon(sandbox="bwrap", disk={"workspace_bytes": 1 << 20, "free_bytes": 0})
    grow = call(command="head -c 3000000 /dev/urandom > big.bin")
    async with fleet.connect() as forks:
        params = await fleet.params(says("fig", {"tools": [grow]}, DONE), workspace=GitWorkspace(repo.path))
        result = await (await forks.fork(params)).result()
        small = await (await forks.fork(params.with_directive(says("grape", DONE)))).result()

    assert (result.status, result.end) == (ForkStatus.FAILED, "OutOfRoom")
    assert "one may have 1 MB" in (result.error or "")
    assert result.workspace is not None
    assert result.workspace.bundle is not None
    assert small.status is ForkStatus.COMPLETED


async def test_a_path_is_worked_in_where_it_is_and_only_there(fleet: Fleet) -> None:
    """In place; where no daemon has the folder the run ends after its limit, and says so."""
    await fleet.daemon(shared_dirs=[str(fleet.folder)])
    folder = fleet.folder / "shared"
    folder.mkdir()
    async with fleet.connect(queue_limit_s=4.0) as forks:
        touch = says("hazel", {"tools": [call(command="echo x > here.txt")]}, DONE)
        params = await fleet.params(touch, workspace=PathWorkspace(folder))
        result = await (await forks.fork(params)).result()
        nowhere = await fleet.params(says("iris", DONE), workspace=PathWorkspace(fleet.folder / "missing"))
        lost = await (await forks.fork(nowhere)).result()

    assert (result.status, (folder / "here.txt").read_text()) == (ForkStatus.COMPLETED, "x\n")
    assert result.workspace is None
    assert (lost.status, lost.end) == (ForkStatus.FAILED, "no_daemon")
    assert f"--shared-dir {fleet.folder}/missing" in (lost.error or "")


async def test_a_run_that_no_daemon_takes_can_be_aborted(fleet: Fleet) -> None:
    """A daemon that has not its folder says so once, and still ends it for good when the parent does not want it."""
    daemon = await fleet.daemon(shared_dirs=[str(fleet.folder)])
    async with fleet.connect() as forks:
        missing = fleet.folder / "missing"
        handle = await forks.fork(await fleet.params(says("iris", DONE), workspace=PathWorkspace(missing)))
        await eventually(lambda: f"left to another daemon: its folder '{missing}' is not on this host" in daemon.log)

        await handle.abort("not needed")
        await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.Final))

    [final] = finals(await fleet.reports(handle.run_id))
    assert final.status == "aborted"
    assert daemon.log.count("left to another daemon") == 1
    assert asked(fleet.sim, "iris") == []


async def test_what_cannot_be_a_workspace_is_refused_before_anything_is_sent(fleet: Fleet) -> None:
    """By the parent."""
    wrong = ((PathWorkspace("here"), "is not absolute"), (GitWorkspace(fleet.folder), "not in a git repository"))
    async with fleet.connect() as forks:
        for workspace, words in wrong:
            with pytest.raises(ForkRefused, match=words):
                await forks.fork(await fleet.params("x", workspace=workspace))
            with pytest.raises(ForkRefused, match=words):
                await forks.fork_each(await fleet.params("x", workspace=workspace), ["x", "y"])


@needs_bubblewrap
async def test_a_bundle_that_is_none_refuses_its_run_alone(fleet: Fleet) -> None:
    """It has the digest it should have, so it is what the parent sent; the next run of the repository is not harmed."""
    repo = Repo(fleet.folder / "repo")
    await fleet.daemon(sandbox="bwrap")
    async with fleet.connect() as forks:
        good = await forks.shipped(await fleet.params(says("jade", DONE), workspace=GitWorkspace(repo.path)))
        assert isinstance(good.workspace, ShippedWorkspace)
        blobs = BlobStore(fleet.bus, "parent")
        for data, words in (
            (b"nonsense", "does not begin like one"),
            (b"# v2 git bundle\n\nPACK", "index-pack failed"),
        ):
            spec = good.workspace.spec.model_copy(update={"bundle": await blobs.put(data)})
            bad = replace(good, workspace=ShippedWorkspace(spec=spec))
            result = await (await forks.fork(bad)).result()
            assert result.status is ForkStatus.REFUSED
            assert words in (result.error or "")
        assert (await (await forks.fork(good)).result()).status is ForkStatus.COMPLETED


async def test_work_that_cannot_be_read_any_more_comes_back_as_far_as_it_was_committed(fleet: Fleet) -> None:
    """The run fails, says why, and its commits can be fetched."""
    repo = Repo(fleet.folder / "repo")
    await fleet.daemon()
    spoil = "echo kept > kept; git add kept; git commit -qm Kept; rm ../index; mkdir ../index"
    async with fleet.connect() as forks:
        params = await fleet.params(
            says("kelp", {"tools": [call(command=spoil)]}, DONE), workspace=GitWorkspace(repo.path)
        )
        handle = await forks.fork(await from_elsewhere(forks, params))
        result = await handle.result()
        fetched = await handle.fetch(repo.path)

    assert (result.status, result.end) == (ForkStatus.FAILED, "GitFailed")
    assert [commit.subject for commit in fetched.commits] == ["Kept"]
    assert "Only what was committed or kept before could be had" in fetched.problem


async def test_work_of_which_nothing_is_left_is_not_called_no_work(fleet: Fleet) -> None:
    """Fetching says that it is lost and why; what the child left out is named in its result."""
    repo = Repo(fleet.folder / "repo")
    await fleet.daemon()
    spoil = "echo new > new; rm ../index; mkdir ../index"
    async with fleet.connect() as forks:
        params = await fleet.params(
            says("lime", {"tools": [call(command=spoil)]}, DONE), workspace=GitWorkspace(repo.path)
        )
        with pytest.raises(ForkRefused, match=r"Nothing of the work of run .* can be fetched: Only what was committed"):
            await (await forks.fork(await from_elsewhere(forks, params))).fetch(repo.path)
        inner = says("moss", {"tools": [call(command="git init -q lib; echo code > lib/a.py")]}, DONE)
        params = await from_elsewhere(forks, params.with_directive(inner))
        result = await (await forks.fork(params)).result()

    assert result.workspace is not None
    assert result.workspace.problem == "Repositories inside the checkout were left out: lib."


@needs_bubblewrap
async def test_a_pipe_in_the_checkout_does_not_keep_a_run_from_its_end(fleet: Fleet) -> None:
    """Where git would have read it; what else the child did comes back."""
    repo = Repo(fleet.folder / "repo")
    await fleet.daemon(sandbox="bwrap")
    pipes = says("nut", {"tools": [call(command="echo new > new; mkfifo .gitignore .gitattributes")]}, DONE)
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(pipes, workspace=GitWorkspace(repo.path)))
        result = await handle.result()
        fetched = await handle.fetch()

    assert result.status is ForkStatus.COMPLETED, result.error
    assert [file.path for file in fetched.files] == ["new"]
