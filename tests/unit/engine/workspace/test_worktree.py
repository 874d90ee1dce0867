"""A checkout is kept, set up again, and returned; what is damaged or hostile is refused."""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from nexofork.errors import ForkRefused
from nexofork.workspace.bundle import decode_bundle, encode_bundle
from nexofork.workspace.fetch import MissingBase, fetch_bundle, work_of
from nexofork.workspace.git import GitFailed
from nexofork.workspace.worktree import Worktree
from tests.support.repositories import Repo, fingerprint, tree_of
from tests.unit.engine.workspace.travel import check_out, checked_out, sent

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork.wire.workspace import GitSpec, WorkspaceWork


async def returned(worktree: Worktree, spec: GitSpec) -> tuple[WorkspaceWork, bytes]:
    """What comes back of a checkout that was changed."""
    work, bundle = await work_of(worktree, spec, await worktree.look(), run_id="r1")
    assert bundle is not None
    return work, bundle


async def test_checkpoints_build_on_each_other_and_restore_everything(tmp_path: Path) -> None:
    """HEAD, branches, tags, staged, unstaged, untracked and removed files, after two bundles."""
    repo = Repo(tmp_path / "repo", {"a": "1\n", "b": "2\n", "gone": "3\n"})
    spec, base, thin = await sent(repo.path)
    first = await check_out(tmp_path / "one", spec, base, thin)
    child = Repo.at(first.root)
    child.git("checkout", "-q", "-b", "side")
    child.write("a", "committed\n")
    child.commit("One")
    child.git("tag", "-a", "v1", "-m", "annotated")
    state1 = await first.look()
    bundle1 = await first.bundle(state1, None)
    child.write("b", "staged\n")
    child.git("add", "b")
    child.write("b", "unstaged\n")
    (first.root / "gone").unlink()
    child.write(os.fsdecode(b"n\xffw"), "untracked\n")
    child.git("stash", "list")
    state2 = await first.look()
    bundle2 = await first.bundle(state2, state1)

    second = Worktree(tmp_path / "two", spec)
    await second.set_up(tmp_path / "one/base/objects", [bundle1, bundle2], state2)

    assert tree_of(second.root) == tree_of(first.root)
    for command in (["status", "--short", "--branch"], ["log", "--format=%H %s"], ["show-ref"], ["diff"]):
        assert Repo.at(second.root).git(*command) == child.git(*command)
    assert await second.look() == state2
    assert len(bundle2) < 2_000


async def test_looking_twice_finds_nothing_new(tmp_path: Path) -> None:
    """An unchanged checkout is the same state."""
    repo = Repo(tmp_path / "repo")
    worktree = await checked_out(repo.path, tmp_path / "run")
    assert await worktree.look() == await worktree.look() == worktree.start


async def test_a_child_can_commit_and_sees_no_refs_but_its_own(tmp_path: Path) -> None:
    """It has an identity, the parent's branch name, and nobody else's branches."""
    repo = Repo(tmp_path / "repo")
    repo.git("branch", "secret")
    worktree = await checked_out(repo.path, tmp_path / "run")
    child = Repo.at(worktree.root)
    assert child.git("for-each-ref", "--format=%(refname)") == "refs/heads/main"
    assert child.git("config", "--local", "user.name") == "nexofork"


async def test_what_a_child_writes_into_its_git_folder_is_not_obeyed(tmp_path: Path) -> None:
    """Its settings name programs, its HEAD leads nowhere, its folder is a link: none is followed or run."""
    repo = Repo(tmp_path / "repo")
    spec, base, thin = await sent(repo.path)
    worktree = await check_out(tmp_path / "run", spec, base, thin)
    ran = tmp_path / "ran"
    child = Repo.at(worktree.root)
    child.write("x.sh", f"#!/bin/sh\ntouch {ran}\n").chmod(0o755)
    child.write(".gitattributes", "* filter=evil\n")
    for key in ("core.fsmonitor", "filter.evil.clean", "filter.evil.smudge", "core.hooksPath", "core.pager"):
        child.git("config", key, str(worktree.root / "x.sh"))
    work, _ = await returned(worktree, spec)
    assert (work.uncommitted, ran.exists()) == (True, False)

    (worktree.root / ".git/HEAD").write_text("0" * 40)
    assert (await worktree.look()).head == spec.commit
    other = Repo(tmp_path / "other", {"secret": "1"})
    (worktree.root / ".git").rename(tmp_path / "moved")
    (worktree.root / ".git").symlink_to(other.path / ".git")
    assert (await worktree.look()).head == spec.commit


async def test_a_folder_in_place_of_an_index_costs_nothing(tmp_path: Path) -> None:
    """The files come back all the same, and no descriptor is left open."""
    repo = Repo(tmp_path / "repo", {"a": "1\n"})
    worktree = await checked_out(repo.path, tmp_path / "run")
    (worktree.root / ".git/index").unlink()
    (worktree.root / ".git/index").mkdir()
    (worktree.root / "a").write_text("2\n")
    before = len(os.listdir("/proc/self/fd"))

    states = [await worktree.look() for _ in range(3)]

    assert worktree.start is not None
    assert {state.tree for state in states}.isdisjoint({worktree.start.tree})
    assert len(os.listdir("/proc/self/fd")) == before


