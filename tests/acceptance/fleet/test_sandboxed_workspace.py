"""A child in the sandbox works on its checkout as git would have it, and reaches nothing beside it."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkStatus, GitWorkspace
from nexofork.wire import messages as wire
from tests.support.conversation import call, says

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fleet import Fleet

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


def git(folder: Path, *words: str) -> str:
    """Run git in a folder."""
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit and a file that is not in it."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "a.txt").write_text("one\n")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-qm", "begin")
    (folder / "draft.txt").write_text("not committed\n")
    return folder


async def answers(fleet: Fleet, run_id: str) -> list[dict[str, Any]]:
    """The tool results of a run, as they went to the model."""
    finished = [one for one in await fleet.reports(run_id) if isinstance(one, wire.ToolFinished)]
    return [json.loads(one.block.text or "") for one in finished]


async def test_a_sandboxed_child_commits_and_its_work_comes_back(fleet: Fleet, repository: Path) -> None:
    """History, files that were not committed, an edit and a commit work inside; the parent fetches the result."""
    await fleet.daemon(sandbox="bwrap")
    work = "echo two >> a.txt; git commit -qam more && git gc -q"
    directive = says(
        "Work.",
        {"tools": [call(command=f"git log --oneline | cat; cat draft.txt; {work}")]},
        {"text": "Scope: as told.\nResult: done."},
    )
    async with fleet.connect() as forks:
        params = await fleet.params(directive, workspace=GitWorkspace(repository))
        handle = await forks.fork(params)
        result = await handle.result()
        fetched = await handle.fetch()

    (worked,) = await answers(fleet, result.run_id)
    assert result.status is ForkStatus.COMPLETED, result.error
    assert not worked.get("is_error"), worked
    assert "begin" in str(worked["content"])
    assert "not committed" in str(worked["content"])
    assert result.sandbox == "bwrap"
    assert git(repository, "show", f"{fetched.ref}:a.txt") == "one\ntwo"


async def test_a_sandboxed_child_cannot_change_what_names_programs(fleet: Fleet, repository: Path) -> None:
    """Hooks and configuration of its repository are read-only, and so are the objects it borrows."""
    await fleet.daemon(sandbox="bwrap")
    tries = (
        "echo x > .git/hooks/pre-commit",
        "git config core.pager evil",
        "rm -rf .git/hooks",
        "mv .git old",
        "touch $(head -1 .git/objects/info/alternates)/x",
        "echo /elsewhere/objects >> .git/objects/info/alternates",
        "rm -rf .git/objects/info",
        "mv .git/objects old",
    )
    directive = says("Try.", {"tools": [call(command=one) for one in tries]}, {"text": "Done."})
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(directive, workspace=GitWorkspace(repository)))
        result = await handle.result()

    tried = await answers(fleet, result.run_id)
    assert [one.get("is_error") for one in tried] == [True] * len(tries), tried


async def test_a_woken_child_finds_its_work(fleet: Fleet, repository: Path) -> None:
    """Woken twice, on any daemon: the commits and files of the runs before are there, and all of it comes back."""
    await fleet.daemon(sandbox="bwrap")
    async with fleet.connect() as forks:
        first = says("Work.", {"tools": [call(command="echo two >> a.txt; git commit -qam more")]}, {"text": "Done."})
        handle = await forks.fork(await fleet.params(first, workspace=GitWorkspace(repository)))
        await handle.result()
        for number in ("three", "four"):
            more = says("More.", {"tools": [call(command=f"echo {number} >> a.txt; cat a.txt")]}, {"text": "Done."})
            handle = await forks.wake(handle.run_id, more)
            result = await handle.result()
            assert result.status is ForkStatus.COMPLETED, result.error
        fetched = await handle.fetch()

    (seen,) = await answers(fleet, result.run_id)
    assert str(seen["content"]).split() == ["one", "two", "three", "four"]
    assert git(repository, "show", f"{fetched.ref}:a.txt").split() == ["one", "two", "three", "four"]
    assert git(repository, "show", f"{fetched.ref}:draft.txt") == "not committed"


async def test_a_reference_that_leads_out_writes_nothing_on_the_next_host(fleet: Fleet, repository: Path) -> None:
    """Its child is taken over with its files, and nothing appears beside the checkout."""
    first = await fleet.daemon("first", state_dir=str(fleet.folder / "first"), sandbox="bwrap")
    out = f"refs/heads/{'../' * 20}{str(fleet.folder).lstrip('/')}/ESCAPED/x"
    write = f"echo new > new.txt; printf '%s {out}\\n' $(git rev-parse HEAD) >> .git/packed-refs"
    turns = (
        {"tools": [call(command=write)]},
        {"tools": [call(command="cat new.txt")], "hold": "look"},
        {"text": "Done."},
    )
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(says("Work.", *turns), workspace=GitWorkspace(repository)))
        await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.Checkpoint))
        await fleet.sim.received(3)
        await first.kill()
        await fleet.daemon("heir", state_dir=str(fleet.folder / "heir"), sandbox="bwrap")
        await fleet.sim.received(4)
        fleet.sim.release("look")
        result = await handle.result()

    assert (result.status, result.daemon) == (ForkStatus.COMPLETED, "heir"), result.error
    assert "new" in str((await answers(fleet, handle.run_id))[-1]["content"])
    assert not (fleet.folder / "ESCAPED").exists()
