"""Read from its log how far a run got, after another daemon was lost or handed it over.

A permission question's deadline goes on while no daemon has the run. It counts from when the server first stored the
question, by the server's clock. What was decided stays decided, and what was remembered stays remembered.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nexofork.bus.failures import CorruptBlob, MissingBlob
from nexofork.bus.reading import stored_at
from nexofork.core.usage import Usage
from nexofork.errors import BadMessage, BadPermissions, BadReply, NexoforkError
from nexofork.policy.permissions import Decision
from nexofork.policy.rules import parse_rule
from nexofork.run.call_records import CallFacts
from nexofork.run.turns import LoggedTurn, logged_turns
from nexofork.wire.messages import (
    AbortEvent,
    Asked,
    CallBudget,
    CallStarted,
    Checkpoint,
    Claimed,
    Compacted,
    Final,
    HandedOver,
    Permitted,
    Requested,
    ToolStarted,
    Turn,
    WorkspaceReady,
    announced_call,
    answered_call,
)
from nexofork.wire.workspace import GitSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nexofork.bus.blobs import BlobStore
    from nexofork.bus.run_log import Entry
    from nexofork.run.turns import RecordedTurn

__all__ = ["BudgetedCall", "LeftCall", "PermissionLog", "RunState", "read_permissions", "rebuild"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionLog:
    """What earlier daemons asked and were told."""

    asked_at: Mapping[str, float] = field(default_factory=dict)
    """By ask id: when it was first asked, as Unix time of the NATS server."""
    decided: Mapping[str, Decision] = field(default_factory=dict)


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
class RunState:
    """What a log says about its run."""

    tip: int
    epoch: int = 0
    """The highest one claimed; 0 where nobody has."""
    begun_at: float | None = None
    """When the first claim was stored, by the server's clock: the run's timeout counts from there."""
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


async def rebuild(entries: Sequence[Entry], blobs: BlobStore) -> RunState:
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
                if begun_at is None:
                    begun_at = stored_at(entry.raw) or claimed.at
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
    return RunState(
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
            case Turn() | Compacted() as reply:
                turn, limited = last.get(reply.epoch, (None, None))
                if turn is not None and limited is not None and turn == answered_call(reply)[0]:
                    last[reply.epoch] = (turn, replace(limited, usage=Usage.from_wire(reply.usage)))
            case _:
                pass
    return tuple(call for _, call in last.values())


def _left_calls(entries: Sequence[Entry]) -> tuple[LeftCall, ...]:
    """Return every announced call; a reply on the log belongs to the attempt that its retries say.

    A daemon that handed the run over has booked its own calls before, and knows which of them it did not send.
    """
    daemons: dict[int, str] = {}
    booked: set[int] = set()
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
                replies[reply.epoch, *answered_call(reply)] = reply
            case HandedOver() as given:
                booked.add(given.epoch)
            case _:
                pass
    return tuple(
        LeftCall(
            epoch=started.epoch,
            daemon=daemons.get(started.epoch, ""),
            facts=_left(started, replies.get((started.epoch, started.turn, started.attempt)), warm),
        )
        for started in announced
        if started.epoch not in booked
    )


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


def read_permissions(entries: Sequence[Entry]) -> PermissionLog:
    """Read a run's log."""
    asked_at: dict[str, float] = {}
    decided: dict[str, Decision] = {}
    for entry in entries:
        match entry.message:
            case Asked(what="permission") as asked:
                asked_at.setdefault(asked.ask_id, _stored_at(entry))
            case Permitted() as permitted:
                decided.setdefault(permitted.ask_id, _decision(permitted))
            case _:
                pass
    return PermissionLog(asked_at=asked_at, decided=decided)


def _stored_at(entry: Entry) -> float:
    text = entry.raw.headers.get("Nats-Time-Stamp", "")
    try:
        return datetime.fromisoformat(text[:26].rstrip("Z") + "+00:00").timestamp()
    except ValueError:
        assert isinstance(entry.message, Asked)
        return entry.message.at


def _decision(permitted: Permitted) -> Decision:
    return Decision(
        allowed=permitted.allowed,
        how=permitted.how,
        note=permitted.note,
        rules=tuple(rule for rule in permitted.rules if _is_rule(rule)),
        by=permitted.by,
    )


def _is_rule(text: str) -> bool:
    """Whether this version can read a rule; one that it cannot read is not remembered, so that it is asked again."""
    try:
        parse_rule(text)
    except BadPermissions:
        return False
    return True
