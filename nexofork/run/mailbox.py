"""Messages from the parent to a running child, delivered between its turns.

Between turns is the only place where something can be added without touching what was sent: behind the tool results of
the next message, or, when the model has stopped, as a message of its own that keeps the run going. What comes when the
last word is spoken is not lost either: the result names it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Letter", "LocalMailbox", "Mailbox", "NoMail", "as_text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One message to a child."""

    id: str
    text: str


def as_text(letter: Letter) -> str:
    """Return the message as the child reads it."""
    return f"<parent-message>\n{letter.text}\n</parent-message>"


class Mailbox(Protocol):
    """Where messages for one run wait."""

    async def take(self) -> Sequence[Letter]:
        """Return what has come since the last call, oldest first."""

    def left(self) -> Sequence[Letter]:
        """Return what has come and was not taken, as far as it is known without asking anybody; the run is over."""


class NoMail:
    """A mailbox nobody writes to."""

    async def take(self) -> Sequence[Letter]:
        """Return nothing."""
        return ()

    def left(self) -> Sequence[Letter]:
        """Return nothing."""
        return ()


class LocalMailbox:
    """A mailbox in this process."""

    def __init__(self) -> None:
        self._letters: list[Letter] = []
        self._ids = itertools.count()

    def post(self, text: str) -> None:
        """Leave a message."""
        self._letters.append(Letter(id=str(next(self._ids)), text=text))

    async def take(self) -> Sequence[Letter]:
        """Return what has come since the last call."""
        letters, self._letters = self._letters, []
        return letters

    def left(self) -> Sequence[Letter]:
        """Return what was not taken."""
        return tuple(self._letters)
