"""A daemon's folder: what is in use stays, what belongs to nobody goes, and the disk is never filled up."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from nexofork.errors import ForkRefused
from nexofork_daemon.state_folder import DiskLimits, OutOfRoom, StateFolder
from tests.support.hands import deep_folder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


async def opened(root: Path, **limits: int) -> StateFolder:
    """A folder as a daemon opens it."""
    state = StateFolder(root, DiskLimits(**{"free_bytes": 0, **limits}))
    await state.open()
    return state


def filled(size: int) -> Callable[[Path], Awaitable[None]]:
    """Make a base that takes so many bytes."""

    def write(folder: Path) -> None:
        folder.mkdir()
        (folder / "pack").write_bytes(os.urandom(size))

    async def make(folder: Path) -> None:
        await asyncio.to_thread(write, folder)

    return make


async def test_two_daemons_leave_each_others_runs_alone(tmp_path: Path) -> None:
    """A second one that wants the same name gets another folder; both are removed at their ends."""
    one, two = await opened(tmp_path), await opened(tmp_path)
    async with one.run_folder("r") as first:
        assert two.collect() == 0
        async with two.run_folder("r") as second:
            assert first != second
            assert first.is_dir()
    assert list((tmp_path / "runs").iterdir()) == []


async def test_what_nobody_holds_is_collected(tmp_path: Path) -> None:
    """With its lock file, and whatever rights it has."""
    state = await opened(tmp_path)
    left = tmp_path / "runs/left/work/deep"
    left.mkdir(parents=True)
    (left / "file").write_text("x")
    left.chmod(0o500)
    (tmp_path / "runs/left.lock").touch()
    assert state.collect() == 1
    assert list((tmp_path / "runs").iterdir()) == []


async def test_a_base_is_made_once_and_kept(tmp_path: Path) -> None:
    """Many who want it at once wait for the one that makes it; a failed one leaves nothing."""
    state = await opened(tmp_path)
    made = []

    async def make(folder: Path) -> None:
        made.append(folder)
        await asyncio.sleep(0.05)
        await asyncio.to_thread(folder.mkdir)

    async def use() -> None:
        async with state.base("b", make) as base:
            assert base.is_dir()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(5):
            tasks.create_task(use())
    assert len(made) == 1

    async def fail(folder: Path) -> None:
        await asyncio.to_thread(folder.mkdir)
        raise ForkRefused("no")

    with pytest.raises(ForkRefused):
        async with state.base("c", fail):
            pass
    assert [path.name for path in (tmp_path / "bases").iterdir() if path.is_dir()] == ["b"]


async def test_the_bases_used_longest_ago_go_first_and_those_in_use_stay(tmp_path: Path) -> None:
    """The limit is kept as far as nobody borrows from them."""
    state = await opened(tmp_path, bases_bytes=2 << 20)
    async with state.base("held", filled(1 << 20)):
        for name in ("old", "new"):
            async with state.base(name, filled(1 << 20)):
                pass
        kept = sorted(path.name for path in (tmp_path / "bases").iterdir() if path.is_dir())
    assert kept == ["held", "new"]


async def test_limits_are_named_before_and_after(small_disk: Path) -> None:
    """One workspace, all of them, and the floor of the disk."""
    state = await opened(small_disk, workspace_bytes=2 << 20, total_bytes=3 << 20, free_bytes=1 << 20)
    with pytest.raises(ForkRefused, match="needs at least 3 MB and one may have 2 MB"):
        state.check_room(3 << 20)
    async with state.run_folder("r") as folder:
        (folder / "big").write_bytes(bytes(2_500_000))
        with pytest.raises(OutOfRoom, match="has grown to 2 MB and one may have 2 MB"):
            await state.check_use(folder)
        with pytest.raises(ForkRefused, match="Workspaces on this daemon take 2 MB of the 3 MB"):
            state.check_room(1 << 20)
    async with state.run_folder("r") as folder:
        (small_disk / "other").write_bytes(bytes(3 << 20))
        with pytest.raises(ForkRefused, match="have to stay free"):
            state.check_room(100_000)
        (small_disk / "more").write_bytes(bytes(300_000))
        with pytest.raises(OutOfRoom, match="disk has 1 MB left"):
            await state.check_use(folder)


async def test_a_place_that_cannot_be_written_to_refuses_workspaces_only(tmp_path: Path) -> None:
    """The daemon starts all the same, and says why it takes none."""
    (tmp_path / "file").touch()
    state = await opened(tmp_path / "file/state")
    assert state.collect() == 0
    with pytest.raises(ForkRefused, match="cannot be used"):
        state.check_room(1)


async def test_a_deep_run_folder_is_collected(tmp_path: Path) -> None:
    """However deep a child has nested its folders, the daemon opens its state and removes them."""
    state = await opened(tmp_path)
    deep_folder(tmp_path / "runs/left", depth=1_500)
    (tmp_path / "runs/left.lock").touch()

    assert state.collect() == 1
    assert list((tmp_path / "runs").iterdir()) == []
