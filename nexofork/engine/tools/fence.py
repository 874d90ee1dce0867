"""Keep a program from multiplying faster than anybody can look, and know who is left of it.

A fork bomb makes thousands of processes between two looks from outside, and then the host is too busy for the next one.
Where this process may make control groups (as root; a service of an ordinary user has its service manager for that),
the kernel itself stops a program at a few times its limit, until the look that ends it. A group also counts a program's
processes in one read, and knows them wherever they have gone.
"""

from __future__ import annotations

import itertools
import os
import signal
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Fence", "fenced"]

_ROOTS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
_NAME = "nexofork"
_ROOM = 500
_SWEEPS = 100
_numbers = itertools.count(1)


class Fence:
    """The control group of one program; without one it holds nobody and knows nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @property
    def door(self) -> str:
        """Where the program writes its own process id before it begins; empty where there is no fence."""
        return str(self._folder / "cgroup.procs") if self._folder else ""

    def count(self) -> int | None:
        """Return how many processes and threads it has; None where nobody knows."""
        with suppress(OSError, ValueError):
            return int((self._folder / "pids.current").read_text()) if self._folder else None
        return None

    def clear(self) -> None:
        """Kill whoever is inside; none of them can start another one meanwhile that is not killed as well."""
        if self._folder is None:
            return
        with suppress(OSError, ValueError):
            for _ in range(_SWEEPS):
                left = (self._folder / "cgroup.procs").read_text().split()
                if not left:
                    return
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)


@contextmanager
def fenced(processes: int) -> Iterator[Fence]:
    """Put a fence around a program; whoever is left of it at the end is killed.

    Args:
        processes: How many it may have; the fence stands a little farther out, so that a look finds it over its limit.
    """
    folder = _make(processes + max(processes, _ROOM))
    fence = Fence(folder)
    try:
        yield fence
    finally:
        fence.clear()
        if folder is not None:
            with suppress(OSError):
                folder.rmdir()


@cache
def _sweep() -> None:
    """Remove, once, what daemons left that were killed; a group that somebody is in stays."""
    for root in _ROOTS:
        for folder in root.glob(f"{_NAME}-*"):
            pid = folder.name.split("-")[1]
            if not Path("/proc", pid).exists():
                with suppress(OSError):
                    folder.rmdir()


def _make(most: int) -> Path | None:
    if os.geteuid() != 0:
        return None
    _sweep()
    for root in _ROOTS:
        folder = root / f"{_NAME}-{os.getpid()}-{next(_numbers)}"
        with suppress(OSError):
            folder.mkdir()
            try:
                (folder / "pids.max").write_text(str(most))
            except OSError:
                folder.rmdir()  # a hierarchy without the controller
                raise
            return folder
    return None
