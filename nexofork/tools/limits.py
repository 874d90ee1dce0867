"""What a command may use, and whether it does.

Processes and memory are watched from outside. RLIMIT_NPROC counts all processes of a user, the daemon's and those of
other forks among them, and does not bind root; limits on memory are per process. A look at the host's totals costs two
short reads, and the command's own processes are counted when the totals have moved by as much as would matter, and now
and then.

Memory is more than what processes have mapped: a file in memory (``memfd_create``, shared memory) lasts as long as a
descriptor or a mapping of it. So does a deleted file on a disk.

A fork bomb makes thousands of processes between two looks, and then the host is too busy for the next look. Some memory
cannot be seen from outside at all, such as a file in memory on its way between two processes. So where this process may
make control groups, the kernel stops a program at its memory, and at a few times its processes until the look that ends
it. A group also counts a program's processes in one read, and knows them wherever they have gone. Groups can be made as
root, and in a group that was delegated to this process (``Delegate=`` of a systemd unit). A group that has groups
inside cannot hold processes, so this process moves into one of its own there.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import stat
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

__all__ = ["Fence", "Limits", "Watch", "delegated", "fenced", "half_of_memory"]

_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_COUNT_EVERY_S = 2.0
_COUNT_SHARE = 20
_ENTER_S = 5.0
_NS_GET_USERNS = 0xB701
_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})

_File: TypeAlias = tuple[int, int]
"""A file's device and number."""
_ROOTS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
_MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
_CONTROLLERS = ("memory", "pids")
_NAME = "nexofork"
_ROOM = 500
_SWEEPS = 100
_numbers = itertools.count(1)


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
        self._due = time.monotonic() + _COUNT_EVERY_S

    def suspicious(self) -> bool:
        """Whether it is time to count; costs next to nothing."""
        limits = self._limits
        fenced = self._fence.count()
        if (fenced if fenced is not None else _threads_on_host() - self._threads) >= limits.processes:
            return True
        if fenced and self._fence.limits_memory:
            return False
        much = 2 * (self._available - _available_on_host()) >= limits.resident_bytes
        return much or time.monotonic() >= self._due

    def problem(self) -> str | None:
        """Count, and return which limit it is over, in words; may take a while."""
        limits, begun = self._limits, time.monotonic()
        pids = self.processes()
        if len(pids) > limits.processes:
            return f"it had more than {limits.processes} processes at once"
        if not (self._fence.limits_memory and self._fence.count()) and _memory_of(pids) > limits.resident_bytes:
            return self.too_much_memory
        now = time.monotonic()
        self._due = now + max(_COUNT_EVERY_S, _COUNT_SHARE * (now - begun))
        return None

    @property
    def too_much_memory(self) -> str:
        """What is said of a program that used too much."""
        return f"it used more than {self._limits.resident_bytes} bytes of memory"

    def processes(self) -> list[int]:
        """Return the program's living processes."""
        return list(_processes_of(self._leader) | set(self._fence.processes()))

    def deleted_bytes(self) -> int:
        """Return how much of a disk is taken by deleted files that its processes still hold; may take a while."""
        held = _held_by(self.processes()).values()
        return sum(
            found.st_blocks * 512
            for found in held
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 0 and found.st_dev not in _memory_devices()
        )


def _threads_on_host() -> int:
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return 0


