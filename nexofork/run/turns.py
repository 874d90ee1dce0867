"""A run's turns: what it writes down as it goes, and how another process goes on from that.

A recorded turn was paid for and is never asked for again. A tool that was announced and has no recorded answer was
interrupted: it is run again only if it changes nothing; otherwise the model is told, and must look before it repeats
it.

One rule says what follows a reply: for the daemon that has just received it, for one that takes the run over, and for a
process that wakes the run days later. That is why all of them send the same bytes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from nexofork.core.boilerplate import reminder
from nexofork.core.prompt import ToolAnswer
from nexofork.core.reply import CutToolUse, Reply
from nexofork.core.usage import Usage
from nexofork.run.cache_check import CacheCheck
from nexofork.run.mailbox import Letter, as_text
from nexofork.run.result import CallRecord
from nexofork.wire.messages import Checkpoint, Compacted, Delivered, ToolFinished, ToolStarted, Turn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from nexofork.core.prompt import ChildPrompt
    from nexofork.run.params import ForkParams
    from nexofork.tools.dispatch import ToolCall
    from nexofork.wire.messages import CallBudget, Payload

    Resolve = Callable[[Payload], Awaitable[bytes]]

__all__ = [
    "CUT_BY_WINDOW",
    "INTERRUPTED",
    "Compaction",
    "Journal",
    "LoggedTurn",
    "MemoryJournal",
    "NoJournal",
    "OutgoingCall",
    "RecordedTurn",
    "behind_results",
    "compacted_texts",
    "interrupted_answers",
    "logged_turns",
    "replay",
]

INTERRUPTED = (
    "This call was interrupted when its host was lost; it may have run in part or in full. "
    "Look at the state it would have changed before you decide whether to repeat it."
)
CUT_BY_WINDOW = "model_context_window_exceeded"


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


@dataclass(slots=True)
class LoggedTurn:
    """A turn's reports; its contents may travel beside the log."""

    report: Turn
    started: dict[str, ToolStarted] = field(default_factory=dict)
    finished: dict[str, ToolFinished] = field(default_factory=dict)
    letters: list[Letter] = field(default_factory=list)
    compacted: list[Compacted] = field(default_factory=list)
    unkept: set[str] = field(default_factory=set)
    """Calls whose effects are in no checkpoint: a workspace that is restored does not have them."""

    async def read(self, resolve: Resolve) -> RecordedTurn:
        """Return the turn with its contents.

        Raises:
            BusError: A content is missing or corrupt.
            NexoforkError: A content is not what it should be.
            KeyError, TypeError, ValueError: A report holds what no daemon of ours writes.
        """
        report, cut = self.report, self.report.truncated_tool
        parsed = Reply.from_response(await resolve(report.content))
        reply = Reply(
            blocks=parsed.blocks,
            stop_reason=report.stop_reason,
            message_id=report.message_id,
            usage=Usage.from_wire(report.usage),
            truncated_tool_use=CutToolUse(id="", name=cut, partial_input="") if cut else None,
        )
        answers = {
            call_id: ToolAnswer(call_id=call_id, content="", is_error=done.is_error, recorded=await resolve(done.block))
            for call_id, done in self.finished.items()
        }
        interrupted = frozenset(
            call_id
            for call_id, begun in self.started.items()
            if call_id not in answers and not begun.read_only and not begun.bubbled
        )
        return RecordedTurn(
            reply=reply,
            answers=answers,
            interrupted=interrupted,
            letters=tuple(self.letters),
            retries=report.retries,
            cache=None if report.cache is None else CacheCheck.from_wire(report.cache, reply.usage),
            at=report.at,
            compactions=tuple([await _compaction(one, resolve) for one in self.compacted]),
        )


def logged_turns(messages: Iterable[object]) -> list[LoggedTurn]:
    """Sort a log's reports by turn; a later report of the same turn takes the place of an earlier one."""
    turns: dict[int, LoggedTurn] = {}
    for message in messages:
        match message:
            case Turn():
                turns[message.turn] = LoggedTurn(message)
            case ToolStarted() if message.turn in turns:
                turns[message.turn].started[message.call_id] = message
            case ToolFinished() if message.turn in turns:
                turns[message.turn].finished[message.call_id] = message
                turns[message.turn].unkept.add(message.call_id)
            case Checkpoint() if message.turn in turns:
                turns[message.turn].unkept.clear()
            case Delivered() if message.turn in turns:
                letters = [Letter(id=id_, text=text) for id_, text in zip(message.ids, message.texts, strict=False)]
                turns[message.turn].letters += letters
            case Compacted() if message.turn in turns:
                turns[message.turn].compacted.append(message)
            case _:
                pass
    return [turns[number] for number in sorted(turns)]


async def _compaction(report: Compacted, resolve: Resolve) -> Compaction:
    return Compaction(
        note=(await resolve(report.note)).decode(),
        left_out=report.left_out,
        attempt=report.attempt,
        message_id=report.message_id,
        usage=Usage.from_wire(report.usage),
        stop_reason=report.stop_reason,
    )


def behind_results(params: ForkParams, letters: Iterable[Letter]) -> list[str]:
    """Return what is said behind the tool results of a turn."""
    note = params.overrides.critical_system_reminder
    return [*([reminder(note)] if note else []), *map(as_text, letters)]


def compacted_texts(note: str, unseen: Iterable[Letter]) -> list[str]:
    """Return what stands behind the directive after a compaction: the note, and the messages nobody has read yet."""
    return [note, *map(as_text, unseen)]


def interrupted_answers(turn: RecordedTurn) -> dict[str, ToolAnswer]:
    """Return what the model is told about the calls that were cut off."""
    return {
        call_id: ToolAnswer(call_id=call_id, content=INTERRUPTED, is_error=True) for call_id in sorted(turn.interrupted)
    }


def replay(prompt: ChildPrompt, params: ForkParams, turns: Sequence[RecordedTurn]) -> None:
    """Add turns whose calls are all answered to a prompt that stands at its beginning."""
    for turn in turns:
        reply = turn.reply
        answers = {**interrupted_answers(turn), **turn.answers}
        if reply.stop_reason == "pause_turn":
            prompt.extend(reply)
        elif reply.stop_reason == "tool_use":
            answered = [answers[use.id] for use in reply.tool_uses]
            prompt.extend(reply, answered, behind_results(params, turn.letters))
        elif reply.stop_reason != CUT_BY_WINDOW:  # what was cut off there is in no later request
            prompt.extend(reply, (), map(as_text, turn.letters))
        for compaction in turn.compactions:
            prompt.compact(compacted_texts(compaction.note, turn.letters))
