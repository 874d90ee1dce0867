"""A run's log: two subjects of one stream, one order, one writer.

Every write is a compare-and-set over both subjects, so a claim is one write that means "not claimed, not aborted", and
a daemon that lost the run cannot add to it. When a write is refused, or its answer is lost, what stands behind the last
known sequence decides (the tip rule): our own message id means that it had landed, an abort means stop, a report of our
epoch or a higher one by somebody else means that the run is lost.
Invariant: a message is on the log once or not at all, however often its answer is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from nexofork.bus.failures import AlreadyStored, NotPermitted, RunAborted, RunExists, StoreFull, WrongTip
from nexofork.bus.jetstream import Tries, call, expect_last, store
from nexofork.bus.reading import Stored, first_few, first_of, last_of, read_subject, store_once
from nexofork.core.usage import Usage
from nexofork.errors import BadMessage, BusError, RunLost
from nexofork.telemetry.spans import send_span, trace_headers
from nexofork.wire import subjects
from nexofork.wire.messages import (
    AbortEvent,
    Answer,
    Claimed,
    Compacted,
    Final,
    Requested,
    Turn,
    announced_call,
    answered_call,
    decode_event,
    decode_report,
    encode,
)
from nexofork.wire.streams import inbox_stream, log_stream
from nexofork.wire.subjects import DEFAULT_POOL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexofork.bus.connection import Bus
    from nexofork.wire.messages import Report

__all__ = [
    "AbortOutcome",
    "AnnouncedCall",
    "Entry",
    "RunAborted",
    "RunExists",
    "RunFacts",
    "RunLog",
    "StoreFull",
    "event_subjects",
    "posted_abort",
    "read_facts",
]

_REFUSE_AT = 0.8
_PATIENCE = 8
_PLAIN_AFTER_S = 15.0
_ABORTED = "aborted"


class Entry(NamedTuple):
    """One message of a run's log."""

    seq: int
    message: Requested | AbortEvent | Report | BadMessage
    """What it says, or why it cannot be read."""
    raw: Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortOutcome:
    """What became of an abort."""

    how: Literal["logged", "inbox", "already", "ended", "unknown"]
    """On the log; in the inbox because the log is full; aborted before; the run was over; there is no such run."""
    seq: int = 0
    """Where it stands: of the abort (logged, already), or of the final report (ended)."""

    @property
    def stands(self) -> bool:
        """Whether an abort is in place now, ours or an earlier one."""
        return self.how in ("logged", "inbox", "already")


