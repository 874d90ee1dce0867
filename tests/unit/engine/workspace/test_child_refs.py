"""Whatever a child writes into its references, they stay names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from nexofork.wire.messages import Checkpoint, decode_report, encode
from nexofork.workspace.untrusted_repo import read_refs
from nexofork.workspace.worktree import Worktree
from tests.support.repositories import Repo, fingerprint
from tests.unit.engine.workspace.travel import check_out, sent

if TYPE_CHECKING:
    from pathlib import Path

OUT = "refs/heads/../../../../ESCAPED/x"


@pytest.mark.parametrize("name", [OUT, "refs/heads/a b", "refs/heads/.x", "refs/heads/x.lock", "refs/heads/x\x85y z"])
def test_a_packed_name_that_git_would_not_take_is_left_out(tmp_path: Path, name: str) -> None:
    """The others are read."""
    repo = Repo(tmp_path / "repo")
    (repo.path / ".git/packed-refs").write_text(f"{repo.head} {name}\n{repo.head} refs/heads/side\n")
    found = read_refs(repo.path / ".git")
    assert found is not None
    assert found.refs == dict.fromkeys(("refs/heads/side", "refs/heads/main"), repo.head)


@pytest.mark.parametrize("where", ["packed-refs", "HEAD"])
async def test_the_next_checkout_writes_nothing_beside_itself(tmp_path: Path, where: str) -> None:
    """Not even where a child's reference, or its HEAD, leads out of its repository."""
    repo = Repo(tmp_path / "repo")
    spec, base, thin = await sent(repo.path)
    first = await check_out(tmp_path / "one", spec, base, thin)
    text = f"{spec.commit} {OUT}\n" if where == "packed-refs" else f"ref: {OUT}\n"
    (first.root / ".git" / where).write_text(text)

    state = await first.look()
    second = Worktree(tmp_path / "two", spec)
    await second.set_up(tmp_path / "one/base/objects", [await first.bundle(state, None)], state)

    assert state.head == spec.commit
    assert not [name for name in fingerprint(tmp_path) if "ESCAPED" in name]


async def test_names_that_exclude_each_other_do_not_stop_the_next_checkout(tmp_path: Path) -> None:
    """A file and a folder of one name cannot both be there; lines of one file can."""
    repo = Repo(tmp_path / "repo")
    spec, base, thin = await sent(repo.path)
    first = await check_out(tmp_path / "one", spec, base, thin)
    names = ("refs/heads/main", "refs/heads/a", "refs/heads/a/b", f"refs/heads/{'x' * 300}")
    (first.root / ".git/packed-refs").write_text("".join(f"{spec.commit} {name}\n" for name in names))

    state = await first.look()
    second = Worktree(tmp_path / "two", spec)
    await second.set_up(tmp_path / "one/base/objects", [], state)

    assert (await second.look()).refs == state.refs
    assert set(names) <= set(state.refs)


async def test_a_folder_that_has_become_a_link_is_not_where_the_child_goes_on(tmp_path: Path) -> None:
    """It would lead out of the checkout; the root is where it goes on."""
    repo = Repo(tmp_path / "repo")
    spec, base, thin = await sent(repo.path / "src")
    first = await check_out(tmp_path / "one", spec, base, thin)
    assert first.cwd == first.root / "src"
    (first.root / "src/b.txt").unlink()
    (first.root / "src").rmdir()
    os.symlink("/etc", first.root / "src")

    state = await first.look()
    second = Worktree(tmp_path / "two", spec)
    await second.set_up(tmp_path / "one/base/objects", [await first.bundle(state, None)], state)

    assert (second.root / "src").is_symlink()
    assert second.cwd == second.root


async def test_on_a_branch_whose_name_cannot_travel_work_goes_on_detached(tmp_path: Path) -> None:
    """The checkpoint can be read, and its commit is there on the next host; other references are kept."""
    repo = Repo(tmp_path / "repo")
    spec, base, thin = await sent(repo.path)
    first = await check_out(tmp_path / "one", spec, base, thin)
    child = Repo.at(first.root)
    child.git("checkout", "-q", "-b", os.fsdecode(b"b\xff"))
    child.write("new", "x\n")
    head = child.commit("New")

    state = await first.look()
    sent_on = decode_report(encode(Checkpoint(epoch=1, turn=1, state=state)))
    assert isinstance(sent_on, Checkpoint)
    second = Worktree(tmp_path / "two", spec)
    await second.set_up(tmp_path / "one/base/objects", [await first.bundle(state, None)], sent_on.state)

    assert (state.head, state.branch) == (head, "")
    assert Repo.at(second.root).head == head
    assert state.refs == {"refs/heads/main": spec.commit}
