"""What a person at the terminal can do about the run they watch, by single keys."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from nexofork.cli.keyboard import Keyboard
from nexofork.cli.terminal import plain
from nexofork.errors import NexoforkError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexofork.client.handle import ForkHandle

__all__ = ["AttachKeys"]

_SHORT = "Keys: m message, b background, a abort, ? help"
_HELP = """  m  say something to the child; it reads it between two of its turns
  b  leave: the run goes on in the background (also q or Ctrl-D; Ctrl-C too, with exit code 130)
  a  abort the run, after asking
  ?  this help
Questions for permission are asked here as they come."""


class AttachKeys:
    """Does what keys say; one thing at a time."""

    def __init__(self, *, on_released: Callable[[], object]) -> None:
        self._pressed: asyncio.Queue[str] = asyncio.Queue()
        self.keyboard = Keyboard(self._pressed.put_nowait, on_released=on_released)

    async def until_left(self, handle: ForkHandle) -> None:
        """Return when the person wants to leave the run to itself."""
        _say(_SHORT)
        while True:
            key = (await self._pressed.get()).lower()
            try:
                match key:
                    case "m":
                        await self._message(handle)
                    case "a":
                        await self._abort(handle)
                    case "b" | "q" | "\x04":
                        return _say(f"The run goes on; `nexofork attach {handle.run_id}` watches it again.")
                    case "?" | "h":
                        click.echo(_HELP, err=True)
                    case _:
                        _say(_SHORT)
            except NexoforkError as exc:
                click.echo(plain(f"Error: {' '.join(str(exc).split())}"), err=True)

    async def _message(self, handle: ForkHandle) -> None:
        async with self.keyboard.lines() as line:
            text = await line("Message (empty sends nothing): ")
        if text:
            await handle.message(text)
            _say("Sent; the child reads it between two turns.")
        else:
            _say("Nothing was sent.")

    async def _abort(self, handle: ForkHandle) -> None:
        async with self.keyboard.lines() as line:
            said = await line("Abort this run? y(es), y REASON, n(o): ") or ""
        word, _, reason = said.partition(" ")
        if word.lower() in ("y", "yes"):
            await handle.abort(reason.strip() or "aborted at the terminal")
            _say("Aborting.")
        else:
            _say("Not aborted.")


def _say(words: str) -> None:
    click.echo(click.style(words, dim=True), err=True)
