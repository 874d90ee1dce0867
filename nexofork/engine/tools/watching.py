"""What a command may use, and whether it does.

Processes and memory are watched from outside. RLIMIT_NPROC counts all processes of a user, the daemon's and those of
other forks among them, and does not bind root; limits on memory are per process. A look at the host's totals costs two
short reads; the command's own processes are counted only when the totals have moved by as much as would matter.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nexofork.engine.tools.fence import Fence

__all__ = ["Limits", "Watch", "half_of_memory"]

_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@cache
def half_of_memory() -> int:
    """Return half of the memory that this host, or the container it is, has."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CGROUPS:
        with suppress(OSError, ValueError):
            found.append(int(path.read_text()))
    return min(found) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a program may use."""

    time_s: float = 120.0
    printed_bytes: int = 256 * 1024 * 1024
    """All it may print, kept or not."""
    processes: int = 512
    """How many it may have at once, itself included."""
    memory_bytes: int | None = None
    """The address space of each of its processes; some programs claim far more than they use, so None sets no limit."""
    resident_bytes: int = field(default_factory=half_of_memory)
    """The memory that all its processes use together; one alone is refused more by the kernel."""


class Watch:
    """Compares what a program uses with what it may."""

    def __init__(self, limits: Limits, leader: int, fence: Fence) -> None:
        self._limits = limits
        self._fence = fence
        self._leader = leader
        self._threads = _threads_on_host()
        self._available = _available_on_host()

    def problem(self) -> str | None:
        """Return which limit it is over, in words."""
        limits = self._limits
        fenced = self._fence.count()
        many = (fenced if fenced is not None else _threads_on_host() - self._threads) >= limits.processes
        much = 2 * (self._available - _available_on_host()) >= limits.resident_bytes
        if not (many or much):
            return None
        pids = _processes_of(self._leader)
        if len(pids) > limits.processes:
            return f"it had more than {limits.processes} processes at once"
        if much and sum(map(_memory_of, pids)) > limits.resident_bytes:
            return f"it used more than {limits.resident_bytes} bytes of memory"
        return None


def _threads_on_host() -> int:
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return 0


def _available_on_host() -> int:
    with suppress(OSError, ValueError, StopIteration):
        return next(int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemAvailable:"))
    return 0


def _processes_of(leader: int) -> list[int]:
    """Return the living processes of a leader's session, and all that descend from him."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with suppress(OSError, ValueError, IndexError):
            fields = Path(entry.path, "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
                if leader in (int(entry.name), int(fields[1]), int(fields[3])):
                    found.add(int(entry.name))
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        found |= more
        grown = bool(more)
    return list(found)


def _memory_of(pid: int) -> int:
    """Return a process's part of the memory it uses: what several share is divided among them."""
    with suppress(OSError, ValueError, IndexError):
        rolled_up = _lines(f"/proc/{pid}/smaps_rollup")
        return sum(int(line.split()[1]) * 1024 for line in rolled_up if line.startswith(("Pss:", "SwapPss:")))
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
