"""A person's keys: one at a time as commands, and whole lines where something is asked.

Input is read as it comes and without a thread, so that Ctrl-C, the end of a run or an answer from elsewhere ends the
asking at once. What is typed before a question is shown is not taken for its answer. The terminal is as it was when
this is left, however that happens.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import termios
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

__all__ = ["Keyboard", "at_a_terminal"]

_READ_BYTES = 4096
_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)
_LOCAL_MODES, _CHARACTERS = 3, 6
"""Where `termios` keeps them in what it returns."""


def at_a_terminal() -> bool:
    """Whether a person can be shown something and type an answer."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    try:
        # Who reads from a terminal in the background is stopped by it.
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:
        return False


class Keyboard:
    """Reads stdin, which is a terminal, while it is open."""

    def __init__(self, on_key: Callable[[str], object], *, on_released: Callable[[], object] = lambda: None) -> None:
        """Make one.

        Args:
            on_key: Called with each key while no line is asked for.
            on_released: Called when a line was, and nothing is being typed any more.
        """
        self.typing = False
        """Whether somebody is in the middle of a line, which nothing should be printed into."""
        self._on_key = on_key
        self._on_released = on_released
        self._turn = asyncio.Lock()
        self._line: asyncio.Future[bytes] | None = None
        self._descriptor = sys.stdin.fileno()
        self._usual: list[Any] = []

    @contextmanager
    def open(self) -> Iterator[None]:
        """Take the terminal's keys for as long as the block lasts."""
        loop = asyncio.get_running_loop()
        self._usual = termios.tcgetattr(self._descriptor)
        loop.add_reader(self._descriptor, self._ready)
        # The shell may have set the terminal to its own liking meanwhile.
        loop.add_signal_handler(signal.SIGCONT, self._apply)
        self._apply()
        try:
            yield
        finally:
            loop.remove_reader(self._descriptor)
            loop.remove_signal_handler(signal.SIGCONT)
            with suppress(termios.error):
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._usual)

    @asynccontextmanager
    async def lines(self) -> AsyncIterator[Callable[[str], Awaitable[str | None]]]:
        """Have the keyboard to oneself; yields what asks for a line, and returns None where there is none (Ctrl-D)."""
        async with self._turn:
            self.typing = True
            self._apply(termios.TCSAFLUSH)
            try:
                yield self._ask
            finally:
                self.typing = False
                self._apply()
                self._on_released()

    async def _ask(self, prompt: str) -> str | None:
        click.echo(prompt, err=True, nl=False)
        self._line = asyncio.get_running_loop().create_future()
        try:
            data = await self._line
        except asyncio.CancelledError:
            click.echo(err=True)
            raise
        finally:
            self._line = None
        if not data:
            click.echo(err=True)
        return data.decode("utf-8", "replace").strip() if data else None

    def _ready(self) -> None:
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except OSError:
            data = b""
        if self._line is not None and not self._line.done():
            self._line.set_result(data)
        elif not data:
            asyncio.get_running_loop().remove_reader(self._descriptor)  # the terminal is gone
        elif not self.typing and (keys := _SEQUENCE.sub(b"", data).decode("utf-8", "replace")):
            # An arrow key is no command, although its last character looks like one; of a paste the first one decides.
            self._on_key(keys[0])

    def _apply(self, when: int = termios.TCSADRAIN) -> None:
        """Set the terminal to lines while one is asked for, else to keys; Ctrl-C and Ctrl-Z work in both."""
        modes = [*self._usual[:_CHARACTERS], list(self._usual[_CHARACTERS])]
        if not self.typing:
            modes[_LOCAL_MODES] &= ~(termios.ICANON | termios.ECHO)
            modes[_CHARACTERS][termios.VMIN], modes[_CHARACTERS][termios.VTIME] = 1, 0
        if at_a_terminal():  # else it is somebody else's now, and setting it would stop us
            with suppress(termios.error):
                termios.tcsetattr(self._descriptor, when, modes)