def _available_on_host() -> int:
    with suppress(OSError, ValueError, StopIteration):
        return next(int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemAvailable:"))
    return 0


def _processes_of(leader: int) -> set[int]:
    """Return the living processes of a leader's session, and all that descend from it."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError, ValueError, IndexError):
            fields = Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] != "Z" or int(fields[17]) > 1:  # the first thread may end before the others
                parents[int(name)] = int(fields[1])
                if leader in (int(name), int(fields[1]), int(fields[3])):
                    found.add(int(name))
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        found |= more
        grown = bool(more)
    return found


def _memory_of(pids: list[int]) -> int:
    """Return the memory that processes use together, with the files in memory that they hold."""
    devices = _memory_devices()
    files = {key: found.st_blocks * 512 for key, found in _held_by(pids).items() if found.st_dev in devices}
    for key, size in _segments_of(pids).items():
        files[key] = max(size, files.get(key, 0))
    return sum(files.values()) + sum(_mapped_by(pid, files) for pid in pids)


def _held_by(pids: Iterable[int]) -> dict[_File, os.stat_result]:
    """Return the files that processes have open, execute or, where this user may know it, have mapped."""
    held: dict[_File, os.stat_result] = {}
    for pid in pids:
        for path in _links_of(pid):
            with suppress(OSError):
                found = os.stat(path)
                held[found.st_dev, found.st_ino] = found
    return held


def _links_of(pid: int) -> Iterator[str]:
    yield f"/proc/{pid}/exe"
    folders = [f"/proc/{pid}/map_files"]
    with suppress(OSError):
        # A thread may have descriptors of its own.
        folders += [f"/proc/{pid}/task/{thread}/fd" for thread in os.listdir(f"/proc/{pid}/task")]
    for folder in folders:
        with suppress(OSError):
            yield from (f"{folder}/{name}" for name in os.listdir(folder))


def _mapped_by(pid: int, without: Container[_File]) -> int:
    """Return a process's part of the memory it has mapped: what several share is divided among them."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # the first one may have ended, and then has none
            with suppress(OSError, ValueError, IndexError):
                if lines := _lines(f"/proc/{pid}/task/{thread}/smaps"):
                    return _sum_of(lines, without)
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _sum_of(lines: Iterable[str], without: Container[_File]) -> int:
    total, counts = 0, True
    for line in lines:
        if not line[:1].isupper():  # where a mapping is, and of what
            device, number = line.split(None, 5)[3:5]
            major, minor = (int(part, 16) for part in device.split(":"))
            counts = (os.makedev(major, minor), int(number)) not in without
        elif counts and line.startswith(("Pss:", "SwapPss:")):
            total += int(line.split()[1]) * 1024
    return total


def _segments_of(pids: list[int]) -> dict[_File, int]:
    """Return System V shared memory, which lasts without any process that has it mapped, and its size in bytes.

    In a sandbox all of it is the command's. Outside it is what living processes of the command made.
    """
    found: dict[_File, int] = {}
    spaces: dict[str, int] = {}
    for pid in pids:
        with suppress(OSError):
            spaces[os.readlink(f"/proc/{pid}/ns/ipc")] = pid
    with suppress(OSError, ValueError, IndexError, subprocess.SubprocessError):
        ours = os.readlink("/proc/self/ns/ipc")
        for space, pid in spaces.items():
            names, *rows = map(str.split, _lines("/proc/sysvipc/shm") if space == ours else _seen_by(pid))
            for row in (dict(zip(names, words, strict=True)) for words in rows):
                if space != ours or int(row["cpid"]) in pids:
                    found[_shared_memory(), int(row["shmid"])] = int(row["rss"]) + int(row["swap"])
    return found


def _seen_by(pid: int) -> list[str]:
    """Return the table of segments in a sandbox, which is shown only to processes in it."""
    space = os.open(f"/proc/{pid}/ns/ipc", os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Rights over it come with the user namespace that made it, which is not the one that commands are in.
        owner = fcntl.ioctl(space, _NS_GET_USERNS)
        try:
            entered = ("nsenter", f"--user=/proc/self/fd/{owner}", f"--ipc=/proc/self/fd/{space}")
            shown = subprocess.run(
                (*entered, "--preserve-credentials", "cat", "/proc/sysvipc/shm"),
                capture_output=True,
                text=True,
                check=True,
                timeout=_ENTER_S,
                stdin=subprocess.DEVNULL,
                pass_fds=(owner, space),
            )
        finally:
            os.close(owner)
    finally:
        os.close(space)
    return shown.stdout.splitlines()


@cache
def _shared_memory() -> int:
    """Return the device of files in memory that have no name, as those of ``memfd_create``."""
    descriptor = os.memfd_create("nexofork")
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)


@cache
def _memory_devices() -> frozenset[int]:
    """Return the devices whose files are memory."""
    found = {_shared_memory()}
    for line in _lines("/proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        if after.split()[0] in _IN_MEMORY:
            major, minor = before.split()[2].split(":")
            found.add(os.makedev(int(major), int(minor)))
    return frozenset(found)


def _lines(path: str) -> list[str]:
    return Path(path).read_text(errors="replace").splitlines()


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
