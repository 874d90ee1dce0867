"""Run a program in a process group of its own, so that ending it ends everything it started.

A program is bounded in time, in what it may print and in what `watching` watches. When the fork is aborted the whole
group is killed before the cancellation goes on. Should the daemon itself be killed, a guard inside the group notices
that the pipe to it has closed, and kills the group. When the host runs out of memory, commands go first.

A kill of a group reaches those it is about to fork, so a program that multiplies ends with one kill. What leaves its
session (``setsid``) leaves the group too. In a sandbox that helps nobody: the first process inside dies with the group,
the kernel kills all others with it, and they are waited for. Outside of one, a fence finds them where the host has it.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import signal
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol

from nexofork.policy.paths import remove_tree
from nexofork.sandbox.run_sandbox import open_filter
from nexofork.tools.limits import Limits, Watch, fenced
from nexofork.tools.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nexofork.sandbox.run_sandbox import Enclosure
    from nexofork.tools.limits import Fence

__all__ = ["Ended", "Limits", "Output", "Sink", "minimal_environment", "run_command", "temporary_home"]

# The guard reads from a pipe that only the daemon can write to, and never does: the read ends when the daemon does.
# Descriptors that the daemon was started with are closed, because the loop passes them on.
_GUARDED = r"""
(read -r -u "$1" _; kill -KILL 0) </dev/null >/dev/null 2>&1 &
{ [ -z "$6" ] || echo "$$" >"$6"; } 2>/dev/null
ulimit -c 0 -v "$3" -d "$4" -f "$5"
{ echo 1000 >/proc/self/oom_score_adj; } 2>/dev/null
for fd in /proc/self/fd/*; do
    fd=${fd##*/}
    case $fd in 0 | 1 | 2 | *[!0-9]*) continue ;; esac
    case " $2 " in *" $fd "*) ;; *) eval "exec $fd>&-" ;; esac
