"""How much a run has written to disk, without counting its files all the time.

Nobody but a file system can limit a folder, and an unprivileged daemon cannot make one. So the free space of the disk
is looked at, which is one call, and the run's files are counted when so much of it has gone that the run may have used
up half of what it has left. Somebody else may free as much at the same time, so they are counted now and then as well,
for a twentieth of the time at most. What commands deleted and still hold is counted too.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from nexofork.engine.tools.watching import Watch

__all__ = ["DiskMeter", "disk_usage"]

_LEAST_BYTES = 1024 * 1024
_COUNT_EVERY_S = 2.0
_COUNT_SHARE = 20
_LONG = 2048
_LEAST_FILE_BYTES = 4096
"""What a file counts at least: a file system has room for so many only, and an empty one takes no block."""
_UNCOUNTABLE = 1 << 62


class DiskMeter:
    """Watches what a run's folders grow by."""

    def __init__(self, folders: Sequence[str], *, limit: int) -> None:
        self.limit = limit
        """What they may grow by, in bytes."""
        self._folders = folders
        self._at_first: int | None = None
        self._deleted: dict[Watch, int] = {}
        self._used = 0
        self._used_at_start = 0
        self._free = 0
        self._due = 0.0

    def begin(self) -> None:
        """A command starts; before the first one, what there is already is counted. May take a while."""
        if self._at_first is None:
            found = self._count()
            self._at_first = found if found < _UNCOUNTABLE else 0
        self._used_at_start = self._used

    def suspicious(self) -> bool:
        """Whether it is time to count."""
        gone = self._free - self._free_now()
        return time.monotonic() >= self._due or 2 * gone >= max(self.limit - self._used, _LEAST_BYTES)

    def problem(self, command: Watch) -> str | None:
        """Count, and say whether a command made it too much; may take a while. Making it less is always fine."""
        self._deleted[command] = command.deleted_bytes()
        self._used = self._count() + sum(self._deleted.values()) - (self._at_first or 0)
        if self._used > max(self.limit, self._used_at_start):
            return f"its files grew by more than {self.limit} bytes; remove what is not needed"
        return None

    def forget(self, command: Watch) -> None:
        """A command has ended, and what it deleted is gone."""
        self._used -= self._deleted.pop(command, 0)

    def _count(self) -> int:
        begun = time.monotonic()
        self._free = self._free_now()
        size = disk_usage(self._folders)
        took = time.monotonic() - begun
        self._due = time.monotonic() + max(_COUNT_EVERY_S, _COUNT_SHARE * took)
        return size

    def _free_now(self) -> int:
        free, seen = 0, set()
        for folder in self._folders:
            with suppress(OSError):
                found = os.statvfs(folder)
                if found.f_fsid not in seen:
                    seen.add(found.f_fsid)
                    free += found.f_bfree * found.f_frsize
        return free


def disk_usage(folders: Iterable[str | Path]) -> int:
    """Return how many bytes folders take on the disk; what is in several of them, or has several names, counts once."""
    seen: set[tuple[int, int]] = set()
    try:
        return sum(_size_below(os.fspath(folder), seen) for folder in folders)
    except RecursionError:
        return _UNCOUNTABLE


def _size_below(folder: str, seen: set[tuple[int, int]]) -> int:
    total, todo = 0, [folder]
    while todo:
        at = todo.pop()
        if len(at) > _LONG:  # the kernel takes no much longer paths
            total += _size_apart(at, seen)
            continue
        try:
            with os.scandir(at) as entries:
                for entry in entries:
                    with suppress(OSError):
                        total += _size_of(entry, seen, todo)
        except PermissionError:
            total += _size_apart(at, seen)
        except OSError:
            continue
    return total


def _size_of(entry: os.DirEntry[str], seen: set[tuple[int, int]], todo: list[str]) -> int:
    found = entry.stat(follow_symlinks=False)
    if found.st_nlink > 1 or entry.is_dir(follow_symlinks=False):
        if (found.st_dev, found.st_ino) in seen:
            return 0
        seen.add((found.st_dev, found.st_ino))
    if entry.is_dir(follow_symlinks=False):
        todo.append(entry.path)
    return max(found.st_blocks * 512, _LEAST_FILE_BYTES)


def _size_apart(folder: str, seen: set[tuple[int, int]]) -> int:
    """Count a folder by a descriptor, so that its path is short; one that a command has locked is open meanwhile."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            path = f"/proc/self/fd/{descriptor}"
            mode = stat.S_IMODE(os.stat(path).st_mode)
            if mode & 0o500 == 0o500:
                return 0 if len(folder) <= _LONG else _size_below(path, seen)
            os.chmod(path, mode | 0o500)
            try:
                return _size_below(path, seen)
            finally:
                os.chmod(path, mode)
        finally:
            os.close(descriptor)
    return 0
