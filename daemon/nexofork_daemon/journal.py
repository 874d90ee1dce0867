"""Write a run down on its log, and read it back after another daemon was lost.

Every append is a compare-and-set behind our own last one, so the log has one writer. A refusal is news: the parent
aborted, or the run was taken from us. Either way the run's token is thrown and the writer waits for its own
cancellation, so that nothing is done that the log does not know of.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

from nexofork.bus.failures import CorruptBlob, MissingBlob, RunAborted
from nexofork.core.prompt import ToolAnswer
from nexofork.core.reply import CutToolUse, Reply
from nexofork.core.usage import Usage
from nexofork.engine.abort import AbortReason
from nexofork.engine.cache_check import CacheCheck
from nexofork.engine.journal import RecordedTurn
from nexofork.engine.ledger import CallFacts
from nexofork.engine.mailbox import Letter
from nexofork.errors import BadMessage, BadReply, BusError, NexoforkError
from nexofork.wire.messages import (
    AbortEvent,
    CallBudget,
    CallStarted,
    Claimed,
    Delivered,
    Final,
    HandedOver,
    ToolFinished,
    ToolStarted,
    Turn,
    announced_call,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexofork.bus.blobs import BlobStore
    from nexofork.bus.run_log import Entry, RunLog
    from nexofork.engine.abort import AbortToken
    from nexofork.engine.dispatch import ToolCall
    from nexofork.wire.messages import Report

__all__ = ["BudgetedCall", "LeftCall", "LogJournal", "Rebuilt", "SideEffectsOnly", "rebuild"]


class LogJournal:
    """The journal of one epoch of one run."""

    def __init__(self, log: RunLog, blobs: BlobStore, token: AbortToken, *, epoch: int, seq: int) -> None:
        self._log = log
        self._blobs = blobs
        self._token = token
        self._lock = asyncio.Lock()
        self.announced = False
        """Whether the claim said that the first call goes out at once."""
        self.epoch = epoch
        self.seq = seq
        """Sequence of the newest entry this writer knows of."""

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
        """Announce a model call before it is sent."""
        if self.announced:
            self.announced = False
            return
        await self.write(
            CallStarted(
                epoch=self.epoch,
                at=time.time(),
                turn=turn,
                attempt=attempt,
                model=model,
                prefix=prefix,
                decision=dict(decision) if decision else None,
                budget=budget,
            )
        )

    async def turn_finished(self, turn: int, reply: Reply, *, retries: int, cache: CacheCheck | None) -> None:
        """Record a reply before anything is done about it."""
        await self.write(
            Turn(
                epoch=self.epoch,
                at=time.time(),
                turn=turn,
                content=await self._blobs.pack(reply.content),
                stop_reason=reply.stop_reason,
                message_id=reply.message_id or "",
                usage=reply.usage.to_compact_wire(),
                retries=retries,
                truncated_tool=reply.truncated_tool_use.name if reply.truncated_tool_use else None,
                cache=cache.to_wire() if cache else None,
            )
        )

    async def tool_started(self, turn: int, call: ToolCall, *, read_only: bool) -> None:
        """Announce a tool before it runs."""
        await self.write(
            ToolStarted(
                epoch=self.epoch, at=time.time(), turn=turn, call_id=call.id, name=call.name, read_only=read_only
            )
        )

    async def tool_finished(self, turn: int, call: ToolCall, answer: ToolAnswer) -> None:
        """Record the block that goes to the model."""
        await self.write(
            ToolFinished(
                epoch=self.epoch,
                at=time.time(),
                turn=turn,
                call_id=call.id,
                block=await self._blobs.pack(answer.to_wire()),
                is_error=answer.is_error,
            )
        )

    async def delivered(self, turn: int, letters: Sequence[Letter]) -> None:
        """Record messages before the model sees them."""
        await self.write(
            Delivered(
                epoch=self.epoch,
                at=time.time(),
                turn=turn,
                ids=[letter.id for letter in letters],
                texts=[letter.text for letter in letters],
            )
        )

    async def write(self, report: Report) -> None:
        """Append a report; where that is refused, throw the token and wait to be cancelled."""
        try:
            await self.append(report)
        except RunAborted as exc:
            self._token.abort(AbortReason.PARENT, exc.event.note)
            await _until_cancelled()
        except BusError as exc:
            self._token.abort(AbortReason.LEASE_LOST, str(exc))
            await _until_cancelled()

    async def append(self, report: Report) -> None:
        """Append a report behind the newest entry.

        Raises:
            RunAborted: The parent aborted first; `seq` then stands at the abort.
            BusError: The run is lost, or NATS was not reached in time.
        """
        async with self._lock:
            try:
                self.seq = await self._log.append(report, after=self.seq)
            except RunAborted as exc:
                self.seq = exc.seq
                raise


class SideEffectsOnly:
    """The journal of a run without transcript: what changes something is announced, nothing else is kept."""

    def __init__(self, journal: LogJournal) -> None:
        self._journal = journal

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
        """Announce it: what is paid for is part of the life cycle."""
        await self._journal.call_started(turn, attempt, model=model, prefix=prefix, decision=decision, budget=budget)

    async def turn_finished(self, turn: int, reply: Reply, *, retries: int, cache: CacheCheck | None) -> None:
        """Keep nothing."""

    async def tool_started(self, turn: int, call: ToolCall, *, read_only: bool) -> None:
        """Announce what changes something."""
        if not read_only:
            await self._journal.tool_started(turn, call, read_only=False)

    async def tool_finished(self, turn: int, call: ToolCall, answer: ToolAnswer) -> None:
        """Keep nothing."""

    async def delivered(self, turn: int, letters: Sequence[Letter]) -> None:
        """Keep nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetedCall:
    """A call that a budget limited."""

    budget: CallBudget
    model: str
    usage: Usage | None = None
    """What it was billed for; None where no answer is on the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftCall:
    """A model call that an earlier daemon announced; it may not have lived to book it."""

    epoch: int
    daemon: str
    facts: CallFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """What a log says about its run."""

    tip: int
    epoch: int = 0
    """The highest one claimed; 0 where nobody has."""
    begun_at: float | None = None
    """Unix time of the first claim: the run's timeout counts from there."""
    losses: int = 0
    """How many daemons had it and neither finished it nor handed it over."""
    request: int | None = None
    """Sequence of the request that is the lease of the last claim, where the claim says so."""
    history: tuple[RecordedTurn, ...] = ()
    calls: tuple[LeftCall, ...] = ()
    """What was announced: confirmed where the log has the reply, else unconfirmed."""
    side_effects: bool = False
    """Whether a tool that changes things was announced."""
    letters: frozenset[str] = frozenset()
    """Ids of the parent's messages that were delivered."""
    abort: AbortEvent | None = None
    final: Final | None = None
    budgeted: tuple[BudgetedCall, ...] = ()
    """The last call of each epoch that a budget limited; those before it were settled when it was made."""
    problem: NexoforkError | None = None
    """Why what was recorded cannot be read, so that nobody can go on from it."""


