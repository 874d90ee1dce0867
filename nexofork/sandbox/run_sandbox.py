"""One run's sandbox: what its tools see, what its commands may ask the kernel for, and how a command gets into it.

Not all that a kernel has is in a namespace. A keyring is inherited, so a command could read the daemon's keys and leave
some for other runs. A socket of a virtual machine's host (``AF_VSOCK``) does not go through the network. A file that is
run with its owner's rights (set-user-ID) keeps them outside, where the owner is the daemon's user. A filter of system
calls refuses these, and those that are seldom needed and have often been a way into the kernel.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from nexofork.sandbox.mounts import within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from nexofork.sandbox.mounts import View
    from nexofork.sandbox.run_folder import DiskMeter

__all__ = ["Enclosure", "open_filter"]

_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _EQUALS, _AT_LEAST, _HAS_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
"""Where the kernel has what it shows a filter: the call's number, the machine, and arguments of 8 bytes each."""
_OTHER_NUMBERS = 0x40000000
"""From here on x86_64 has a second set of numbers, which hardly any program uses."""
_CREATES = os.O_CREAT | 0o20000000
"""Flags that make a file; the other is of ``O_TMPFILE``."""
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Calls:
    """The system calls of one kind of machine."""

    machine: int
    refused: tuple[int, ...]
    """Keyrings, io_uring, bpf, perf_event_open, userfaultfd, memfd_secret, open_by_handle_at; and openat2, whose mode
    a filter cannot see."""
    modes: dict[int, int]
    """Those that give a file a mode: chmod, creat, mknod and the like, with the mode's place among the arguments."""
    opens: dict[int, int]
    """Those that do so if their flags say it: the place of the flags, which the mode follows."""
    socket: int


_EVERYWHERE = (425, 426, 427, 437, 447)
_CALLS = {
    "x86_64": _Calls(
        machine=0xC000003E,
        refused=(248, 249, 250, 298, 304, 321, 323, *_EVERYWHERE),
        modes={85: 1, 90: 1, 91: 1, 133: 1, 259: 2, 268: 2, 452: 2},
        opens={2: 1, 257: 2},
        socket=41,
    ),
    "aarch64": _Calls(
        machine=0xC00000B7,
        refused=(217, 218, 219, 241, 265, 280, 282, *_EVERYWHERE),
        modes={33: 2, 52: 1, 53: 2, 452: 2},
        opens={56: 2},
        socket=198,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosure:
    """One run's sandbox."""

    program: str
    options: tuple[str, ...]
    """What makes the sandbox, without where in it to run and what."""
    view: View
    cwd: Path
    """Where commands run and relative paths start."""
    own: tuple[str, ...]
    """The folders that the run may change."""
    meter: DiskMeter
    descriptors: tuple[int, ...] = ()
    """What the options refer to: the program needs them, and closes them before it runs a command."""

    def command(
        self,
        argv: Sequence[str],
        *,
        cwd: str | Path | None = None,
        readable: Sequence[str] = (),
        info_fd: int,
        filter_fds: Sequence[int] = (),
    ) -> list[str]:
        """Return the command line that runs another inside.

        Args:
            argv: The program and its arguments, as seen inside.
            cwd: Where it runs, inside.
            readable: Further folders of the host that it needs to run at all.
            info_fd: Where to write which process is the first one inside.
            filter_fds: Where to read the filter of system calls; at most one.
        """
        more = [word for path in readable if not self.sees(path) for word in ("--ro-bind", path, path)]
        return [
            self.program,
            *("--info-fd", str(info_fd)),
            *(word for descriptor in filter_fds for word in ("--seccomp", str(descriptor))),
            *self.options,
            *more,
            # Last of all. /dev and / are made of memory, so they must not grow. Outside, a command is the daemon's
            # user: root's could write to /proc/sys, and so change the host.
            *(word for path in ("/proc", "/dev", "/") for word in ("--remount-ro", path)),
            *("--chdir", str(cwd or self.cwd), "--", *argv),
        ]

    def sees(self, path: str) -> bool:
        """Whether what the host has at a canonical path is there inside as well."""
        return any(within(path, mount.inside) and mount.inside == mount.outside for mount in self.view.mounts)


@contextmanager
def open_filter() -> Iterator[tuple[int, ...]]:
    """Open the filter of system calls, to be read once; there is none for a machine whose calls are not known."""
    machine = os.uname().machine
    if machine not in _CALLS:
        yield ()
        return
    with os.fdopen(os.memfd_create("filter"), "w+b", buffering=0) as file:
        file.write(_program(machine))
        file.seek(0)
        yield (file.fileno(),)


@cache
def _program(machine: str) -> bytes:
    """Return the filter as the kernel takes it; programs for another machine are ended."""
    calls = _CALLS[machine]
    steps = [_load(_MACHINE), _step(_EQUALS, calls.machine, yes=1), _step(_RETURN, _KILL), _load(_NUMBER)]
    steps += [_step(_AT_LEAST, _OTHER_NUMBERS, no=1), _refusal(errno.ENOSYS)]
    for number in calls.refused:
        steps += [_step(_EQUALS, number, no=1), _refusal(errno.ENOSYS)]
    for number, at in calls.modes.items():
        steps += _only_for(number, _without_set_uid(at))
    for number, at in calls.opens.items():
        flags = [_load(_ARGUMENTS + 8 * at), _step(_HAS_BIT, _CREATES, yes=1), _step(_RETURN, _ALLOW)]
        steps += _only_for(number, [*flags, *_without_set_uid(at + 1)])
    known = [word for one in _FAMILIES for word in (_step(_EQUALS, one, no=1), _step(_RETURN, _ALLOW))]
    steps += _only_for(calls.socket, [_load(_ARGUMENTS), *known, _refusal(errno.EAFNOSUPPORT)])
    return b"".join([*steps, _step(_RETURN, _ALLOW)])


def _only_for(number: int, steps: list[bytes]) -> list[bytes]:
    """Steps that decide about one system call."""
    return [_step(_EQUALS, number, no=len(steps)), *steps]


def _without_set_uid(at: int) -> list[bytes]:
    """Allow a call unless the mode among its arguments has the set-user-ID bit."""
    bit = _step(_HAS_BIT, stat.S_ISUID, no=1)
    return [_load(_ARGUMENTS + 8 * at), bit, _refusal(errno.EPERM), _step(_RETURN, _ALLOW)]


def _load(offset: int) -> bytes:
    return _step(_LOAD, offset)


def _refusal(error: int) -> bytes:
    return _step(_RETURN, _REFUSE | error)


def _step(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    """One instruction; the last two say how many to leave out."""
    return struct.pack("=HBBI", code, yes, no, value)
