"""A child's objects are its own: what it borrows from others of the host is never handed out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from nexofork.workspace.bundle import decode_bundle
from nexofork.workspace.fetch import work_of
from tests.support.repositories import Repo
from tests.unit.engine.workspace.travel import check_out, sent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def borrow(objects: Path, secret: Path) -> None:
    """Name another repository's objects."""
    with (objects / "info/alternates").open("a") as file:
        file.write(f"{secret}\n")


def link_alternates(objects: Path, secret: Path) -> None:
    """Name them in a file elsewhere."""
    (objects / "info/alternates").unlink()
    (secret.parent / "named").write_text(f"{secret}\n")
    (objects / "info/alternates").symlink_to(secret.parent / "named")


def link_packs(objects: Path, secret: Path) -> None:
    """Have their folder as one's own."""
    (objects / "pack").rmdir()
    (objects / "pack").symlink_to(secret / "pack")


def link_each(objects: Path, secret: Path) -> None:
    """Have their files as one's own."""
    for path in (secret / "pack").iterdir():
        (objects / "pack" / path.name).symlink_to(path)


def link_all(objects: Path, secret: Path) -> None:
    """Have all of them as one's own."""
    objects.rename(objects.with_name("mine"))
    objects.symlink_to(secret)


@pytest.mark.parametrize("way", [borrow, link_alternates, link_packs, link_each, link_all])
async def test_objects_of_another_repository_are_not_handed_out(
    tmp_path: Path, way: Callable[[Path, Path], None]
) -> None:
    """Neither through HEAD nor through what is staged, however the child points to them."""
    secret = Repo(tmp_path / "secret", {"password": "hunter2"})
    secret.git("gc", "-q")
    repo = Repo(tmp_path / "repo")
    spec, base, thin = await sent(repo.path)
    worktree = await check_out(tmp_path / "run", spec, base, thin)
    way(worktree.root / ".git/objects", secret.path / ".git/objects")
    (worktree.root / ".git/HEAD").write_text(f"{secret.head}\n")
    (worktree.root / ".git/index").write_bytes((secret.path / ".git/index").read_bytes())
    (worktree.root / "mine").write_text("mine\n")

    state = await worktree.look()
    work, bundle = await work_of(worktree, spec, state, run_id="r1")

    assert state.head == spec.commit
    assert bundle is not None
    assert secret.head not in decode_bundle(bundle).refs.values()
    assert [file.path for file in work.files] == ["mine"]
    assert state.index in (repo.git("rev-parse", "HEAD^{tree}"), state.tree)
    Repo.at(tmp_path / "run/keep.git").git("cat-file", "-e", secret.head, code=1)


async def test_a_pipe_among_the_objects_holds_nothing_up(tmp_path: Path) -> None:
    """It is removed before git would open it."""
    repo = Repo(tmp_path / "repo")
    spec, base, thin = await sent(repo.path)
    worktree = await check_out(tmp_path / "run", spec, base, thin)
    objects = worktree.root / ".git/objects"
    (objects / "aa").mkdir()
    for name in ("aa/" + "a" * 38, "pack/pack-x.idx", "info/commit-graph"):
        os.mkfifo(objects / name)
    (worktree.root / ".git/HEAD").write_text("a" * 40)

    assert (await worktree.look()).head == spec.commit


async def test_a_child_may_pack_its_objects(tmp_path: Path) -> None:
    """`git gc` leaves the folder alone in which git is told what to borrow."""
    repo = Repo(tmp_path / "repo")
    spec, base, thin = await sent(repo.path)
    worktree = await check_out(tmp_path / "run", spec, base, thin)
    child = Repo.at(worktree.root)
    child.write("new", "x\n")
    head = child.commit("More")
    child.git("gc", "-q")

    assert [path.name for path in (worktree.root / ".git/objects/info").iterdir()] == ["alternates"]
    assert (await worktree.look()).head == head
