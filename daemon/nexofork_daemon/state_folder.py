"""The daemon's folder on disk: base repositories that many runs borrow from, and one folder per run.

Whoever uses a folder holds a lock on the file beside it, and the system lets go of the lock when the process dies: a
folder whose lock is free belongs to nobody. So several daemons may share the place, and what a dead one left is
removed by the next that looks.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import stat
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexofork.errors import ForkRefused, NexoforkError
from nexofork.policy.paths import remove_tree
from nexofork.sandbox.run_folder import disk_usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

__all__ = ["DiskLimits", "OutOfRoom", "StateFolder"]

log = logging.getLogger(__name__)

_LOCK = ".lock"
_TRY_EVERY_S = 0.02


class OutOfRoom(NexoforkError):
    """A workspace grew beyond what it may have, or the disk is nearly full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLimits:
    """What workspaces may take."""

    workspace_bytes: int = 8 << 30
    """One workspace, its repository included."""
    total_bytes: int = 64 << 30
    """All of them, and the base repositories they borrow from."""
    bases_bytes: int = 16 << 30
    """The base repositories; those used last are kept."""
    free_bytes: int = 256 << 20
    """What has to stay free on the disk."""


class StateFolder:
    """Where one daemon, or several, keep their workspaces."""

    def __init__(self, root: Path, limits: DiskLimits) -> None:
        self.root = root
        self.limits = limits
        self._sizes: dict[Path, int] = {}
        """Of the folders this daemon uses, as last measured."""
        self._problem = ""
        """Why nothing can be kept here."""

    async def open(self) -> None:
        """Make the folders, and remove what dead daemons left.

        A place that cannot be written to is no reason not to run forks that need none: the others are refused.
        """
        try:
            for folder in (self.root, self.root / "bases", self.root / "runs"):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.root = self.root.resolve()
        except OSError as exc:
            self._problem = f"The daemon's state folder {self.root} cannot be used: {exc.strerror}; set --state-dir."
            log.warning("%s Forks with a git workspace are refused.", self._problem)
            return
        await asyncio.to_thread(self.collect)

    @asynccontextmanager
    async def run_folder(self, name: str) -> AsyncIterator[Path]:
        """Give a run a fresh folder of its own, and remove it at the end.

        Where the folder of this name is held by somebody else, such as a daemon that lost the run and does not know it
        yet, it gets another.
        """
        folder, lock = await asyncio.to_thread(self._fresh, name)
        try:
            yield folder
        finally:
            self._sizes.pop(folder, None)
            await asyncio.to_thread(_remove, folder)
            _drop(folder, lock)

    @asynccontextmanager
    async def base(self, key: str, make: Callable[[Path], Awaitable[None]]) -> AsyncIterator[Path]:
        """Hold a base repository while it is borrowed from; made first, by one of those who want it.

        Raises:
            Exception: What `make` raises; nothing is left of it then.
        """
        folder = self.root / "bases" / key
        lock = await self._held(folder)
        try:
            if not folder.is_dir():
                await _until_locked(lock, fcntl.LOCK_EX)
                if not folder.is_dir():  # somebody else may have made it meanwhile
                    await self._make(folder, make)
                await _until_locked(lock, fcntl.LOCK_SH)
            os.utime(lock)
            yield folder
        finally:
            os.close(lock)

    async def _make(self, folder: Path, make: Callable[[Path], Awaitable[None]]) -> None:
        fresh = folder.with_name(f"{folder.name}.new")
        await asyncio.to_thread(_remove, fresh)
        try:
            await make(fresh)
            fresh.rename(folder)
        finally:
            await asyncio.to_thread(_remove, fresh)
        await asyncio.to_thread(self._trim_bases)

    async def _held(self, folder: Path) -> int:
        """Return a shared lock on a base; the file may be removed between opening and locking, so it is looked at."""
        while True:
            lock = os.open(f"{folder}{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                await _until_locked(lock, fcntl.LOCK_SH)
                if _is_current(folder, lock):
                    return lock
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)

    def check_room(self, needed_bytes: int) -> None:
        """Refuse a workspace that there is no room for.

        Raises:
            ForkRefused: It would pass a limit; says which.
        """
        limits = self.limits
        if self._problem:
            raise ForkRefused(self._problem)
        if needed_bytes > limits.workspace_bytes:
            raise ForkRefused(
                f"The workspace needs at least {_mb(needed_bytes)} and one may have {_mb(limits.workspace_bytes)} on "
                "this daemon; raise --workspace-mb there, or fork a smaller repository."
            )
        used = sum(self._sizes.values())
        if used + needed_bytes > limits.total_bytes:
            raise ForkRefused(
                f"Workspaces on this daemon take {_mb(used)} of the {_mb(limits.total_bytes)} they may have; "
                "fork again later, or raise --workspaces-mb there."
            )
        if (free := shutil.disk_usage(self.root).free) - needed_bytes < limits.free_bytes:
            raise ForkRefused(
                f"The daemon's disk has {_mb(free)} left and {_mb(limits.free_bytes)} have to stay free; "
                f"make room at {self.root}, or lower --disk-floor-mb there."
            )

    async def check_use(self, folder: Path) -> None:
        """End a run whose workspace has grown beyond what it may have.

        Raises:
            OutOfRoom: It has, or the disk is nearly full.
        """
        limits = self.limits
        size = self._sizes[folder] = await asyncio.to_thread(disk_usage, [folder])
        if size > limits.workspace_bytes:
            raise OutOfRoom(
                f"The workspace has grown to {_mb(size)} and one may have {_mb(limits.workspace_bytes)} on this "
                "daemon; raise --workspace-mb there, or have the child write less."
            )
        if sum(self._sizes.values()) > limits.total_bytes:
            raise OutOfRoom(f"The workspaces on this daemon have grown beyond {_mb(limits.total_bytes)} together.")
        if (free := shutil.disk_usage(self.root).free) < limits.free_bytes:
            raise OutOfRoom(f"The daemon's disk has {_mb(free)} left; make room at {self.root}.")

    def collect(self) -> int:
        """Remove what belongs to nobody, and the bases that were used longest ago if there are too many.

        Returns:
            How many orphaned run folders were removed.
        """
        if self._problem:
            return 0
        removed = 0
        for entry in list(os.scandir(self.root / "runs")):
            if entry.name.endswith(_LOCK):
                continue
            folder = self.root / "runs" / entry.name
            with _if_free(folder) as free:
                if free:
                    _remove(folder)
                    removed += 1
        for entry in list(os.scandir(self.root / "bases")):
            if entry.name.endswith(".new"):
                folder = self.root / "bases" / entry.name.removesuffix(".new")
                with _if_free(folder, keep=folder.is_dir()) as free:
                    if free:
                        _remove(folder.with_name(entry.name))
        self._trim_bases()
        if removed:
            log.info("removed %d workspaces that nobody uses any more", removed)
        return removed

    def _trim_bases(self) -> None:
        bases = [self.root / "bases" / entry.name for entry in os.scandir(self.root / "bases") if entry.is_dir()]
        sizes = {folder: disk_usage([folder]) for folder in bases}
        total = sum(sizes.values())
        for folder in sorted(bases, key=_used_at):
            if total <= self.limits.bases_bytes:
                return
            with _if_free(folder) as free:
                if free:
                    _remove(folder)
                    total -= sizes[folder]

    def _fresh(self, name: str) -> tuple[Path, int]:
        number = 1
        while True:
            folder = self.root / "runs" / (name if number == 1 else f"{name}.{number}")
            lock = _lock(folder)
            if lock is not None:
                _remove(folder)
                folder.mkdir(mode=0o700)
                return folder, lock
            number += 1


