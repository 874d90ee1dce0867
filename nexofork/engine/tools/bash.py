"""Run a shell command in a process group of its own, so that ending it ends everything it started.

A command is bounded in time and in what it may print. When the fork is aborted the whole group is killed before the
cancellation goes on. Should the daemon itself be killed, a guard inside the group notices that the pipe to it has
closed, and kills the group.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexofork.engine.dispatch import ToolOutcome

if TYPE_CHECKING:
    from io import FileIO
    from pathlib import Path

__all__ = ["BashTool"]

# The guard reads from a pipe that only the daemon can write to, and never does: the read ends when the daemon does.
_GUARDED = '(read -r -u "$1" _; kill -KILL 0) </dev/null >/dev/null 2>&1 & eval "exec $1<&-"; exec /bin/bash -c "$2"'


@dataclass(frozen=True, slots=True, kw_only=True)
class BashTool:
    """The ``Bash`` tool: ``{"command": …, "timeout_s": …}``."""

    cwd: Path | None = None
    """Where commands run; None is where the daemon does."""
    environment: dict[str, str] | None = None
    """What commands see of the environment; None is a minimal one without the daemon's secrets."""
    timeout_s: float = 120.0
    max_output_bytes: int = 256 * 1024
    """What is kept of the output: its start and its end, half each."""

    async def run(self, arguments: dict[str, Any]) -> ToolOutcome:
        """Run one command and return what it printed and how it ended."""
        command = arguments.get("command")
        if not isinstance(command, str) or not command.strip():
            return ToolOutcome(content="Bash needs a `command` that is a non-empty string.", is_error=True)
        limit_s = arguments.get("timeout_s", self.timeout_s)
        if not isinstance(limit_s, (int, float)) or isinstance(limit_s, bool) or limit_s <= 0:
            return ToolOutcome(content="`timeout_s` has to be a number above 0.", is_error=True)
        return await self._run(command, min(float(limit_s), self.timeout_s))

    async def _run(self, command: str, limit_s: float) -> ToolOutcome:
        # Pipes of our own: a loop may use sockets instead, and then a command cannot open /dev/stderr.
        output, printing = os.pipe()
        reading, writing = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *("/bin/bash", "-c", _GUARDED, "bash", str(reading), command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=printing,
                stderr=printing,
                cwd=self.cwd,
                env=self.environment if self.environment is not None else _minimal_environment(),
                start_new_session=True,
                pass_fds=(reading,),
            )
        except (OSError, ValueError) as exc:
            os.close(writing)
            os.close(output)
            return ToolOutcome(content=f"Bash could not be started: {exc}", is_error=True)
        finally:
            os.close(reading)
            os.close(printing)
        try:
            return await self._finished(process, limit_s, os.fdopen(output, "rb", buffering=0))
        finally:
            os.close(writing)

    async def _finished(self, process: asyncio.subprocess.Process, limit_s: float, printed: FileIO) -> ToolOutcome:
        output = _Output(self.max_output_bytes)
        timed_out = False
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_read(printed, output))
            try:
                async with asyncio.timeout(limit_s):
                    await _exited(process)
            except TimeoutError:
                timed_out = True
            finally:
                # Ends the reading too: a background job may hold the pipe open long after the command is done.
                await _end_group(process)
        if timed_out:
            return ToolOutcome(content=f"{output.text()}\n[killed: it ran longer than {limit_s:g} s]", is_error=True)
        if process.returncode == 0:
            return ToolOutcome(content=output.text())
        return ToolOutcome(content=f"{output.text()}\n[exit code {process.returncode}]".lstrip("\n"), is_error=True)


class _Output:
    """Keeps the start and the end of what is printed."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, chunk: bytes) -> None:
        room = self._half - len(self._head)
        self._head += chunk[:room] if room > 0 else b""
        self._tail += chunk[max(room, 0) :]
        surplus = len(self._tail) - self._half
        if surplus > 0:
            self._dropped += surplus
            del self._tail[:surplus]

    def text(self) -> str:
        gap = f"\n[{self._dropped} bytes left out]\n".encode() if self._dropped else b""
        return (bytes(self._head) + gap + bytes(self._tail)).decode("utf-8", "replace")


async def _read(printed: FileIO, output: _Output) -> None:
    """Take what is printed until nobody can print any more."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), printed
    )
    try:
        while chunk := await reader.read(64 * 1024):
            output.add(chunk)
    finally:
        transport.close()


async def _exited(process: asyncio.subprocess.Process) -> None:
    """Return when the command itself is over; `Process.wait` may wait for everybody who holds its output too."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """Kill what is left of the command's group: background jobs outlive neither it nor the fork."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await asyncio.shield(process.wait())


def _minimal_environment() -> dict[str, str]:
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/tmp"}