class RunLog:
    """The log of one run."""

    def __init__(self, bus: Bus, run_id: str, *, pool: str = DEFAULT_POOL, deadline_s: float | None = None) -> None:
        self.run_id = run_id
        self.stream = log_stream(pool)
        self._bus = bus
        self._pool = pool
        self._deadline_s = deadline_s
        self._events = subjects.events(run_id, pool)
        self._reports = subjects.reports(run_id, pool)
        self._filter = subjects.run_filter(run_id, pool)
        self._written: set[str] = set()
        """The ids of the reports that were sent through here, whether or not it is known that they landed."""

    async def request(self, event: Requested, *, headers: Mapping[str, str] | None = None) -> int:
        """Ask for the run and return the request's sequence; asking again with the same id changes nothing.

        The current trace travels in the headers: whoever runs the request goes on with it.

        Raises:
            RunExists: The run id was used for another request.
            RunAborted: The run was aborted before it was asked for.
            StoreFull: The log is so full that only aborts and reports still go in.
            PayloadTooLarge: The request does not fit a message.
            BusError: NATS did not confirm it before the deadline; it may have landed.
        """
        with send_span(self._pool, self.run_id):
            try:
                with Tries(self._bus, self._deadline_s) as tries:
                    return await self._request(event, headers, tries)
            except BusError as exc:
                if exc.retryable and not isinstance(exc, StoreFull):
                    unknown = f"Run {self.run_id} may have been asked for all the same: `nexofork ps` shows it then."
                    exc.args = (f"{exc} {unknown}",)
                raise

    async def _request(self, event: Requested, headers: Mapping[str, str] | None, tries: Tries) -> int:
        fill = await tries.run(lambda: self._bus.stream_fill(self.stream))
        if fill >= _REFUSE_AT:
            raise StoreFull(self.stream, f"{fill:.0%} used, and new runs are refused from {_REFUSE_AT:.0%}")
        data = encode(event)
        while True:
            try:
                return await self._put(self._events, data, 0, headers)
            except WrongTip as exc:
                tries.note(exc)
            except BusError as exc:
                tries.check(exc)
            stored = await tries.run(lambda: first_of(self._bus, self.stream, self._filter))
            if stored is not None:
                return self._requested(stored, event)
            await tries.pause()

    async def append(self, report: Report, *, after: int, headers: Mapping[str, str] | None = None) -> int:
        """Add a report behind a sequence and return its own.

        Raises:
            RunAborted: The parent ended the run.
            RunLost: Another daemon has it, or it is over.
            StoreFull: The log has no more room at all.
            PayloadTooLarge: It was not sent.
            BusError: NATS did not confirm it before the deadline; it may have landed.
        """
        self._written.add(report.id)
        with Tries(self._bus, self._deadline_s) as tries:
            return await self._append(report, after, headers, tries)

    async def _append(self, report: Report, after: int, headers: Mapping[str, str] | None, tries: Tries) -> int:
        data, tip = encode(report), after
        while True:
            refused = False
            try:
                return await self._put(self._reports, data, tip, headers)
            except WrongTip as exc:
                refused = True
                tries.note(exc)
            except BusError as exc:
                tries.check(exc)
            landed, tip = await tries.run(lambda: self._judge(report, after))
            if landed:
                return tip
            if refused and tip == after:
                await self._check_kept(after, tries)
            await tries.pause()

    async def abort(self, event: AbortEvent) -> AbortOutcome:
        """End the run; a no-op where it is over, was aborted, or was never asked for.

        The compare-and-set makes sure that no report follows that did not know of the abort: on a replicated stream a
        report that is on its way can pass a plain abort, and the reports after it would never notice. Only where
        writers win for 15 s the abort goes in plainly; where the log is full, by the inbox.

        Raises:
            BusError: NATS did not confirm it before the deadline.
        """
        with Tries(self._bus, self._deadline_s) as tries:
            return await self._abort(event, tries)

    async def _abort(self, event: AbortEvent, tries: Tries) -> AbortOutcome:
        data, tried = encode(event), 0
        tip: int | None = None
        refused_at: float | None = None
        while True:
            if tip is None or tried % _PATIENCE == 0:
                standing = await tries.run(lambda: self._standing(event))
                if isinstance(standing, AbortOutcome):
                    return standing
                tip = standing
            tried += 1
            try:
                plain = refused_at is not None and tries.spent_s - refused_at > _PLAIN_AFTER_S
                seq = await self._put(self._events, data, None if plain else tip)
                return await self._aborted(seq, tip)
            except WrongTip as exc:
                # At once, and without reading first: a busy writer is as near to the server as we are.
                tip = exc.last_seq
                refused_at = tries.spent_s if refused_at is None else refused_at
                tries.note(exc)
            except (StoreFull, AlreadyStored):
                return await self._abort_by_inbox(event)
            except BusError as exc:
                tries.check(exc)
                tip = refused_at = None  # an outage is not a busy writer
                await tries.pause()

    async def entries(self, *, start_seq: int = 1) -> list[Entry]:
        """Return the log from a sequence on, complete up to this moment; what cannot be read says so in its place.

        Raises:
            BusError: NATS did not answer.
        """
        found = await read_subject(self._bus, self.stream, self._filter, start_seq=start_seq)
        try:
            tip = await last_of(self._bus, self.stream, self._filter)
        except NotPermitted:  # observers read replicas only
            return [_entry(stored) for stored in found]
        # A replica may be behind; the leader has the rest.
        known = found[-1].seq if found else start_seq - 1
        while tip is not None and known < tip.seq:
            newer = await first_of(self._bus, self.stream, self._filter, start_seq=known + 1)
            if newer is None:
                break
            found.append(newer)
            known = newer.seq
        return [_entry(stored) for stored in found]

    async def tip(self) -> Entry | None:
        """Return the newest entry, as the stream's leader knows it.

        Raises:
            BusError: NATS did not answer.
        """
        stored = await last_of(self._bus, self.stream, self._filter)
        return None if stored is None else _entry(stored)

    async def inbox_abort(self) -> AbortEvent | None:
        """Return the abort that came by the inbox because the log was full, if there is one.

        Raises:
            BusError: NATS did not answer.
        """
        subject = subjects.inbox(self.run_id, "abort", self._pool)
        stored = await last_of(self._bus, inbox_stream(self._pool), subject)
        return None if stored is None else posted_abort(stored)

    async def _put(self, subject: str, data: bytes, after: int | None, headers: Mapping[str, str] | None = None) -> int:
        expected = {} if after is None else expect_last(after, self._filter)
        return await store(self._bus, subject, data, headers={**trace_headers(), **(headers or {}), **expected} or None)

    async def _judge(self, report: Report, after: int) -> tuple[bool, int]:
        """Apply the tip rule to what stands behind a sequence, as the leader has it: a replica may be behind.

        Returns:
            Whether our own message is there, and its sequence; else where the log ends without anything that counts.
        """
        aborted: AbortEvent | None = None
        while (stored := await first_of(self._bus, self.stream, self._filter, start_seq=after + 1)) is not None:
            after, message = stored.seq, _entry(stored).message
            if isinstance(message, BadMessage):
                continue
            if message.id == report.id:
                return True, after
            if message.id in self._written and not isinstance(message, Final):
                continue  # ours: its writer was cancelled before the answer came
            if isinstance(message, AbortEvent):
                aborted = aborted or message
            elif isinstance(message, Final):
                raise RunLost(self.run_id, f"it ended as {message.status} at {after}")
            elif not isinstance(message, Requested) and message.epoch >= report.epoch:
                raise RunLost(self.run_id, f"epoch {message.epoch} wrote at {after}, ours is {report.epoch}")
        # "It ended as aborted" is the answer to an abort, so no abort stops it.
        if aborted is not None and not (isinstance(report, Final) and report.status == _ABORTED):
            raise RunAborted(aborted, after)
        return False, after

    async def _check_kept(self, after: int, tries: Tries) -> None:
        """Refused with nothing behind: a write under way, or a log that is not the one we wrote to."""
        tip = await tries.run(lambda: last_of(self._bus, self.stream, self._filter))
        if after and (tip is None or tip.seq < after) and tries.count > _PATIENCE:
            raise RunLost(self.run_id, f"the log no longer holds sequence {after}")

    def _requested(self, first: Stored, event: Requested) -> int:
        message = _entry(first).message
        if isinstance(message, Requested) and message.id == event.id:
            return first.seq
        if isinstance(message, AbortEvent):
            raise RunAborted(message, first.seq)
        raise RunExists(self.run_id)

    async def _standing(self, event: AbortEvent) -> AbortOutcome | int:
        """Return why there is nothing to abort, or where the log ends."""
        last_report = await last_of(self._bus, self.stream, self._reports)
        last_event = await last_of(self._bus, self.stream, self._events)
        if last_report is not None and isinstance(_entry(last_report).message, Final):
            return AbortOutcome(how="ended", seq=last_report.seq)
        reported = last_report.seq if last_report is not None else 0
        if last_event is None:
            return reported or AbortOutcome(how="unknown")
        message = _entry(last_event).message
        # A report behind an abort passed it on its way, and its writer does not know: it takes another abort.
        if isinstance(message, AbortEvent) and last_event.seq > reported:
            return AbortOutcome(how="logged" if message.id == event.id else "already", seq=last_event.seq)
        return max(last_event.seq, reported)

    async def _aborted(self, seq: int, tip: int) -> AbortOutcome:
        """Return what an abort that went in means: nothing, if the report before it was the final one."""
        try:
            before = await first_of(self._bus, self.stream, self._filter, start_seq=tip)
        except BusError:  # it is in, which is what was asked for
            before = None
        if before is not None and before.seq < seq and isinstance(_entry(before).message, Final):
            return AbortOutcome(how="ended", seq=before.seq)
        return AbortOutcome(how="logged", seq=seq)

    async def _abort_by_inbox(self, event: AbortEvent) -> AbortOutcome:
        answer = encode(Answer(id=event.id, at=event.at, kind="abort", text=event.note, data={"by": event.by}))
        subject = subjects.inbox(self.run_id, "abort", self._pool)
        found = await store_once(self._bus, inbox_stream(self._pool), subject, answer, limit_s=self._deadline_s)
        return AbortOutcome(how="inbox" if found is None or found.data == answer else "already")


