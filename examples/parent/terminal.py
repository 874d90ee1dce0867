"""A person at a terminal: lines as they are typed, Ctrl-B, and questions that are answered one at a time.

The terminal itself edits the line (backspace, Ctrl-U), turns Ctrl-C into a signal, and is told to hand a line over at
Ctrl-B as it does at Return. So nothing waits in a thread, and whatever waits for a person can be cancelled.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import termios
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from nexofork import PermissionAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nexofork import PermissionAsk

__all__ = ["CTRL_B", "Terminal", "plain"]

CTRL_B = "\x02"
_CONTROL = 6
_READ_BYTES = 4096
_SHOWN = 4_000


def plain(text: str) -> str:
    """Return a text without control characters: models write it, and a terminal obeys them."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)


class Terminal:
    """Standard input and output of this process."""

    def __init__(self, *, who: Callable[[str], str] = lambda run_id: run_id) -> None:
        self._who = who
        """Names a run to a person."""
        self._arrived: asyncio.Queue[str | None] = asyncio.Queue()
        self._partial = b""
        self._answer: asyncio.Future[str | None] | None = None
        self._choices = ""
        self._one_question = asyncio.Lock()
        self._asks_nothing = False
        self._at_margin = True

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Read from the terminal; it is as it was at the end."""
        descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()
        before = termios.tcgetattr(descriptor)
        ours: list[Any] = termios.tcgetattr(descriptor)
        ours[_CONTROL][termios.VEOL] = CTRL_B.encode()
        termios.tcsetattr(descriptor, termios.TCSADRAIN, ours)
        loop.add_reader(descriptor, self._read, descriptor)
        try:
            yield
        finally:
            loop.remove_reader(descriptor)
            with suppress(termios.error):  # it may have been closed
                termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

    async def line(self) -> str | None:
        """Return the next line that answers no question; Ctrl-B alone for that key, None once nothing more comes."""
        return await self._arrived.get()

    def show(self, text: str, *, end: str = "\n") -> None:
        """Print something that begins on a line of its own; an open question stays in sight below it."""
        self.stream(("" if self._at_margin else "\n") + text + end)
        if self._answer is not None and not self._answer.done() and end:
            self.stream(self._choices)

    def stream(self, text: str) -> None:
        """Print a piece of a text as it comes."""
        if not text:
            return
        self._at_margin = text.endswith("\n")
        data = plain(text).encode(errors="replace")
        with suppress(OSError):  # nobody looks any more, and a signal says so
            while data:
                data = data[os.write(sys.stdout.fileno(), data) :]

    def prompt(self) -> None:
        """Say that a line is expected."""
        self.show("> ", end="")

    async def ask(self, ask: PermissionAsk) -> PermissionAnswer:
        """Return what the person says to a tool call; an ``on_permission`` callback."""
        ends_at = time.monotonic() + ask.deadline_s
        async with self._one_question:
            answer = None if self._asks_nothing else await self._asked(ask, ends_at)
        if answer is None:
            await asyncio.Event().wait()  # until the end of the run that asks cancels this
        assert answer is not None
        return answer

    async def _asked(self, ask: PermissionAsk, ends_at: float) -> PermissionAnswer | None:
        """Return the person's answer; None where the question was withdrawn."""
        # What was typed before the question was shown is not its answer.
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        self.show(_question(self._who(ask.run_id), ask, left_s=max(0.0, ends_at - time.monotonic())))
        self._choices = f"Allow? y(es), n(o), n REASON{', a(lways)' if ask.rules else ''}: "
        while True:
            self.show(self._choices, end="")
            self._answer = asyncio.get_running_loop().create_future()
            try:
                said = await self._answer
            finally:
                self._answer = None
            if said is None:
                return None
            if (answer := _understood(said, ask)) is not None:
                return answer

    @contextmanager
    def unasked(self) -> Iterator[None]:
        """Ask nothing as long as the block lasts, and withdraw what is asked: whoever asks is being ended."""
        self._asks_nothing = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)
        try:
            yield
        finally:
            self._asks_nothing = False

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _READ_BYTES)
        except OSError:
            data = b""  # the terminal is gone
        if not data:
            asyncio.get_running_loop().remove_reader(descriptor)
            self._arrived.put_nowait(None)
            return
        self._at_margin = True
        *lines, self._partial = (self._partial + data).replace(CTRL_B.encode(), b"\n\x02\n").split(b"\n")
        for line in lines:
            if text := line.decode("utf-8", "replace").strip(" \t\r"):
                self._heard(text)

    def _heard(self, text: str) -> None:
        if self._answer is not None and not self._answer.done() and not text.startswith(("/", CTRL_B)):
            self._answer.set_result(text)
        else:
            self._arrived.put_nowait(text)


def _understood(line: str, ask: PermissionAsk) -> PermissionAnswer | None:
    word, _, reason = line.partition(" ")
    match word.lower():
        case "y" | "yes" if not reason:
            return PermissionAnswer(allow=True)
        case "n" | "no":
            return PermissionAnswer(allow=False, note=reason.strip())
        case "a" | "always" if ask.rules and not reason:
            return PermissionAnswer(allow=True, remember=True)
        case _:
            return None


def _question(who: str, ask: PermissionAsk, *, left_s: float) -> str:
    lines = [f"{who} asks to run {ask.name} ({left_s:.0f} s left)"]
    for key, value in ask.arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        more = f"… [{len(text) - _SHOWN} characters more]" if len(text) > _SHOWN else ""
        lines.append(f"  {key}: " + (text[:_SHOWN] + more).replace("\n", "\n    "))
    if ask.rules:
        lines.append(f"  always means: {', '.join(ask.rules)}")
    return "\n".join(lines)
