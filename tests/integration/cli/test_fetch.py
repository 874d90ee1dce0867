"""The command line forks a repository and takes the work in; what cannot be fetched is one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.cli.conftest import World, objects
from tests.support.conversation import call, says
from tests.support.repositories import Repo
from tests.support.sandboxes import needs_bubblewrap

if TYPE_CHECKING:
    from pathlib import Path

DONE = "Scope: all\nResult: done"


@needs_bubblewrap
def test_a_fork_of_a_repository_is_fetched(own_pool: World, tmp_path: Path) -> None:
    """For people and for programs; into the repository it was forked from, and into a clone."""
    repo = Repo(tmp_path / "repo")
    repo.git("clone", "-q", str(repo.path), str(tmp_path / "clone"))
    repo.write("a.txt", "dirty\n")
    edit = says("Work.", {"tools": [call(command="echo more >> a.txt; git commit -qam Tidy; echo x > left")]}, DONE)
    with own_pool.daemon("--sandbox", "bwrap", "--state-dir", str(tmp_path / "state")):
        forked = own_pool.ask(*own_pool.forking(edit, "Look."), "--workspace", f"git:{repo.path}")
        ids = [line.split(":")[0] for line in forked.stdout.splitlines() if "nexofork fetch" in line]
        quiet = [line.split(":")[0] for line in forked.stdout.splitlines() if "changed no files" in line]
        shown = own_pool.ask("fetch", *ids, *own_pool.at)
        cloned = own_pool.ask("fetch", *ids, "--repo", tmp_path / "clone", "--json", *own_pool.at)
        nothing = own_pool.ask("fetch", *quiet, *own_pool.at)
        both = own_pool.ask("fetch", *quiet, *ids, "--json", *own_pool.at)
        elsewhere = own_pool.ask("fetch", *ids, "--repo", tmp_path, *own_pool.at)
        unknown = own_pool.ask("fetch", "no-such-run", *own_pool.at)
        (waited,) = objects(own_pool.ask("wait", *ids, "--json", *own_pool.at).stdout)

    assert forked.returncode == 0, forked.stderr
    assert "2 commits, the last of what was left uncommitted; 2 files, +2 -0" in forked.stdout
    lines = shown.stdout.splitlines()
    assert lines[0] == f"refs/forks/{ids[0]} in {repo.path}"
    assert lines[2].endswith(" Tidy")
    assert f"Merges once yours is committed: git merge refs/forks/{ids[0]}" in lines
    assert lines[-1] == "Commit or stash first, it holds them too: a.txt"
    assert repo.show(f"refs/forks/{ids[0]}", "a.txt") == "dirty\nmore"
    (fetched,) = objects(cloned.stdout)
    assert (fetched["fetched"], fetched["merges"], fetched["in_the_way"]) == (True, True, [])
    assert fetched["head"] == waited["workspace"]["head"]
    assert [file["path"] for file in waited["workspace"]["files"]] == ["a.txt", "left"]
    assert (nothing.returncode, nothing.stderr) == (0, "")
    assert nothing.stdout == f"Run {quiet[0]} changed nothing; there is nothing to fetch.\n"
    assert [(one["run_id"], one["fetched"]) for one in objects(both.stdout)] == [(quiet[0], False), (ids[0], True)]
    for failed, words in (
        (elsewhere, "is not in a git repository"),
        (unknown, "There is no run 'no-such-run'"),
    ):
        assert (failed.returncode, failed.stderr.count("\n")) == (2, 1)
        assert words in failed.stderr


def test_a_run_that_goes_on_is_not_fetched(own_pool: World, tmp_path: Path) -> None:
    """The line says to wait."""
    repo = Repo(tmp_path / "repo")
    (run_id,) = own_pool.detached("Look.", workspace=f"git:{repo.path}")
    done = own_pool.ask("fetch", run_id, *own_pool.at)
    assert (done.returncode, "is not over; wait for it" in done.stderr) == (2, True)


def test_a_folder_without_a_repository_is_refused_at_once(own_pool: World, tmp_path: Path) -> None:
    """Nothing is published."""
    done = own_pool.ask(*own_pool.forking("Look."), "--workspace", f"git:{tmp_path}")
    assert (done.returncode, "is not in a git repository" in done.stderr) == (2, True)