def posted_abort(stored: Stored) -> AbortEvent:
    """Return the abort that stands in an inbox; also what cannot be read there ends the run."""
    try:
        answer = Answer.model_validate_json(stored.data)
    except ValueError:
        return AbortEvent(note="an abort that cannot be read")
    return AbortEvent(id=answer.id, note=answer.text, by=str(answer.data.get("by", "")))


def _entry(stored: Stored) -> Entry:
    decode = decode_event if stored.subject.endswith(".events") else decode_report
    try:
        return Entry(stored.seq, decode(stored.data), stored)
    except BadMessage as exc:
        return Entry(stored.seq, exc, stored)


async def event_subjects(bus: Bus, pool: str = DEFAULT_POOL) -> dict[str, int]:
    """Return what parents wrote on the pool's logs: by subject, how many messages.

    A log on which only daemons wrote is no run. A daemon's key can begin any number of them.

    Raises:
        BusError: NATS did not answer.
    """
    found: dict[str, int] = {}
    while True:
        query = {"subjects_filter": f"agent.{pool}.*.events", "offset": len(found)}
        info = await call(bus, f"STREAM.INFO.{log_stream(pool)}", query)
        page = (info.get("state") or {}).get("subjects") or {}
        found |= page
        if not page or len(found) >= int(info.get("total", 0)):
            return found


