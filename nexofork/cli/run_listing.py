"""List the runs of a pool from the newest message of each, without reading their logs.

A log of three days has thousands of runs; only those that are at work are read whole. Everything is read directly, so
that an observer may do it too.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nexofork.bus.jetstream import call
from nexofork.bus.reading import last_of_many, read_subject
from nexofork.engine.result import ForkResult
from nexofork.errors import BadMessage
from nexofork.wire import messages as wire
from nexofork.wire.streams import log_stream
from nexofork.wire.subjects import check_run_id, events, reports, run_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.bus.connection import Bus
    from nexofork.bus.reading import Stored

__all__ = ["RunRow", "list_runs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run in a list."""

    run_id: str
    pool: str
    status: str
    """``queued``, ``running``, ``aborting``, or how it ended."""
    last: str
    """The kind of the newest message."""
    directive: str
    label: str
    group: str | None
    skip_transcript: bool
    daemon: str | None
    epoch: int
    turns: int | None
    requested_at: float | None
    """Unix time; None where nobody said."""

    @property
    def over(self) -> bool:
        """Whether it ended."""
        return self.status not in ("queued", "running", "aborting")

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        age_s = None if self.requested_at is None else round(max(time.time() - self.requested_at, 0.0), 3)
        return {**asdict(self), "age_s": age_s}


async def list_runs(bus: Bus, pool: str) -> list[RunRow]:
    """Return the pool's runs, newest first.

    Raises:
        BusError: NATS did not answer.
    """
    stream = log_stream(pool)
    # Anybody may publish under a name that is no run id; no daemon runs it, and it cannot be asked for.
    ids = sorted({run_of(subject) for subject in await _subjects(bus, stream, pool) if _is_token(run_of(subject))})
    asked = {run_of(one.subject): one for one in await last_of_many(bus, stream, [events(one, pool) for one in ids])}
    said = {run_of(one.subject): one for one in await last_of_many(bus, stream, [reports(one, pool) for one in ids])}
    rows = [await _row(bus, pool, run_id, asked.get(run_id), said.get(run_id)) for run_id in ids]
    return sorted(rows, key=lambda row: row.requested_at or 0.0, reverse=True)


async def _subjects(bus: Bus, stream: str, pool: str) -> list[str]:
    found: list[str] = []
    while True:
        info = await call(bus, f"STREAM.INFO.{stream}", {"subjects_filter": f"agent.{pool}.*.*", "offset": len(found)})
        page = list((info.get("state") or {}).get("subjects") or {})
        found += page
        if not page or len(found) >= int(info.get("total", 0)):
            return found


async def _row(bus: Bus, pool: str, run_id: str, asked: Stored | None, said: Stored | None) -> RunRow:
    event, report = _event(asked), _report(said)
    aborted = isinstance(event, wire.AbortEvent)
    request, at = (event, asked) if isinstance(event, wire.Requested) else (None, None)
    if aborted:
        request, at = await _first_request(bus, pool, run_id)
    facts = _at_work(report, said) if not isinstance(report, wire.Final) else _ended(report)
    if facts.pop("unsure", False):
        facts |= _facts_of(await read_subject(bus, log_stream(pool), reports(run_id, pool)))
    status = facts.pop("status")
    return RunRow(
        run_id=run_id,
        pool=pool,
        status="aborting" if aborted and status in ("queued", "running") else status,
        last=report.kind if report else event.kind if event else "unreadable",
        directive=request.directive if request else "",
        label=request.label if request else "",
        group=request.group if request else None,
        skip_transcript=request.skip_transcript if request else False,
        requested_at=_time(request, at),
        **facts,
    )


def _at_work(report: Any, said: Stored | None) -> dict[str, Any]:
    if report is None:
        return {"status": "queued" if said is None else "running", "daemon": None, "epoch": 0, "turns": 0}
    status = "queued" if isinstance(report, wire.HandedOver) else "running"
    return {"status": status, "daemon": None, "epoch": report.epoch, "turns": 0, "unsure": True}


def _ended(final: wire.Final) -> dict[str, Any]:
    facts: dict[str, Any] = {"status": final.status, "daemon": None, "epoch": final.epoch, "turns": None}
    if final.result.text is not None:
        try:
            result = ForkResult.from_wire(final.result.text.encode("utf-8", "surrogatepass"))
        except BadMessage:
            return facts
        facts |= {"daemon": result.daemon, "turns": result.turns}
    return facts


def _facts_of(log: Sequence[Stored]) -> dict[str, Any]:
    """What only the whole log tells of a run at work: who has it, and how far it is."""
    daemon, turns = None, set()
    for stored in log:
        match _report(stored):
            case wire.Claimed() as claimed:
                daemon = claimed.daemon.name
            case wire.Turn() as turn:
                turns.add(turn.turn)
    return {"daemon": daemon, "turns": len(turns)}


async def _first_request(bus: Bus, pool: str, run_id: str) -> tuple[wire.Requested | None, Stored | None]:
    for stored in await read_subject(bus, log_stream(pool), events(run_id, pool)):
        event = _event(stored)
        if isinstance(event, wire.Requested):
            return event, stored
    return None, None


def _event(stored: Stored | None) -> wire.Requested | wire.AbortEvent | None:
    try:
        return None if stored is None else wire.decode_event(stored.data)
    except BadMessage:
        return None


def _report(stored: Stored | None) -> Any:
    try:
        return None if stored is None else wire.decode_report(stored.data)
    except BadMessage:
        return None


def _time(request: wire.Requested | None, stored: Stored | None) -> float | None:
    """When the server stored it; the sender's own clock where the server does not say."""
    stamp = stored.headers.get("Nats-Time-Stamp", "") if stored else ""
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return request.at or None if request and math.isfinite(request.at) else None


def _is_token(value: str) -> bool:
    try:
        return bool(check_run_id(value))
    except BadMessage:
        return False