done
shift 6
exec "$@"
"""
_NO_HOME = "/nonexistent"
_CHUNK_BYTES = 64 * 1024
_LOOK_EVERY_S = 0.2
_COUNT_S = 60.0
_GONE_S = 10.0


class Sink(Protocol):
    """Takes what is printed."""

    def add(self, chunk: bytes) -> bool:
        """Take a piece; False means that no more is wanted."""


class Output:
    """Keeps the start and the end of what is printed, half each."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, chunk: bytes) -> bool:
        """Keep what there is room for."""
        room = self._half - len(self._head)
        self._head += chunk[:room] if room > 0 else b""
        self._tail += chunk[max(room, 0) :]
        surplus = len(self._tail) - self._half
        if surplus > 0:
            self._dropped += surplus
            del self._tail[:surplus]
        return True

    def text(self) -> str:
        """Return what was kept; what was not is counted in its place."""
        gap = f"\n[{self._dropped} bytes left out]\n".encode() if self._dropped else b""
        return (bytes(self._head) + gap + bytes(self._tail)).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended."""

    code: int
    killed: str | None = None
    """Which limit it was killed at, in words."""
    enough: bool = False
    """It was ended because nobody wanted more of what it prints."""


async def run_command(
    argv: Sequence[str],
    *,
    output: Sink,
    errors: Sink | None = None,
    cwd: str | Path | None = None,
    environment: dict[str, str] | None = None,
    limits: Limits,
    sandbox: Enclosure | None = None,
    readable: Sequence[str] = (),
) -> Ended:
    """Run a program to its end.

    Args:
        argv: The program and its arguments.
        output: Takes what it prints.
        errors: Takes what it prints as errors; left out, that goes to `output` too, in order.
        cwd: Where it runs; None is where the daemon does, or the sandbox's own folder.
        environment: What it sees of the environment; None is a minimal one, without the daemon's secrets and without a
            home that it could write to.
        limits: What it may use.
        sandbox: What it runs in; None is bare.
        readable: Folders of the host that it needs in the sandbox to run at all.

    Raises:
        OSError: It could not be started.
        ValueError: Likewise: there is a NUL among the arguments.
    """
    sinks = [output] if errors is None else [output, errors]
    if sandbox is not None:
        await in_thread(lambda _: sandbox.meter.begin(), limit_s=_COUNT_S)
    with ExitStack() as ours:
        fence = ours.enter_context(fenced(limits))
        alive, told = (_Pipe(ours, ours) for _ in range(2))
        kept: tuple[int, ...] = ()
        if sandbox is not None:
            filters = ours.enter_context(open_filter())
            argv = sandbox.command(argv, cwd=cwd, readable=readable, info_fd=told.writing, filter_fds=filters)
            cwd, kept = "/", (told.writing, *filters, *sandbox.descriptors)
        if environment is None:
            environment = minimal_environment(_NO_HOME if sandbox is None else "/tmp")
        with ExitStack() as theirs:
            # Pipes of our own: a loop may use sockets instead, and then a command cannot open /dev/stderr.
            pipes = [_Pipe(ours, theirs) for _ in sinks]
            process = await asyncio.create_subprocess_exec(
                *("/bin/bash", "-c", _GUARDED, "bash", str(alive.reading), " ".join(map(str, kept))),
                *(*_ulimits(limits, sandbox), fence.door, *argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=pipes[0].writing,
                stderr=pipes[-1].writing,
                cwd=cwd,
                env=environment,
                start_new_session=True,
                pass_fds=(alive.reading, *kept),
            )
        running = _Running(process, limits, sandbox=sandbox, told=told.reading, fence=fence)
        return await running.ended([(pipe.reading, sink) for pipe, sink in zip(pipes, sinks, strict=True)])


class _Pipe:
    """A pipe; each end is closed once, by its owner and by nothing else.

    A transport of the loop would close the end it reads as well, and the second close may hit a descriptor that another
    thread has opened in between. So the ends are read here, and the loop only tells when there is something to read.
    """

    def __init__(self, reader: ExitStack, writer: ExitStack) -> None:
        self.reading, self.writing = os.pipe()
        reader.callback(os.close, self.reading)
        writer.callback(os.close, self.writing)


def _ulimits(limits: Limits, sandbox: Enclosure | None) -> list[str]:
    """Address space, data and file size in kilobytes, as the shell's ``ulimit`` takes them."""
    sizes = (limits.memory_bytes, limits.resident_bytes, sandbox.meter.limit if sandbox else None)
    return ["unlimited" if size is None else str(size // 1024) for size in sizes]


class _Running:
    """A program under way."""

    def __init__(
        self, process: asyncio.subprocess.Process, limits: Limits, *, sandbox: Enclosure | None, told: int, fence: Fence
    ) -> None:
        self._process = process
        self._fence = fence
        self._sandbox = sandbox
        self._told = told
        self._limits = limits
        self._uses = Watch(limits, process.pid, fence)
        self._left = limits.printed_bytes
        self._killed: str | None = None
        self._enough = False
        self._over = False

    async def ended(self, printed: Sequence[tuple[int, Sink]]) -> Ended:
        async with asyncio.TaskGroup() as tasks:
            for descriptor, sink in printed:
                tasks.create_task(self._read(descriptor, sink))
            watching = tasks.create_task(self._watch())
            try:
                async with asyncio.timeout(self._limits.time_s):
                    await _exited(self._process)
            except TimeoutError:
                self._kill(f"it ran longer than {self._limits.time_s:g} s")
            finally:
                watching.cancel()
                # Ends the reading too: a background job may hold the pipe open long after the command is done.
                await self._end_group()
        if self._killed is None and self._fence.ran_out_of_memory():
            self._killed = self._uses.too_much_memory
        assert self._process.returncode is not None, "it was waited for"
        return Ended(code=self._process.returncode, killed=self._killed, enough=self._enough)

    async def _read(self, descriptor: int, sink: Sink) -> None:
        """Take what is printed until every writer is gone."""
        loop, more = asyncio.get_running_loop(), asyncio.Event()
        os.set_blocking(descriptor, False)
        loop.add_reader(descriptor, more.set)
        try:
            while True:
                await more.wait()
                try:
                    chunk = os.read(descriptor, _CHUNK_BYTES)
                except BlockingIOError:
                    more.clear()
                    continue
                if not chunk:
                    return
                self._left -= len(chunk)
                if not sink.add(chunk):
                    self._enough = True
                    self._kill(None)
                    return
                if self._left < 0:
                    self._kill(f"it printed more than {self._limits.printed_bytes} bytes")
                    return
                await asyncio.sleep(0)  # a program that prints without end does not hold the loop
        finally:
            loop.remove_reader(descriptor)

    async def _watch(self) -> None:
        """Kill a program that uses more than it may."""
        meter = self._sandbox.meter if self._sandbox else None
        while self._killed is None:
            await asyncio.sleep(_LOOK_EVERY_S)
            if self._uses.suspicious():
                self._kill_for(await in_thread(lambda _: self._uses.problem(), limit_s=_COUNT_S))
            if meter and meter.suspicious():
                self._kill_for(await in_thread(lambda _: meter.problem(self._uses), limit_s=_COUNT_S))

    def _kill_for(self, problem: str | None) -> None:
        if problem is not None:
            self._kill(problem)

    def _kill(self, why: str | None) -> None:
        if self._over:
            return  # the group's number may belong to somebody else by now
        self._killed = self._killed or why
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._fence.clear()

    async def _end_group(self) -> None:
        """Kill what is left of the command's group: background jobs outlive neither it nor the fork."""
        self._kill(None)
        self._over = True
        await asyncio.shield(self._process.wait())
        if self._sandbox is not None:
            await asyncio.shield(self._end_sandbox())
            self._sandbox.meter.forget(self._uses)

    async def _end_sandbox(self) -> None:
        """Return when nothing runs inside any more.

        Whoever is first inside was told to us before he could leave the group that is dead by now, so none escapes.
        """
        os.set_blocking(self._told, False)
        with suppress(BlockingIOError, ValueError, KeyError, ProcessLookupError, TimeoutError):
            descriptor = os.pidfd_open(json.loads(os.read(self._told, 4096))["child-pid"])
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                async with asyncio.timeout(_GONE_S):
                    await _over(descriptor)
            finally:
                os.close(descriptor)


async def _exited(process: asyncio.subprocess.Process) -> None:
    """Return when the command itself is over; `Process.wait` may wait for everybody who holds its output too."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        await _over(descriptor)
    finally:
        os.close(descriptor)


async def _over(descriptor: int) -> None:
    """Return when the process behind a descriptor has ended; the first one of a sandbox ends last."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(descriptor)


def minimal_environment(home: str) -> dict[str, str]:
    """Return what a command sees of the environment: nothing of the daemon's."""
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": home}


@cache
def temporary_home() -> str:
    """Return a home for bare commands of a process that has no state folder; it is gone when the process ends.

    Only this user can write to it: files that other users put into ``/tmp`` must not configure a command. A process
    that is killed leaves it. A daemon has its home in its state folder instead, where its next start removes it.
    """
    home = tempfile.mkdtemp(prefix="nexofork-home-")
    atexit.register(remove_tree, home)
    return home
