"""List the runs of a pool from the newest message of each, and follow one run as a row.

A log of three days has thousands of runs; only those that are at work, and that are asked for, are read whole.
Everything is read directly, so that an observer may do it too. Reading a log from its start and following it as it
grows give the same row, because both use `advanced`.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from nexofork.bus.presence import PresenceBoard
from nexofork.bus.reading import last_of_many, read_subject
from nexofork.bus.run_log import event_subjects, posted_abort, read_facts
from nexofork.core.usage import Usage
from nexofork.economics.prices import cost_usd
from nexofork.errors import BadMessage, BadPrices, BusError, UnknownModelPrice
from nexofork.run.result import ForkResult, ForkStatus
from nexofork.wire import messages as wire
from nexofork.wire.streams import inbox_stream, log_stream
from nexofork.wire.subjects import check_run_id, events, inbox, reports, run_filter, run_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from nexofork.bus.connection import Bus
    from nexofork.bus.reading import Stored

__all__ = [
    "RunRow",
    "advanced",
    "attended",
    "claimants",
    "find_runs",
    "is_asked_for",
    "is_run_id",
    "list_runs",
    "requested_row",
    "stored_at",
]

_MOST_READ = 2_000
_ABORTING = ("aborting", ForkStatus.ABORTING_NO_DAEMON.value)
_OPEN = ("queued", "running", *_ABORTING)


async def find_runs(bus: Bus, beginning: str, *, pool: str) -> list[str]:
    """Return the ids of the runs that begin like this; the one that is called so is enough.

    Raises:
        BusError: NATS did not answer.
    """
    stream = log_stream(pool)
    if beginning and await last_of_many(bus, stream, [run_filter(beginning, pool)]):
        return [beginning]
    return [one for one in _ids(await event_subjects(bus, pool)) if one.startswith(beginning)]


async def list_runs(
    bus: Bus, pool: str, *, parent: str | None = None, group: str | None = None, ids: Sequence[str] | None = None
) -> list[RunRow]:
    """Return the pool's runs, newest first.

    Args:
        bus: The connection.
        pool: Whose runs.
        parent: Only those that this parent asked for, over whichever connection.
        group: Only those of this group.
        ids: Only these.

    Raises:
        BusError: NATS did not answer.
    """
    stream = log_stream(pool)
    counts = {} if ids is not None else await event_subjects(bus, pool)
    ids = _ids(counts) if ids is None else ids
    asked = {run_of(one.subject): one for one in await last_of_many(bus, stream, [events(one, pool) for one in ids])}
    said = {run_of(one.subject): one for one in await last_of_many(bus, stream, [reports(one, pool) for one in ids])}
    rows = []
    for run_id in ids:
        alone = counts.get(events(run_id, pool)) == 1
        told = await _asked(bus, pool, run_id, asked.get(run_id), alone=alone)
        if is_asked_for(told.request, parent, group):
            rows.append(await _row(bus, pool, run_id, told, said.get(run_id)))
    rows = await _with_inbox_aborts(bus, pool, rows)
    if any(row.status == "aborting" for row in rows):
        daemons = await PresenceBoard(bus).daemons(pool)
        rows = [attended(row, daemons) for row in rows]
    return sorted(rows, key=lambda row: row.requested_at or 0.0, reverse=True)


async def claimants(bus: Bus, pool: str) -> AsyncIterator[wire.Daemon]:
    """Yield the daemons that have runs under way by the runs' own logs, those with the newest reports first.

    At most 2,000 logs are read. A daemon comes once for each of its runs.

    Raises:
        BusError: NATS did not answer.
    """
    stream = log_stream(pool)
    ids = _ids(await event_subjects(bus, pool))
    said = await last_of_many(bus, stream, [reports(one, pool) for one in ids])
    under_way = [one for one in reversed(said) if not isinstance(_report(one), wire.Final)]
    for stored in under_way[:_MOST_READ]:
        facts = await read_facts(bus, run_of(stored.subject), pool=pool, whole=True)
        if facts.claims and not facts.over:
            yield facts.claims[max(facts.claims)].daemon


async def _with_inbox_aborts(bus: Bus, pool: str, rows: list[RunRow]) -> list[RunRow]:
    """Apply the aborts that are in inboxes because the log was full; an observer may not read those."""
    subjects = [inbox(row.run_id, "abort", pool) for row in rows if not row.over and is_run_id(row.run_id)]
    try:
        found = {run_of(one.subject): one for one in await last_of_many(bus, inbox_stream(pool), subjects)}
    except BusError:
        return rows
    return [advanced(row, posted_abort(found[row.run_id]), row.seq) if row.run_id in found else row for row in rows]


class _Asked(NamedTuple):
    """What the parent's side of a log says."""

    request: wire.Requested | None
    stored: Stored | None
    """The request as the stream has it."""
    abort: tuple[int, wire.AbortEvent] | None
    """The first abort, and where it stands."""