def _lock(folder: Path) -> int | None:
    """Take a folder's lock; None where somebody holds it."""
    while True:
        lock = os.open(f"{folder}{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return None
        if _is_current(folder, lock):
            return lock
        os.close(lock)


def _is_current(folder: Path, lock: int) -> bool:
    try:
        return os.stat(f"{folder}{_LOCK}").st_ino == os.fstat(lock).st_ino
    except FileNotFoundError:
        return False


def _drop(folder: Path, lock: int, *, keep: bool = False) -> None:
    if not keep:
        with suppress(FileNotFoundError):
            os.unlink(f"{folder}{_LOCK}")
    os.close(lock)


@contextmanager
def _if_free(folder: Path, *, keep: bool = False) -> Iterator[bool]:
    lock = _lock(folder)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            _drop(folder, lock, keep=keep)


async def _until_locked(lock: int, kind: int) -> None:
    """Wait for a lock; what ends the wait is the end of its holder, who is making the base."""
    while True:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(_TRY_EVERY_S)
        else:
            return


def _used_at(folder: Path) -> float:
    try:
        return os.stat(f"{folder}{_LOCK}").st_mtime
    except FileNotFoundError:
        return time.time() if not folder.exists() else 0.0


def _remove(folder: Path) -> None:
    def again(function: Callable[..., Any], path: str, _: object) -> None:
        # A child may have taken its own rights away.
        with suppress(OSError):
            os.chmod(os.path.dirname(path), stat.S_IRWXU)
            os.chmod(path, stat.S_IRWXU, follow_symlinks=False)
        with suppress(OSError):
            function(path)

    remove_tree(folder, again)


def _mb(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MB"
