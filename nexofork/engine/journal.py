"""What a run writes down as it goes, and how it goes on from what another daemon wrote.

A recorded turn was paid for and is never asked for again. A tool that was announced and has no recorded answer was
interrupted: it is run again only if it changes nothing; otherwise the model is told, and must look before it repeats
it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexofork.core.prompt import ToolAnswer
    from nexofork.core.reply import Reply
    from nexofork.engine.cache_check import CacheCheck
    from nexofork.engine.dispatch import ToolCall
    from nexofork.engine.mailbox import Letter
    from nexofork.wire.messages import CallBudget

__all__ = ["INTERRUPTED", "Journal", "NoJournal", "RecordedTurn"]

INTERRUPTED = (
    "This call was interrupted when its host was lost; it may have run in part or in full. "
    "Look at the state it would have changed before you decide whether to repeat it."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTurn:
    """One turn of a run that was begun before."""

    reply: Reply
    answers: Mapping[str, ToolAnswer] = field(default_factory=dict)
    """By tool call: what was answered."""
    interrupted: frozenset[str] = frozenset()
    """Calls with side effects that were announced and have no answer."""
    letters: tuple[Letter, ...] = ()
    """Messages of the parent's that were delivered behind it."""
    retries: int = 0
    cache: CacheCheck | None = None
    at: float = 0.0
    """Unix time it was recorded at."""


class Journal(Protocol):
    """Where a run writes down what must not be done twice. A write that fails ends the run."""

    async def call_started(
        self,
        turn: int,
        attempt: int,
        *,
        model: str,
        prefix: str,
        decision: Mapping[str, Any] | None,
        budget: CallBudget | None = None,
    ) -> None:
        """A model call is about to be sent."""

    async def turn_finished(self, turn: int, reply: Reply, *, retries: int, cache: CacheCheck | None) -> None:
        """A reply is complete; nothing was done about it yet."""

    async def tool_started(self, turn: int, call: ToolCall, *, read_only: bool) -> None:
        """A tool is about to run."""

    async def tool_finished(self, turn: int, call: ToolCall, answer: ToolAnswer) -> None:
        """A tool answered."""

    async def delivered(self, turn: int, letters: Sequence[Letter]) -> None:
        """Messages are about to be shown to the model, behind this turn."""


class NoJournal:
    """Writes nothing down: an in-process fork ends with its process."""

    async def call_started(
        self,
        turn: int,
        attempt: int,
        *,
        model: str,
        prefix: str,
        decision: Mapping[str, Any] | None,
        budget: CallBudget | None = None,
    ) -> None:
        """Do nothing."""

    async def turn_finished(self, turn: int, reply: Reply, *, retries: int, cache: CacheCheck | None) -> None:
        """Do nothing."""

    async def tool_started(self, turn: int, call: ToolCall, *, read_only: bool) -> None:
        """Do nothing."""

    async def tool_finished(self, turn: int, call: ToolCall, answer: ToolAnswer) -> None:
        """Do nothing."""

    async def delivered(self, turn: int, letters: Sequence[Letter]) -> None:
        """Do nothing."""