@dataclass(slots=True)
class _Turn:
    report: Turn
    started: dict[str, ToolStarted] = field(default_factory=dict)
    finished: dict[str, ToolFinished] = field(default_factory=dict)
    letters: list[Letter] = field(default_factory=list)


async def rebuild(entries: Sequence[Entry], blobs: BlobStore) -> Rebuilt:
    """Read a run's log.

    Raises:
        BusError: NATS did not answer.
    """
    turns: dict[int, _Turn] = {}
    epoch, handed_over, request, abort, final, side_effects = 0, 0, None, None, None, False
    begun_at: float | None = None
    for entry in entries:
        match entry.message:
            case Claimed() as claimed:
                epoch, request = max(epoch, claimed.epoch), claimed.request
                begun_at = claimed.at if begun_at is None else begun_at
            case Turn() as turn:
                turns[turn.turn] = _Turn(turn)
            case ToolStarted() as started:
                side_effects = side_effects or not started.read_only
                if started.turn in turns:
                    turns[started.turn].started[started.call_id] = started
            case Delivered() as mail if mail.turn in turns:
                letters = [Letter(id=id_, text=text) for id_, text in zip(mail.ids, mail.texts, strict=False)]
                turns[mail.turn].letters += letters
            case HandedOver():
                handed_over += 1
            case ToolFinished() as finished if finished.turn in turns:
                turns[finished.turn].finished[finished.call_id] = finished
            case AbortEvent() as event:
                abort = abort or event
            case Final() as end:
                final = end
            case _:
                pass
    history: list[RecordedTurn] = []
    problem: NexoforkError | None = None
    try:
        history = [await _recorded(turns[number], blobs) for number in sorted(turns)]
    except (MissingBlob, CorruptBlob, BadMessage, BadReply) as exc:
        problem = exc
    except (KeyError, TypeError, ValueError) as exc:
        problem = BadMessage(f"is a turn that cannot be read ({exc!r})", fix="Fork again.")
    return Rebuilt(
        tip=entries[-1].seq if entries else 0,
        epoch=epoch,
        losses=max(0, epoch - handed_over),
        request=request,
        begun_at=begun_at,
        history=tuple(history),
        calls=_left_calls(entries),
        side_effects=side_effects,
        letters=frozenset(letter.id for turn in turns.values() for letter in turn.letters),
        abort=abort,
        final=final,
        budgeted=_budgeted(entries),
        problem=problem,
    )