async def test_work_comes_back_to_the_parent_and_to_any_clone_with_the_base(tmp_path: Path) -> None:
    """Twice is harmless; a repository without the base is told so and stays as it is."""
    repo = Repo(tmp_path / "repo")
    repo.git("clone", "-q", str(repo.path), str(tmp_path / "clone"))
    repo.write("a.txt", "dirty\n")
    spec, base, thin = await sent(repo.path)
    worktree = await check_out(tmp_path / "run", spec, base, thin)
    Repo.at(worktree.root).write("b.txt", "new\n")
    work, bundle = await returned(worktree, spec)

    mine = await fetch_bundle(repo.path, "r1", work, bundle)
    again = await fetch_bundle(repo.path, "r1", work, bundle)
    theirs = await fetch_bundle(tmp_path / "clone", "r1", work, bundle)
    other = Repo(tmp_path / "other", {"x": "1"})
    before = fingerprint(other.path)
    with pytest.raises(MissingBase, match="does not have the commit"):
        await fetch_bundle(other.path, "r1", work, bundle)

    assert mine == again
    assert [file.path for file in mine.files] == ["b.txt"]
    assert (mine.merges, mine.in_the_way) == (True, ("a.txt",))  # not committed there, and part of what comes back
    assert theirs.head == mine.head
    assert Repo.at(tmp_path / "clone").show("refs/forks/r1", "b.txt") == "new"
    assert fingerprint(other.path) == before
    assert repo.git("status", "--short") == "M a.txt"
    assert repo.git("fsck", "--strict") == ""


async def test_a_base_that_only_the_reflog_knows_is_enough(tmp_path: Path) -> None:
    """The parent amended its commit after the fork; its work can still be fetched."""
    repo = Repo(tmp_path / "repo")
    spec, base, thin = await sent(repo.path)
    worktree = await check_out(tmp_path / "run", spec, base, thin)
    Repo.at(worktree.root).write("new", "x\n")
    repo.git("commit", "-q", "--amend", "-m", "Amended")
    fetched = await fetch_bundle(repo.path, "r1", *await returned(worktree, spec))
    assert repo.show(fetched.ref, "new") == "x"


async def test_a_damaged_or_foreign_bundle_is_not_taken_in(tmp_path: Path) -> None:
    """The repository stays as it was."""
    repo = Repo(tmp_path / "repo")
    spec, base, thin = await sent(repo.path)
    worktree = await check_out(tmp_path / "run", spec, base, thin)
    Repo.at(worktree.root).write("new", "x\n")
    work, bundle = await returned(worktree, spec)
    before = fingerprint(repo.path)
    taken = decode_bundle(bundle)
    damaged = bytearray(taken.pack)
    damaged[-30] ^= 1
    for wrong in (
        b"nonsense",
        encode_bundle(replace(taken, pack=bytes(damaged))),
        encode_bundle(replace(taken, refs={"refs/nexofork/result": spec.head})),
        encode_bundle(replace(taken, pack=decode_bundle(base).pack)),
    ):
        with pytest.raises(ForkRefused):
            await fetch_bundle(repo.path, "r1", work, wrong)
        assert fingerprint(repo.path) == before


@pytest.mark.parametrize("name", [b"..", b".git", b".GIT", b"a/b"])
async def test_a_hostile_tree_is_refused(tmp_path: Path, name: bytes) -> None:
    """A path that leads out of the checkout, or into its repository, is found before anything is checked out."""
    repo = Repo(tmp_path / "repo")
    spec, base, thin = await sent(repo.path)
    worktree = await check_out(tmp_path / "run", spec, base, thin)
    blob = _object(b"blob", b"evil")
    tree = _object(b"tree", b"100644 %b\0" % name + blob[0])
    when = b"A <a@b> 1 +0000"
    commit = _object(b"commit", b"tree %b\nauthor %b\ncommitter %b\n\nx\n" % (tree[0].hex().encode(), when, when))
    pack = _pack(blob, tree, commit)
    hostile = encode_bundle(replace(decode_bundle(base), pack=pack, refs={"refs/nexofork/result": commit[0].hex()}))
    work = (await work_of(worktree, spec, await worktree.look(), run_id="r1"))[0]
    with pytest.raises(ForkRefused, match="index-pack failed"):
        await fetch_bundle(repo.path, "r1", work.model_copy(update={"head": commit[0].hex()}), hostile)
    other = Worktree(tmp_path / "other", spec.model_copy(update={"commit": commit[0].hex()}))
    with pytest.raises(GitFailed, match="index-pack failed"):
        await other.set_up(tmp_path / "run/base/objects", [hostile], None)


async def test_a_full_disk_is_named(tmp_path: Path, small_disk: Path) -> None:
    """By the checkout that does not fit, and by the checkpoint that does not."""
    repo = Repo(tmp_path / "repo", {"a": "1"})
    small = await checked_out(repo.path, small_disk / "small")
    (small.root / "fill").write_bytes(os.urandom(1_000_000))
    repo.write("big", os.urandom(5 << 20))
    with pytest.raises(GitFailed, match=r"The disk is full\."):
        await checked_out(repo.path, small_disk / "run")
    with contextlib.suppress(OSError):
        (small_disk / "rest").write_bytes(bytes(5 << 20))
    with pytest.raises(GitFailed, match=r"The disk is full\."):
        await small.look()


def _object(kind: bytes, data: bytes) -> tuple[bytes, bytes, bytes]:
    oid = hashlib.sha1(b"%b %d\0" % (kind, len(data)) + data).digest()
    return oid, kind, data


def _pack(*objects: tuple[bytes, bytes, bytes]) -> bytes:
    numbers = {b"commit": 1, b"tree": 2, b"blob": 3}
    pack = b"PACK" + (2).to_bytes(4, "big") + len(objects).to_bytes(4, "big")
    for _, kind, data in objects:
        size, first = len(data), numbers[kind] << 4 | len(data) & 15
        size >>= 4
        while size:
            pack += bytes([first | 0x80])
            first, size = size & 0x7F, size >> 7
        pack += bytes([first]) + zlib.compress(data)
    return pack + hashlib.sha1(pack).digest()
