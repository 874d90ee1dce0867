"""Read a run's turns back from what its daemons reported.

Whoever takes a run over, and whoever wakes it, needs the same: every reply with what answered it, as the bytes that
were sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nexofork.core.prompt import ToolAnswer
from nexofork.core.reply import CutToolUse, Reply
from nexofork.core.usage import Usage
from nexofork.engine.cache_check import CacheCheck
from nexofork.engine.journal import Compaction, RecordedTurn
from nexofork.engine.mailbox import Letter
from nexofork.wire.messages import Checkpoint, Compacted, Delivered, ToolFinished, ToolStarted, Turn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from nexofork.wire.messages import Payload

    Resolve = Callable[[Payload], Awaitable[bytes]]

__all__ = ["LoggedTurn", "logged_turns"]


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
