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
from nexofork.core.usage import Usage
from nexofork.engine.abort import AbortReason
from nexofork.engine.ledger import CallFacts
from nexofork.engine.mailbox import Letter
from nexofork.engine.recording import LoggedTurn, logged_turns
from nexofork.errors import BadMessage, BadReply, BusError, NexoforkError
from nexofork.wire.messages import (
    AbortEvent,
    CallBudget,
    CallStarted,
    Checkpoint,
    Claimed,
    Compacted,
    Delivered,
    Final,
    HandedOver,
    Requested,
    ToolFinished,
    ToolStarted,
    Turn,
    WorkspaceReady,
    announced_call,
)
from nexofork.wire.workspace import GitSpec
from nexofork_daemon.permission_log import PermissionLog, read_permissions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nexofork.bus.blobs import BlobStore
    from nexofork.bus.run_log import Entry, RunLog
    from nexofork.core.prompt import ToolAnswer
    from nexofork.core.reply import Reply
    from nexofork.engine.abort import AbortToken
    from nexofork.engine.cache_check import CacheCheck
    from nexofork.engine.dispatch import ToolCall
    from nexofork.engine.journal import Compaction, RecordedTurn
    from nexofork.wire.messages import Report

__all__ = ["BudgetedCall", "LeftCall", "LogJournal", "Rebuilt", "SideEffectsOnly", "rebuild"]


