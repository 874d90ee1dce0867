"""How much a run has written to disk, without counting its files all the time.

Nobody but a file system can limit a folder, and an unprivileged daemon cannot make one. So the free space of the disk
is looked at, which is one call, and the run's files are counted when so much of it has gone that the run may have used
up half of what it has left. Somebody else may free as much at the same time, so they are counted now and then as well,
for a twentieth of the time at most.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DiskMeter"]

_LEAST_BYTES = 1024 * 1024
_COUNT_EVERY_S = 2.0
_COUNT_SHARE = 20


class DiskMeter:
    """Watches what a run's folders grow by."""

    def __init__(self, folders: Sequence[str], *, limit: int) -> None:
        self.limit = limit
        """What they may grow by, in bytes."""
        self._folders = folders
        self._at_first: int | None = None
        self._used = 0
        self._used_at_start = 0
        self._free = 0
        self._due = 0.0

    def begin(self) -> None:
        """A command starts; before the first one, what there is already is counted. May take a while."""
        if self._at_first is None:
            self._at_first = self._count()
        self._used_at_start = self._used

    def suspicious(self) -> bool:
        """Whether it is time to count."""
        gone = self._free - self._free_now()
        return time.monotonic() >= self._due or 2 * gone >= max(self.limit - self._used, _LEAST_BYTES)

    def is_over(self) -> bool:
        """Count, and say whether the command made it too much; may take a while. Making it less is always fine."""
        self._used = self._count() - (self._at_first or 0)
        return self._used > max(self.limit, self._used_at_start)

    def _count(self) -> int:
        begun = time.monotonic()
        self._free = self._free_now()
        size = _size(self._folders)
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


def _size(folders: Sequence[str]) -> int:
    """Return how many bytes folders take on the disk; what is in several of them, or has several names, counts once."""
    seen: set[tuple[int, int]] = set()
    total, todo = 0, list(folders)
    while todo:
        with suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    if found.st_nlink > 1 or entry.is_dir(follow_symlinks=False):
                        if (found.st_dev, found.st_ino) in seen:
                            continue
                        seen.add((found.st_dev, found.st_ino))
                    total += found.st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
    return total
