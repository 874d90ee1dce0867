"""Nothing that a child does to single files costs it the rest, or holds a look up."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from nexofork.workspace.fetch import work_of
from tests.support.repositories import Repo
from tests.unit.engine.workspace.travel import check_out, sent

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork.wire.workspace import GitSpec
    from nexofork.workspace.worktree import Worktree


async def begun(tmp_path: Path) -> tuple[Worktree, GitSpec]:
    """A child's checkout."""
    repo = Repo(tmp_path / "repo")
    spec, base, thin = await sent(repo.path)
    return await check_out(tmp_path / "run", spec, base, thin), spec


async def files_in(worktree: Worktree, tree: str) -> list[str]:
    """What a tree holds, as the daemon knows it."""
    return (await worktree.git.run("ls-tree", "-r", "--name-only", tree)).decode().splitlines()


async def test_a_file_that_git_cannot_convert_is_taken_as_it_is(tmp_path: Path) -> None:
    """It and all others come back."""
    worktree, _ = await begun(tmp_path)
    child = Repo.at(worktree.root)
    child.write(".gitattributes", "*.u working-tree-encoding=UTF-16\n")
    child.write("a.u", "no mark of its order")
    child.write("b.u", "\ufeffwith one".encode("utf-16-le"))
    for number in range(5):
        child.write(f"{number}", "x")

    state = await worktree.look()

    known = Repo.at(worktree.root.parent / "keep.git")
    assert worktree.problem == ""
    assert len(await files_in(worktree, state.tree)) == 2 + 8
    assert known.git("show", f"{state.tree}:a.u") == "no mark of its order"
    assert known.git("show", f"{state.tree}:b.u") == "with one"
    assert (await worktree.look()).tree == state.tree


async def test_a_file_that_cannot_be_taken_is_named_and_the_others_are(tmp_path: Path) -> None:
    """Also where it was there before: then it stays as it was."""
    worktree, _ = await begun(tmp_path)
    child = Repo.at(worktree.root)
    child.write(".gitattributes", "*.u working-tree-encoding=UTF-16\n")
    with (worktree.root / "huge.u").open("wb") as file:
        file.truncate(65 << 20)
    child.write("a.txt", "changed\n")
    child.write("z", "new\n")

    state = await worktree.look()

    assert worktree.problem == "Files that cannot be read are not as the child left them: huge.u."
    assert await files_in(worktree, state.tree) == [".gitattributes", "a.txt", "src/b.txt", "z"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
async def test_a_file_without_rights_is_named_and_the_others_are_taken(tmp_path: Path) -> None:
    """A daemon that is not root cannot read it, and a folder without rights neither."""
    worktree, _ = await begun(tmp_path)
    child = Repo.at(worktree.root)
    child.write("shut", "x").chmod(0)
    child.write("z", "new\n")
    (worktree.root / "src").chmod(0)

    state = await worktree.look()
    (worktree.root / "src").chmod(0o755)

    assert "shut" in worktree.problem
    assert "src/b.txt" in worktree.problem
    assert await files_in(worktree, state.tree) == ["a.txt", "src/b.txt", "z"]


async def test_a_repository_inside_the_checkout_is_named(tmp_path: Path) -> None:
    """Its files are not the checkout's, for git; nobody is left to believe that they came back."""
    worktree, _ = await begun(tmp_path)
    Repo.at(worktree.root).git("init", "-q", "lib")
    Repo.at(worktree.root).write("lib/a.py", "code\n")
    await worktree.look()
    assert worktree.problem == "Repositories inside the checkout were left out: lib."

    shutil.rmtree(worktree.root / "lib/.git")
    state = await worktree.look()
    assert worktree.problem == ""
    assert "lib/a.py" in await files_in(worktree, state.tree)


@pytest.mark.parametrize(
    "name", [".gitignore", ".gitattributes", "src/.gitignore", "src/.gitattributes", "lib/.git/HEAD"]
)
async def test_a_pipe_that_git_would_read_holds_nothing_up(tmp_path: Path, name: str) -> None:
    """The look is done at once, with all files."""
    worktree, _ = await begun(tmp_path)
    child = Repo.at(worktree.root)
    child.git("init", "-q", "lib")
    child.write("src/new", "x\n")
    (worktree.root / name).unlink(missing_ok=True)
    os.mkfifo(worktree.root / name)
    os.mkfifo(worktree.root / "pipe")

    state = await worktree.look()

    assert "src/new" in await files_in(worktree, state.tree)
    assert (worktree.root / "pipe").exists()


async def test_a_look_goes_on_where_an_earlier_one_was_ended(tmp_path: Path) -> None:
    """Killed with its lock in place, or failed behind its index: the files are found all the same."""
    worktree, _ = await begun(tmp_path)
    child = Repo.at(worktree.root)
    child.write("new", "x\n")
    child.git("add", "new")
    (tmp_path / "run/index.lock").touch()
    (tmp_path / "run/staged").mkdir()
    with pytest.raises(OSError, match="staged"):
        await worktree.look()
    (tmp_path / "run/staged").rmdir()

    state = await worktree.look()

    assert "new" in await files_in(worktree, state.tree)


async def test_commits_can_be_had_without_reading_the_files(tmp_path: Path) -> None:
    """First what was committed since the last look, then what that look saw."""
    worktree, spec = await begun(tmp_path)
    child = Repo.at(worktree.root)
    child.write("seen", "x\n")
    seen = await worktree.look()
    assert await worktree.salvage() == [seen]
    head = child.commit("Later")

    states = await worktree.salvage()
    work, bundle = await work_of(worktree, spec, states[0], run_id="r1")

    assert [state.head for state in states] == [head, spec.commit]
    assert states[1] == seen
    assert (work.head, work.uncommitted, bundle is None) == (head, False, False)


LEFT_OUT = {
    "one file": [["update-index", "--skip-worktree", "src/b.txt"]],
    "a sparse checkout": [["sparse-checkout", "set", "--cone", "other"]],
    "a sparse index": [["sparse-checkout", "init", "--cone", "--sparse-index"], ["sparse-checkout", "set", "other"]],
}


@pytest.mark.parametrize("way", LEFT_OUT)
async def test_what_a_child_leaves_out_of_its_files_is_not_removed(tmp_path: Path, way: str) -> None:
    """Merging its work would remove it at the parent; what the child removed itself is removed."""
    worktree, _ = await begun(tmp_path)
    child = Repo.at(worktree.root)
    child.write("other/c", "x\n")
    child.commit("More")
    for command in LEFT_OUT[way]:
        child.git(*command)
    (worktree.root / "src/b.txt").unlink(missing_ok=True)
    (worktree.root / "a.txt").unlink()

    state = await worktree.look()

    assert await files_in(worktree, state.tree) == ["other/c", "src/b.txt"]
    assert await worktree.look() == state