class LogJournal:
    """The journal of one epoch of one run."""

    def __init__(self, log: RunLog, blobs: BlobStore, token: AbortToken, *, epoch: int, seq: int) -> None:
        self._log = log
        self._blobs = blobs
        self._token = token
        self._lock = asyncio.Lock()
        self.notes: tuple[str, ...] = ()
        """What the child is told behind the request's own notes: the same for whoever goes on from here."""
        self.announced = False
        """Whether the claim said that the first call goes out at once."""
        self.epoch = epoch
        self.seq = seq
        """Sequence of the newest entry this writer knows of."""
        self.turn = 0
        """The newest turn this writer recorded, or went on from."""

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
        self.turn = turn
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
                notes=list(self.notes) if turn == 1 else [],
            )
        )

    async def tool_started(self, turn: int, call: ToolCall, *, read_only: bool, bubbled: bool = False) -> None:
        """Announce a tool before it runs."""
        await self.write(
            ToolStarted(
                epoch=self.epoch,
                at=time.time(),
                turn=turn,
                call_id=call.id,
                name=call.name,
                read_only=read_only,
                bubbled=bubbled,
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
                texts=[letter.text for letter in letters if letter.text],
            )
        )

    async def compacted(self, turn: int, compaction: Compaction) -> None:
        """Record a summary before it takes the place of the turns."""
        await self.write(
            Compacted(
                epoch=self.epoch,
                at=time.time(),
                turn=turn,
                note=await self._blobs.pack(compaction.note.encode("utf-8", "backslashreplace")),
                left_out=compaction.left_out,
                attempt=compaction.attempt,
                message_id=compaction.message_id,
                usage=compaction.usage.to_compact_wire(),
                stop_reason=compaction.stop_reason,
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

    async def tool_started(self, turn: int, call: ToolCall, *, read_only: bool, bubbled: bool = False) -> None:
        """Announce what changes something."""
        if not read_only:
            await self._journal.tool_started(turn, call, read_only=False, bubbled=bubbled)

    async def tool_finished(self, turn: int, call: ToolCall, answer: ToolAnswer) -> None:
        """Keep nothing."""

    async def delivered(self, turn: int, letters: Sequence[Letter]) -> None:
        """Say which they were and not what they said: their sender wants to know."""
        await self._journal.delivered(turn, [Letter(id=letter.id, text="") for letter in letters])

    async def compacted(self, turn: int, compaction: Compaction) -> None:
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
    bubbled: frozenset[str] = frozenset()
    """Calls that the parent was, or was about to be, asked to run and that have no answer: they go to it again."""
    letters: frozenset[str] = frozenset()
    """Ids of the parent's messages that were delivered."""
    notes: tuple[str, ...] | None = None
    """What the daemon of the first turn told the child behind the request's own notes; None before that turn."""
    abort: AbortEvent | None = None
    final: Final | None = None
    budgeted: tuple[BudgetedCall, ...] = ()
    """The last call of each epoch that a budget limited; those before it were settled when it was made."""
    permissions: PermissionLog = field(default_factory=PermissionLog)
    """What was asked permission for, and what it came to."""
    problem: NexoforkError | None = None
    """Why what was recorded cannot be read, so that nobody can go on from it."""
    workspace: WorkspaceReady | None = None
    """What the child was told of its workspace, and where that was last."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """What the workspace was, each built on the one before."""


async def rebuild(entries: Sequence[Entry], blobs: BlobStore) -> Rebuilt:
    """Read a run's log.

    Raises:
        BusError: NATS did not answer.
    """
    turns = logged_turns(entry.message for entry in entries)
    epoch, handed_over, request, abort, final, side_effects = 0, 0, None, None, None, False
    begun_at = None
    for entry in entries:
        match entry.message:
            case Claimed() as claimed:
                epoch, request = max(epoch, claimed.epoch), claimed.request
                begun_at = claimed.at if begun_at is None else begun_at
            case ToolStarted() as started:
                side_effects = side_effects or not started.read_only
            case HandedOver():
                handed_over += 1
            case AbortEvent() as event:
                abort = abort or event
            case Final() as end:
                final = end
            case _:
                pass
    _forget_unkept(entries, turns)
    history, problem = [], None
    try:
        history = [await turn.read(blobs.resolve) for turn in turns]
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
        bubbled=_bubbled(turns),
        letters=frozenset(letter.id for turn in turns for letter in turn.letters),
        notes=tuple(turns[0].report.notes) if turns else None,
        abort=abort,
        final=final,
        budgeted=_budgeted(entries),
        permissions=read_permissions(entries),
        problem=problem,
        **_workspace(entries),
    )


def _bubbled(turns: Iterable[LoggedTurn]) -> frozenset[str]:
    return frozenset(
        call_id
        for turn in turns
        for call_id, begun in turn.started.items()
        if begun.bubbled and call_id not in turn.finished
    )


def _workspace(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return what the log says about the run's workspace."""
    ready = [one.message for one in entries if isinstance(one.message, WorkspaceReady)]
    checkpoints = tuple(one.message for one in entries if isinstance(one.message, Checkpoint))
    return {"workspace": ready[-1] if ready else None, "checkpoints": checkpoints}


def _forget_unkept(entries: Sequence[Entry], turns: Iterable[LoggedTurn]) -> None:
    """Take back answers of calls whose effects were lost with their daemon; the model never saw them.

    It sees the answers of a turn only behind the turn's checkpoint. Without its answer the call counts as interrupted.
    """
    requests = [one.message for one in entries if isinstance(one.message, Requested)]
    if not any(isinstance(request.workspace, GitSpec) for request in requests):
        return
    for turn in turns:
        for call_id in turn.unkept:
            begun = turn.started.get(call_id)
            if begun is not None and not begun.read_only:  # what was never begun has changed nothing
                del turn.finished[call_id]


def _budgeted(entries: Sequence[Entry]) -> tuple[BudgetedCall, ...]:
    last: dict[int, tuple[int, BudgetedCall]] = {}
    for entry in entries:
        match entry.message:
            case CallStarted(budget=CallBudget() as budget) as call:
                last[call.epoch] = (call.turn, BudgetedCall(budget=budget, model=call.model))
            case Turn() | Compacted() as reply if reply.epoch in last and last[reply.epoch][0] == _call_of(reply)[0]:
                answered = replace(last[reply.epoch][1], usage=Usage.from_wire(reply.usage))
                last[reply.epoch] = (_call_of(reply)[0], answered)
            case _:
                pass
    return tuple(call for _, call in last.values())


def _left_calls(entries: Sequence[Entry]) -> tuple[LeftCall, ...]:
    """Return every announced call; a reply on the log belongs to the attempt that its retries say."""
    daemons: dict[int, str] = {}
    replies: dict[tuple[int, int, int], Turn | Compacted] = {}
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
            case Turn() | Compacted() as reply:
                replies[reply.epoch, *_call_of(reply)] = reply
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


def _call_of(reply: Turn | Compacted) -> tuple[int, int]:
    """Return which call a reply answers: its turn, and the attempt."""
    if isinstance(reply, Turn):
        return reply.turn, reply.retries + 1
    return reply.turn + 1, reply.attempt


def _left(started: CallStarted, reply: Turn | Compacted | None, warm: Mapping[int, int]) -> CallFacts:
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


async def _until_cancelled() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("unreachable")