class AnnouncedCall(NamedTuple):
    """A model call as a run's log tells of it."""

    at: float
    model: str
    usage: Usage | None
    """None where no reply is on the log."""


@dataclass(slots=True)
class RunFacts:
    """Whose a run is, by its log: a parent asked for it, and a daemon claimed each epoch.

    Only parents can write requests, so a claim without one before it does not count. Nor does one that repeats an
    epoch, or comes after the end: a daemon appends its claim only where it is the next one.
    """

    request: Requested | None = None
    """None also where this version cannot read it."""
    requested_at: int = 0
    """The request's sequence; 0 where no parent asked for the run."""
    claims: dict[int, Claimed] = field(default_factory=dict)
    """By epoch."""
    calls: dict[tuple[int, int, int], AnnouncedCall] = field(default_factory=dict)
    """By epoch, turn and attempt; only where the whole log was read."""
    over: bool = False
    """Whether the run has ended."""

    def add(self, entry: Entry) -> None:
        """Take the next entry of the log."""
        message = entry.message
        if entry.raw.subject.endswith(".events"):
            if not self.requested_at and not isinstance(message, AbortEvent):
                self.request, self.requested_at = message if isinstance(message, Requested) else None, entry.seq
            return
        if not self.requested_at or self.over or isinstance(message, (BadMessage, AbortEvent, Requested)):
            return
        epoch = max(self.claims, default=0)
        if isinstance(message, Claimed) and message.epoch > epoch:
            self.claims[message.epoch] = message
            epoch = message.epoch
        if message.epoch != epoch:
            return
        if (call := announced_call(message)) is not None:
            self.calls.setdefault((epoch, call.turn, call.attempt), AnnouncedCall(call.at, call.model, None))
        elif isinstance(message, (Turn, Compacted)) and (key := (epoch, *answered_call(message))) in self.calls:
            if self.calls[key].usage is None:
                self.calls[key] = self.calls[key]._replace(usage=Usage.from_wire(message.usage))
        elif isinstance(message, Final):
            self.over = True


async def read_facts(bus: Bus, run_id: str, *, pool: str = DEFAULT_POOL, whole: bool = False) -> RunFacts:
    """Return whose a run is.

    A run that one daemon took at once says so in its first two entries, and no more than these are read.

    Args:
        bus: The connection.
        run_id: Which run.
        pool: Of the run.
        whole: Whether to read the whole log: it has the claims of later epochs, the calls and the end.

    Raises:
        BusError: NATS did not answer.
    """
    stream, filter_ = log_stream(pool), subjects.run_filter(run_id, pool)
    found = await (read_subject(bus, stream, filter_) if whole else first_few(bus, stream, filter_, 2))
    facts = RunFacts()
    for stored in found:
        facts.add(_entry(stored))
    if whole or len(found) < 2:
        return facts
    claimed = facts.claims.get(1)
    known = claimed is not None and claimed.request in (None, facts.requested_at)
    return facts if known else await read_facts(bus, run_id, pool=pool, whole=True)