def _budgeted(entries: Sequence[Entry]) -> tuple[BudgetedCall, ...]:
    last: dict[int, tuple[int, BudgetedCall]] = {}
    for entry in entries:
        match entry.message:
            case CallStarted(budget=CallBudget() as budget) as call:
                last[call.epoch] = (call.turn, BudgetedCall(budget=budget, model=call.model))
            case Turn() as turn if turn.epoch in last and last[turn.epoch][0] == turn.turn:
                answered = replace(last[turn.epoch][1], usage=Usage.from_wire(turn.usage))
                last[turn.epoch] = (turn.turn, answered)
            case _:
                pass
    return tuple(call for _, call in last.values())


def _left_calls(entries: Sequence[Entry]) -> tuple[LeftCall, ...]:
    """Return every announced call; a reply on the log belongs to the attempt that its retries say."""
    daemons: dict[int, str] = {}
    replies: dict[tuple[int, int, int], Turn] = {}
    announced: list[CallStarted] = []
    warm: dict[int, int] = {}
    for entry in entries:
        if (started := announced_call(entry.message)) is not None:
            announced.append(started)
            known = (started.decision or {}).get("warm_tokens")
            if isinstance(known, int):
                warm[started.epoch] = known
        match entry.message:
            case Claimed() as claimed:
                daemons[claimed.epoch] = claimed.daemon.name
            case Turn() as turn:
                replies[turn.epoch, turn.turn, turn.retries + 1] = turn
            case _:
                pass
    return tuple(
        LeftCall(
            epoch=started.epoch,
            daemon=daemons.get(started.epoch, ""),
            facts=_left(started, replies.get((started.epoch, started.turn, started.attempt)), warm),
        )
        for started in announced
    )


def _left(started: CallStarted, reply: Turn | None, warm: Mapping[int, int]) -> CallFacts:
    usage = Usage.from_wire(reply.usage) if reply else None
    return CallFacts(
        at=started.at,
        turn=started.turn,
        attempt=started.attempt,
        model=started.model,
        outcome="confirmed" if reply else "unconfirmed",
        usage=usage,
        message_id=reply.message_id if reply else "",
        error="" if reply else "its daemon was lost before the answer",
        prefix=started.prefix,
        warm_tokens=warm.get(started.epoch, 0),
        ttl="1h" if usage and usage.cache_write_1h_tokens else "5m",
    )


async def _recorded(turn: _Turn, blobs: BlobStore) -> RecordedTurn:
    report = turn.report
    parsed = Reply.from_response(await blobs.resolve(report.content))
    cut = report.truncated_tool
    reply = Reply(
        blocks=parsed.blocks,
        stop_reason=report.stop_reason,
        message_id=report.message_id,
        usage=Usage.from_wire(report.usage),
        truncated_tool_use=CutToolUse(id="", name=cut, partial_input="") if cut else None,
    )
    answers = {
        call_id: ToolAnswer(
            call_id=call_id, content="", is_error=done.is_error, recorded=await blobs.resolve(done.block)
        )
        for call_id, done in turn.finished.items()
    }
    interrupted = frozenset(
        call_id for call_id, begun in turn.started.items() if call_id not in answers and not begun.read_only
    )
    return RecordedTurn(
        reply=reply,
        answers=answers,
        interrupted=interrupted,
        letters=tuple(turn.letters),
        retries=report.retries,
        cache=None if report.cache is None else CacheCheck.from_wire(report.cache, reply.usage),
        at=report.at,
    )


async def _until_cancelled() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("unreachable")
