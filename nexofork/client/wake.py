"""Wake a run that has ended, from its log: whoever can read that needs nothing else of whoever started it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nexofork.bus.clock import ServerClock
from nexofork.bus.failures import CorruptBlob, MissingBlob
from nexofork.bus.jetstream import retry
from nexofork.bus.run_log import RunLog
from nexofork.errors import BadMessage, BadReply, BadRequestBody, CannotWake
from nexofork.policy.filters import NamedElsewhere
from nexofork.run.params import answers_of, file_state_of, fork_of, snapshot_of
from nexofork.run.result import ForkResult
from nexofork.run.turns import logged_turns
from nexofork.run.wake import check_changes, check_end, continued
from nexofork.wire import messages as wire
from nexofork.wire.workspace import GitSpec
from nexofork.workspace import ShippedWorkspace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexofork.bus.blobs import BlobStore
    from nexofork.bus.connection import Bus
    from nexofork.bus.run_log import Entry
    from nexofork.run.params import ForkParams
    from nexofork.wire.workspace import WorkspaceWork

__all__ = ["Awakening", "awaken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Awakening:
    """A run that goes on where another one ended."""

    params: ForkParams
    group: str | None
    """The group of the one that ended."""


async def awaken(
    bus: Bus, blobs: BlobStore, run_id: str, follow_up: str, *, pool: str, changes: Mapping[str, Any]
) -> Awakening:
    """Return the fork that continues a run; everything but what it is told is as it was, unless it is changed.

    Args:
        bus: The connection.
        blobs: Where contents are.
        run_id: The run that ended.
        follow_up: What the child is told now.
        pool: Whose run it is.
        changes: Fields of `ForkParams` that shall be other than they were.

    Raises:
        CannotWake: There is no such run, it still goes on, or nothing is left of it to go on from.
        ForkRefused: The follow-up or a change cannot be taken.
        BusError: NATS did not answer.
    """
    check_changes(run_id, changes)
    entries = await retry(bus, RunLog(bus, run_id, pool=pool).entries)
    found = [entry.message for entry in entries]
    request = next((message for message in found if isinstance(message, wire.Requested)), None)
    if request is None:
        raise CannotWake(run_id, f"there is no such run in pool {pool!r}", fix="It may have expired; fork a new child.")
    _check_over(run_id, request, found)
    try:
        result = await _ended(run_id, found, blobs)
        params = await _as_it_was(request, found, blobs)
        turns = [await turn.read(blobs.resolve) for turn in logged_turns(found)]
    except (MissingBlob, CorruptBlob) as exc:
        raise CannotWake(run_id, f"what it said is not to be had any more ({exc})", fix="Fork a new child.") from exc
    except (BadMessage, BadReply, BadRequestBody, KeyError, TypeError, ValueError) as exc:
        raise CannotWake(run_id, f"its log cannot be read ({exc})", fix="Fork a new child.") from exc
    decisions = [call.decision for message in found if (call := wire.announced_call(message)) and call.decision]
    params = continued(
        params,
        turns,
        run_id=run_id,
        follow_up=follow_up,
        sent_at=await _last_sent(entries, bus, pool),
        decision=decisions[0] if decisions else None,
    )
    params = replace(params, workspace=_workspace(run_id, request, found, result.workspace))
    return Awakening(params=replace(params, **changes), group=request.group)


def _check_over(run_id: str, request: wire.Requested, found: Sequence[object]) -> None:
    if not any(isinstance(message, wire.Final) for message in found):
        aborted = any(isinstance(message, wire.AbortEvent) for message in found)
        claimed = any(isinstance(message, wire.Claimed) for message in found)
        if aborted and not claimed:
            raise CannotWake(run_id, "it was aborted before it began", fix="Fork a new child.")
        raise CannotWake(run_id, "it is not over", fix="Say it with `message`: the child reads it between two turns.")
    if request.skip_transcript:
        raise CannotWake(run_id, "it kept no transcript (skip_transcript)", fix="Fork a new child.")


async def _ended(run_id: str, found: Sequence[object], blobs: BlobStore) -> ForkResult:
    """Return how the run ended, if that can be gone on from."""
    final = next(message for message in found if isinstance(message, wire.Final))
    result = ForkResult.from_wire(await blobs.resolve(final.result))
    check_end(run_id, status=final.status, end=result.end)
    return result


def _workspace(
    run_id: str, request: wire.Requested, found: Sequence[object], work: WorkspaceWork | None
) -> ShippedWorkspace | None:
    """Return what the run worked in, with what it made there."""
    spec = request.workspace
    if not isinstance(spec, GitSpec):
        return None if spec is None else ShippedWorkspace(spec=spec)
    if work is None or work.problem:
        why = work.problem if work else "nothing says what became of it"
        raise CannotWake(run_id, f"its workspace was not kept ({why})", fix="Fork a new child.")
    roots = [message.root for message in found if isinstance(message, wire.WorkspaceReady)]
    notes = [f"What you had made in {root} is here now." for root in roots[-1:]]
    if work.head == spec.commit:
        return ShippedWorkspace(spec=spec.model_copy(update={"notes": [*spec.notes, *notes]}))
    made = {"commit": work.head, "work": work.bundle, "notes": [*spec.notes, *notes]}
    return ShippedWorkspace(spec=spec.model_copy(update=made))


async def _as_it_was(request: wire.Requested, found: Sequence[object], blobs: BlobStore) -> ForkParams:
    """Return the fork as its daemon began it."""
    claims = [message for message in found if isinstance(message, wire.Claimed)]
    first = next((message for message in found if isinstance(message, wire.Turn) and message.turn == 1), None)
    snapshot = await snapshot_of(request, blobs.resolve)
    billed = claims[-1].workspace_id if claims else None
    return fork_of(
        request,
        replace(snapshot, workspace_id=billed or snapshot.workspace_id),
        tool_filter=NamedElsewhere(request.filters),
        answers=await answers_of(request, blobs.resolve),
        file_state=await file_state_of(request, blobs.resolve),
        notes=first.notes if first is not None else (),
    )


async def _last_sent(entries: Sequence[Entry], bus: Bus, pool: str) -> float | None:
    """Return when the last call was announced, by our own clock, whatever the daemon's clock said."""
    calls = [entry for entry in entries if wire.announced_call(entry.message) is not None]
    if not calls:
        return None
    stamp = calls[-1].raw.headers.get("Nats-Time-Stamp", "")
    try:
        stored_at = datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        call = wire.announced_call(calls[-1].message)
        return call.at or None if call else None
    clock = ServerClock(bus, RunLog(bus, "any", pool=pool).stream)
    await clock.refresh()
    return clock.ours(stored_at)
