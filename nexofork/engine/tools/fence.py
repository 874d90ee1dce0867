"""Let the kernel limit a program's processes and memory, and know which processes are left of it.

A fork bomb makes thousands of processes between two looks from outside, and then the host is too busy for the next one.
Memory has forms that cannot be seen from outside, such as a file in memory that is in flight between two processes.
Where this process may make control groups, the kernel itself stops a program at its memory, and at a few times its
processes until the look that ends it. A group also counts a program's processes in one read, and knows them wherever
they have gone.

Groups can be made as root, and in a group that was delegated to this process (``Delegate=`` of a systemd unit). A group
that has groups inside cannot hold processes, so this process moves into one of its own there.
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

    from nexofork.engine.tools.watching import Limits

__all__ = ["Fence", "delegated", "fenced"]

_ROOTS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
_MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
_CONTROLLERS = ("memory", "pids")
_NAME = "nexofork"
_ROOM = 500
_SWEEPS = 100
_numbers = itertools.count(1)


class Fence:
    """The control group of one program; without one it holds no process and knows nothing."""

    def __init__(self, folder: Path | None, *, limits_memory: bool = False) -> None:
        self._folder = folder
        self.limits_memory = limits_memory
        """Whether the kernel keeps the program to its memory."""

    @property
    def door(self) -> str:
        """Where the program writes its own process id before it begins; empty where there is no fence."""
        return str(self._folder / "cgroup.procs") if self._folder else ""

    def count(self) -> int | None:
        """Return how many processes and threads it has; None where that is not known."""
        with suppress(OSError, ValueError):
            return int((self._folder / "pids.current").read_text()) if self._folder else None
        return None

    def processes(self) -> list[int]:
        """Return the processes inside."""
        with suppress(OSError, ValueError):
            return [int(pid) for pid in (self._folder / "cgroup.procs").read_text().split()] if self._folder else []
        return []

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel ended it because it used more memory than it may."""
        with suppress(OSError, ValueError):
            if self._folder is not None and self.limits_memory:
                events = dict(line.split() for line in (self._folder / "memory.events").read_text().splitlines())
                return int(events.get("oom_kill", 0)) > 0
        return False

    def clear(self) -> None:
        """Kill what is inside; no process can start another one meanwhile that is not killed as well."""
        for _ in range(_SWEEPS):
            left = self.processes()
            if not left:
                return
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def fenced(limits: Limits) -> Iterator[Fence]:
    """Put a fence around a program; what is left of it at the end is killed.

    Args:
        limits: What it may use; the fence for processes stands a little farther out, so that a look finds it over its
            limit.
    """
    fence, folder = _make(limits)
    try:
        yield fence
    finally:
        fence.clear()
        if folder is not None:
            with suppress(OSError):
                folder.rmdir()


@cache
def delegated() -> Path | None:
    """Return the control group in which this process may make others, made ready for that; None where it has none.

    Only a group in which this process is alone is taken: the others could not be moved without asking.
    """
    try:
        own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        mount = next(mount for mount in _MOUNTS if (mount / "cgroup.controllers").exists())
        group = mount / own.lstrip("/")
        if not _is_ours(group) or not set(_CONTROLLERS) <= set((group / "cgroup.controllers").read_text().split()):
            return None
        if (group / "cgroup.procs").read_text().split() != [str(os.getpid())]:
            return None
        inner = group / f"{_NAME}-daemon"
        inner.mkdir(exist_ok=True)
        (inner / "cgroup.procs").write_text(str(os.getpid()))
        try:
            (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _CONTROLLERS))
        except OSError:
            (group / "cgroup.procs").write_text(str(os.getpid()))
            inner.rmdir()
            raise
    except (OSError, StopIteration):
        return None
    return group


def _is_ours(group: Path) -> bool:
    """Whether a group was delegated: a user owns it then. To root all belong, and systemd marks those it means."""
    if os.geteuid() != 0:
        return group.stat().st_uid == os.geteuid()
    for name in ("trusted.delegate", "user.delegate"):
        with suppress(OSError):
            return os.getxattr(group, name) == b"1"
    return False


@cache
def _sweep() -> None:
    """Remove, once, what daemons left that were killed; a group with a process in it stays."""
    for root in _ROOTS:
        for folder in root.glob(f"{_NAME}-[0-9]*"):
            pid = folder.name.split("-")[1]
            if not Path("/proc", pid).exists():
                with suppress(OSError):
                    folder.rmdir()


def _make(limits: Limits) -> tuple[Fence, Path | None]:
    most = limits.processes + max(limits.processes, _ROOM)
    own = delegated()
    if own is None and os.geteuid() == 0:
        _sweep()
    for root in (own,) if own is not None else _ROOTS if os.geteuid() == 0 else ():
        folder = root / f"{_NAME}-{os.getpid()}-{next(_numbers)}"
        with suppress(OSError):
            folder.mkdir()
            try:
                (folder / "pids.max").write_text(str(most))
            except OSError:
                folder.rmdir()  # a hierarchy without the controller
                raise
            return Fence(folder, limits_memory=_limit_memory(folder, limits.resident_bytes)), folder
    return Fence(None), None


def _limit_memory(folder: Path, size: int) -> bool:
    """Have the kernel end the whole group when it uses more; False where it cannot."""
    try:
        (folder / "memory.max").write_text(str(size))
        (folder / "memory.oom.group").write_text("1")
    except OSError:
        return False
    with suppress(OSError):  # a host that does not count swap has none to give
        (folder / "memory.swap.max").write_text("0")
    return True