async def _asked(bus: Bus, pool: str, run_id: str, newest: Stored | None, *, alone: bool) -> _Asked:
    """Read what the parent said; a request that is `alone` need not be looked for."""
    event = _event(newest)
    if alone and isinstance(event, wire.Requested):
        return _Asked(event, newest, None)
    stored = await read_subject(bus, log_stream(pool), events(run_id, pool)) if newest else []
    said = [(one, event) for one in stored if (event := _event(one)) is not None]
    request, at = next(((event, one) for one, event in said if isinstance(event, wire.Requested)), (None, None))
    abort = next(((one.seq, event) for one, event in said if isinstance(event, wire.AbortEvent)), None)
    return _Asked(request, at, abort)


def is_asked_for(request: wire.Requested | None, parent: str | None, group: str | None) -> bool:
    """Whether a list of that parent's, or that group's, runs has this one."""
    if parent is not None and (request is None or request.parent.id != parent):
        return False
    return group is None or (request is not None and request.group == group)


def _ids(subjects: Iterable[str]) -> list[str]:
    # Any parent may publish under a name that is no run id; no daemon runs it, and it cannot be asked for.
    return sorted({one for subject in subjects if is_run_id(one := run_of(subject))})


async def _row(bus: Bus, pool: str, run_id: str, asked: _Asked, said: Stored | None) -> RunRow:
    report, request = _report(said), asked.request
    if request is None:
        row = RunRow(run_id=run_id, pool=pool, status="queued", last="unreadable")
    else:
        row = requested_row(request, run_id=run_id, pool=pool, at=stored_at(request, asked.stored))
    if isinstance(report, wire.Final):
        return advanced(row, report, said.seq if said else 0)
    found: list[tuple[int, wire.AbortEvent | wire.AnyReport]] = [asked.abort] if asked.abort else []
    if report is not None:
        stored = await read_subject(bus, log_stream(pool), reports(run_id, pool))
        found += [(one.seq, each) for one in stored if (each := _report(one)) is not None]
    elif said is not None:
        row = replace(row, status="running")
    for seq, message in sorted(found, key=itemgetter(0)):
        row = advanced(row, message, seq)
    return row


def _event(stored: Stored | None) -> wire.Requested | wire.AbortEvent | None:
    try:
        return None if stored is None else wire.decode_event(stored.data)
    except BadMessage:
        return None


def _report(stored: Stored | None) -> wire.AnyReport | None:
    try:
        return None if stored is None else wire.decode_report(stored.data)
    except BadMessage:
        return None


def stored_at(request: wire.Requested | None, stored: Stored | None) -> float | None:
    """When the server stored it; the sender's own clock where the server does not say."""
    stamp = stored.headers.get("Nats-Time-Stamp", "") if stored else ""
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return request.at or None if request and math.isfinite(request.at) else None


