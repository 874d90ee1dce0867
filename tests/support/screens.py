"""A program at a terminal of its own, typed to and read as a person would."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from typing import TYPE_CHECKING, Self

from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["CTRL_B", "CTRL_C", "CTRL_D", "AtTerminal"]

CTRL_B, CTRL_C, CTRL_D = "\x02", "\x03", "\x04"
_READ_BYTES = 65_536


class AtTerminal:
    """A process whose controlling terminal is ours; it is killed at the end of the block."""

    def __init__(self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> None:
        self._command = command
        self._cwd = cwd
        self._env = env
        self._news = asyncio.Event()
        self._unread = 0
        self.shown = ""
        """Everything it has printed, and the echo of what was typed."""

    async def __aenter__(self) -> Self:
        self._side, theirs = os.openpty()
        # Only a session's own terminal turns Ctrl-C into a signal.
        self.process = subprocess.Popen(  # noqa: ASYNC220 - asyncio's own would wait for the terminal to close
            ["setsid", "--ctty", *self._command],
            cwd=self._cwd,
            env=self._env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        asyncio.get_running_loop().add_reader(self._side, self._read)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.hang_up()
        self.process.kill()
        self.process.wait()

    def type(self, line: str) -> None:
        """Type a line and Return."""
        self.press(line + "\n")

    def press(self, keys: str) -> None:
        """Press keys."""
        os.write(self._side, keys.encode())

    def hang_up(self) -> None:
        """Close the terminal."""
        if self._side >= 0:
            asyncio.get_running_loop().remove_reader(self._side)
            os.close(self._side)
            self._side = -1

    async def until(self, pattern: str) -> re.Match[str]:
        """Return what is shown that matches, behind what was waited for before."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while (found := re.compile(pattern).search(self.shown, self._unread)) is None:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{pattern!r} was not shown:\n{self.shown}") from None
        self._unread = found.end()
        return found

    async def ended(self) -> int:
        """Return the exit code, once it has ended."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while self.process.poll() is None:  # noqa: ASYNC110 - nothing announces it
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"it did not end:\n{self.shown}") from None
        return self.process.returncode

    def _read(self) -> None:
        try:
            data = os.read(self._side, _READ_BYTES)
        except OSError:
            data = b""  # all who had it open are gone
        if not data:
            asyncio.get_running_loop().remove_reader(self._side)
        self.shown += data.decode(errors="replace").replace("\r\n", "\n")
        self._news.set()
