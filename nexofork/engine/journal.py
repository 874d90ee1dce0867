"""What a run writes down as it goes, and how it goes on from what another daemon wrote.

A recorded turn was paid for and is never asked for again. A tool that was announced and has no recorded answer was
interrupted: it is run again only if it changes nothing; otherwise the model is told, and must look before it repeats
it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from nexofork.engine.result import CallRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexofork.core.prompt import ToolAnswer
    from nexofork.core.reply import Reply
    from nexofork.core.usage import Usage
    from nexofork.engine.cache_check import CacheCheck
    from nexofork.engine.dispatch import ToolCall
    from nexofork.engine.mailbox import Letter
    from nexofork.wire.messages import CallBudget

__all__ = ["INTERRUPTED", "Compaction", "Journal", "MemoryJournal", "NoJournal", "OutgoingCall", "RecordedTurn"]

INTERRUPTED = (
    "This call was interrupted when its host was lost; it may have run in part or in full. "
    "Look at the state it would have changed before you decide whether to repeat it."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A summary that took the place of all turns before it, and the call that wrote it."""

    note: str
    """What stands in their place, as the model reads it."""
    left_out: int
    """How many of the turns, the newest ones, did not fit the call either."""
    attempt: int
    message_id: str
    usage: Usage
    stop_reason: str | None

    def as_call(self, turn: int) -> CallRecord:
        """Return the call that wrote it, as it is billed before a turn."""
        return CallRecord(
            turn=turn,
            message_id=self.message_id,
            usage=self.usage,
            stop_reason=self.stop_reason,
            retries=0,
            summary=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTurn:
    """One turn of a run that was begun before."""

    reply: Reply
    answers: Mapping[str, ToolAnswer] = field(default_factory=dict)
    """By tool call: what was answered."""
    interrupted: frozenset[str] = frozenset()
    """Calls with side effects that were announced here and have no answer; what the parent runs is asked for again."""
    letters: tuple[Letter, ...] = ()
    """Messages of the parent's that were delivered behind it."""
    retries: int = 0
    cache: CacheCheck | None = None
    at: float = 0.0
    """Unix time it was recorded at."""
    compactions: tuple[Compaction, ...] = ()
    """Behind this turn, in order; only the last one is still in the conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingCall:
    """A model call that is about to be sent."""

    turn: int
    attempt: int
    """Counted from 1 within the turn."""
    model: str
    prefix: str
    """Names what it shares with its siblings."""
    decision: Mapping[str, Any] | None
    """How the fan-out starts, with the first call it was made for."""
    budget: CallBudget | None
    """What was set aside for it."""


class Journal(Protocol):
    """Where a run writes down what must not be done twice. A write that fails ends the run."""

    async def call_started(self, call: OutgoingCall) -> None:
        """A model call is about to be sent."""

    async def turn_finished(self, turn: int, reply: Reply, *, retries: int, cache: CacheCheck | None) -> None:
        """A reply is complete; nothing was done about it yet."""

    async def tool_started(self, turn: int, call: ToolCall, *, read_only: bool, bubbled: bool = False) -> None:
        """A tool is about to run, here or at the parent."""

    async def tool_finished(self, turn: int, call: ToolCall, answer: ToolAnswer) -> None:
        """A tool answered."""

    async def delivered(self, turn: int, letters: Sequence[Letter]) -> None:
        """Messages are about to be shown to the model, behind this turn."""

    async def compacted(self, turn: int, compaction: Compaction) -> None:
        """The turns up to this one are about to be replaced by a summary."""


class NoJournal:
    """Writes nothing down: an in-process fork ends with its process."""

    async def call_started(self, call: OutgoingCall) -> None:
        """Do nothing."""

    async def turn_finished(self, turn: int, reply: Reply, *, retries: int, cache: CacheCheck | None) -> None:
        """Do nothing."""

    async def tool_started(self, turn: int, call: ToolCall, *, read_only: bool, bubbled: bool = False) -> None:
        """Do nothing."""

    async def tool_finished(self, turn: int, call: ToolCall, answer: ToolAnswer) -> None:
        """Do nothing."""

    async def delivered(self, turn: int, letters: Sequence[Letter]) -> None:
        """Do nothing."""

    async def compacted(self, turn: int, compaction: Compaction) -> None:
        """Do nothing."""


class MemoryJournal(NoJournal):
    """Keeps the conversation in this process, so that a fork that ended can be woken."""

    def __init__(self) -> None:
        self.turns: list[RecordedTurn] = []
        self.last_sent_at: float | None = None
        """Unix time of the newest call."""

    async def call_started(self, call: OutgoingCall) -> None:
        """Take note of the time."""
        self.last_sent_at = time.time()

    async def turn_finished(self, turn: int, reply: Reply, *, retries: int, cache: CacheCheck | None) -> None:
        """Keep the reply."""
        self.turns.append(RecordedTurn(reply=reply, retries=retries, cache=cache))

    async def tool_started(self, turn: int, call: ToolCall, *, read_only: bool, bubbled: bool = False) -> None:
        """Take note of a call that must not be repeated unseen."""
        if not read_only:
            last = self.turns[-1]
            self.turns[-1] = replace(last, interrupted=last.interrupted | {call.id})

    async def tool_finished(self, turn: int, call: ToolCall, answer: ToolAnswer) -> None:
        """Keep the answer."""
        last = self.turns[-1]
        self.turns[-1] = replace(
            last, answers={**last.answers, call.id: answer}, interrupted=last.interrupted - {call.id}
        )

    async def delivered(self, turn: int, letters: Sequence[Letter]) -> None:
        """Keep the messages."""
        last = self.turns[-1]
        self.turns[-1] = replace(last, letters=(*last.letters, *letters))

    async def compacted(self, turn: int, compaction: Compaction) -> None:
        """Keep the summary."""
        last = self.turns[-1]
        self.turns[-1] = replace(last, compactions=(*last.compactions, compaction))