def is_run_id(value: str) -> bool:
    """Whether a run can be called so."""
    try:
        return bool(check_run_id(value))
    except BadMessage:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run in a list."""

    run_id: str
    pool: str
    status: str
    """``queued``, ``running``, ``aborting``, ``aborting (no daemon)``, or how it ended."""
    last: str
    """The kind of the newest message."""
    directive: str = ""
    label: str = ""
    group: str | None = None
    parent: str = ""
    """Who asked for it: the parent's id; empty where it said none."""
    continues: str | None = None
    """The run that it woke, where it did."""
    skip_transcript: bool = False
    daemon: str | None = None
    epoch: int = 0
    turns: int | None = 0
    """None where the result is too long to be on the log itself."""
    requested_at: float | None = None
    """Unix time; None where nobody said."""
    model: str = ""
    """The one that was called last; empty where nobody said."""
    usage: Usage = field(default_factory=Usage)
    """What its calls were billed for, as far as the log tells."""
    cost_usd: float | None = None
    """What that costs; None where nothing is known, or no price."""
    seq: int = 0
    """How far in the log this was read."""

    @property
    def over(self) -> bool:
        """Whether it ended."""
        return self.status not in _OPEN

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        age_s = None if self.requested_at is None else round(max(time.time() - self.requested_at, 0.0), 3)
        billed = {"usage": self.usage.to_wire(), "hit_ratio": round(self.usage.hit_ratio, 6)}
        return {**asdict(self), **billed, "age_s": age_s}


def requested_row(request: wire.Requested, *, run_id: str, pool: str, at: float | None, seq: int = 0) -> RunRow:
    """Return the row of a run that has just been asked for."""
    return RunRow(
        run_id=run_id,
        pool=pool,
        status="queued",
        last=request.kind,
        directive=request.directive,
        label=request.label,
        group=request.group,
        parent=request.parent.id,
        continues=request.continues,
        skip_transcript=request.skip_transcript,
        requested_at=at,
        seq=seq,
    )


def advanced(row: RunRow, message: wire.AbortEvent | wire.AnyReport, seq: int) -> RunRow:
    """Return the row as it is behind one more message of the run's log; `seq` is where that stands."""
    if row.over:
        return row  # the first end stands
    if isinstance(message, wire.AbortEvent):
        if not row.epoch:  # no daemon can claim it any more
            return replace(row, status=ForkStatus.ABORTED.value, last=message.kind, seq=max(seq, row.seq))
        return replace(row, status="aborting", seq=max(seq, row.seq))
    status = "queued" if isinstance(message, wire.HandedOver) else "running"
    status = row.status if row.status in _ABORTING else status
    now = replace(row, last=message.kind, epoch=message.epoch, status=status, seq=max(seq, row.seq))
    if (call := wire.announced_call(message)) is not None and call.model:
        now = replace(now, model=call.model)
    match message:
        case wire.Claimed():
            return replace(now, daemon=message.daemon.name)
        case wire.Turn():
            return _billed(replace(now, turns=max(now.turns or 0, message.turn)), message.usage)
        case wire.Compacted():
            return _billed(now, message.usage)
        case wire.Final():
            return _ended(now, message)
        case _:
            return now


def attended(row: RunRow, daemons: Iterable[wire.Presence]) -> RunRow:
    """Return the row with whether an aborted run that a daemon has taken has a daemon that will end it."""
    if row.status not in _ABORTING:
        return row
    able = any(not one.draining or one.daemon.name == row.daemon for one in daemons)
    return replace(row, status=_ABORTING[0] if able else _ABORTING[1])


def _billed(row: RunRow, reported: Mapping[str, Any]) -> RunRow:
    usage = Usage.from_wire(reported)
    row = replace(row, usage=row.usage + usage)
    try:
        return replace(row, cost_usd=(row.cost_usd or 0.0) + cost_usd(usage, row.model))
    except (UnknownModelPrice, BadPrices):
        return row


def _ended(row: RunRow, final: wire.Final) -> RunRow:
    row = replace(row, status=ForkStatus.FAILED.value if final.status in _OPEN else final.status)
    try:
        result = ForkResult.from_wire((final.result.text or "").encode("utf-8", "surrogatepass"))
    except BadMessage:
        # A long result is a blob of its own; what the log said until here stands.
        return replace(row, turns=row.turns or None)
    return replace(
        row,
        daemon=result.daemon,
        turns=result.turns,
        model=result.model or row.model,
        usage=result.usage,
        cost_usd=result.cost_usd,
    )
