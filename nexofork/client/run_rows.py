"""One run as a line in a list, and what each message of its log changes about it.

Reading a log from its beginning and following it as it grows come to the same row, because both go through `advanced`.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nexofork.core.usage import Usage
from nexofork.economics.prices import cost_usd
from nexofork.engine.result import ForkResult, ForkStatus
from nexofork.errors import BadMessage, BadPrices, UnknownModelPrice
from nexofork.wire import messages as wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["RunRow", "advanced", "attended", "requested_row"]

_ABORTING = ("aborting", ForkStatus.ABORTING_NO_DAEMON.value)
_OPEN = ("queued", "running", *_ABORTING)


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
