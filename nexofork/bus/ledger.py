"""Put model calls into the ledger, read them back, and tell which of them count.

The subject carries the daemon's public key, and the server lets no other key publish on it; a message that names
another daemon than its subject does is left out. An entry counts where the run's log agrees: a parent asked for the
run, and the entry's key claimed the epoch. A daemon that takes a run over books the calls of earlier daemons as the log
tells of them; such an entry counts only if the log says the same.

The log forgets after three days and the ledger after ninety. Older entries can no longer be checked: they count as they
are, and the reader is told how many there are.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from nexofork.bus.credentials import LOCAL
from nexofork.bus.failures import JetStreamRefused
from nexofork.bus.jetstream import call, store
from nexofork.bus.reading import read_subject, stored_at
from nexofork.bus.run_log import RunFacts, event_subjects, read_facts
from nexofork.errors import BadMessage
from nexofork.wire import subjects
from nexofork.wire.ledger import billed_tokens, cut_text, decode_calls, encode_calls
from nexofork.wire.streams import LEDGER, log_stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nexofork.bus.connection import Bus
    from nexofork.bus.reading import Stored
    from nexofork.wire.ledger import BookedCall
    from nexofork.wire.messages import Daemon

__all__ = ["Booking", "CheckedLedger", "append_calls", "check_ledger", "claimed_by", "read_bookings", "read_ledger"]

log = logging.getLogger(__name__)

_SKEW_S = 600.0
"""How far a daemon's clock may be ahead of the server's before its newest calls are missed."""
_AT_ONCE = 64
"""How many logs are read at the same time."""
_LONG_RUN = 1 / 3
"""How long before its last booked call a run may have been claimed, as a share of what the log keeps."""
_NO_STREAM = 10059


class Booking(NamedTuple):
    """An entry of the ledger: a call, and the daemon whose key booked it."""

    call: BookedCall
    nkey: str
    instance: str
    stored_at: float
    """Unix time, by the server's clock."""


@dataclass(slots=True)
class CheckedLedger:
    """The entries of a pool, by whether they count."""

    counted: list[BookedCall] = field(default_factory=list)
    """A call may be there more than once."""
    disputed: list[Booking] = field(default_factory=list)
    """They contradict the entry of the daemon that claimed the run."""
    unverified: list[Booking] = field(default_factory=list)
    """The run's log does not say that this daemon had the run, or that the call was made."""
    unchecked: set[str] = field(default_factory=set)
    """Ids of the counted calls that are too old to be checked."""


async def append_calls(bus: Bus, daemon: Daemon, calls: Sequence[BookedCall]) -> None:
    """Store calls as one message; after an unknown outcome it may be done again, since readers count a call once.

    Raises:
        BusError: They were not stored, or it is not known.
    """
    data = encode_calls(daemon, calls, at=time.time())
    await store(bus, subjects.ledger(bus.identity, daemon.instance), data)


async def read_ledger(bus: Bus, since: float | None = None) -> list[BookedCall]:
    """Return what was booked, unchecked, in the order of the stream; a call may be there more than once.

    Args:
        bus: A connection of a parent, an observer or an admin; daemons may not read it.
        since: Unix time; calls sent before it are left out.

    Raises:
        BusError: NATS did not answer, or this role may not read it.
    """
    return [booking.call for booking in await read_bookings(bus, since)]


async def read_bookings(bus: Bus, since: float | None = None) -> list[Booking]:
    """Return what `read_ledger` does, with the key that booked each call.

    Raises:
        BusError: NATS did not answer, or this role may not read it.
    """
    # A call is stored after it was sent, so older messages need not be read.
    stored = await read_subject(
        bus, LEDGER, "ledger.*.*", stored_since=None if since is None else max(since - _SKEW_S, 0.0)
    )
    return [one for message in stored for one in _bookings(message) if since is None or one.call.at >= since]


async def check_ledger(bus: Bus, bookings: Iterable[Booking], *, pool: str) -> CheckedLedger:
    """Compare a pool's entries with the logs of their runs; entries of other pools are left out.

    Raises:
        BusError: NATS did not answer.
    """
    by_run: dict[str, list[Booking]] = defaultdict(list)
    for booking in bookings:
        if booking.call.pool == pool:
            by_run[booking.call.run_id].append(booking)
    kept = await _kept(bus, pool)
    # An entry can name any run. Those that no parent asked for are not looked up one by one.
    asked_for = await event_subjects(bus, pool) if any(map(kept.holds_any, by_run.values())) else {}
    checked = CheckedLedger()
    runs = iter(by_run.items())

    async def check_some() -> None:
        for run_id, booked in runs:  # shared by all who check
            facts = RunFacts()
            if not _is_run(run_id):
                checked.unverified += booked
                continue
            if subjects.events(run_id, pool) in asked_for and kept.holds_any(booked):
                later = any(one.call.epoch > 1 for one in booked)
                facts = await read_facts(bus, run_id, pool=pool, whole=later)
                if not later and _asks_for_calls(booked, facts):
                    facts = await read_facts(bus, run_id, pool=pool, whole=True)
            _check_run(checked, booked, facts, kept)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(_AT_ONCE, len(by_run))):
            tasks.create_task(check_some())
    return checked


def claimed_by(claimant: Daemon, nkey: str, instance: str) -> bool:
    """Whether a claim is of the daemon with this key; one without a key, as on an open server, goes by its instance."""
    return claimant.instance == instance if claimant.nkey == LOCAL else claimant.nkey == nkey


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """How far back a log goes."""

    since: float
    """Everything the server stored after this is there."""
    long_run_s: float
    """How much earlier than a call the claim of its run may have been stored."""

    def holds_any(self, bookings: Iterable[Booking]) -> bool:
        return any(one.stored_at >= self.since for one in bookings)

    def must_hold(self, booking: Booking) -> bool:
        """Whether the claim of the call's run must be on the log."""
        return booking.stored_at >= self.since + self.long_run_s


async def _kept(bus: Bus, pool: str) -> _Kept:
    try:
        info = await call(bus, f"STREAM.INFO.{log_stream(pool)}")
    except JetStreamRefused as refused:
        if refused.err_code != _NO_STREAM:
            raise
        return _Kept(since=float("inf"), long_run_s=0.0)
    state, max_age_s = info["state"], int(info["config"].get("max_age", 0)) / 1e9
    if int(state.get("first_seq", 0)) <= 1:  # nothing has expired yet
        return _Kept(since=_unix(info.get("created")), long_run_s=0.0)
    oldest = state.get("first_ts" if int(state.get("messages", 0)) else "last_ts")
    return _Kept(since=_unix(oldest), long_run_s=max_age_s * _LONG_RUN)


def _unix(stamp: object) -> float:
    try:
        # Of nine decimals, Python reads six.
        return datetime.fromisoformat(str(stamp)[:26].rstrip("Z") + "+00:00").timestamp()
    except ValueError:
        return 0.0


def _asks_for_calls(bookings: Iterable[Booking], facts: RunFacts) -> bool:
    """Whether another than the claimant booked a call that the claimant did not."""
    own = {one.call.call_id for one in bookings if _is_own(one, facts)}
    return bool(facts.claims) and any(one.call.call_id not in own for one in bookings)


def _is_own(booking: Booking, facts: RunFacts) -> bool:
    claim = facts.claims.get(booking.call.epoch)
    return claim is not None and claimed_by(claim.daemon, booking.nkey, booking.instance)


def _check_run(checked: CheckedLedger, bookings: Sequence[Booking], facts: RunFacts, kept: _Kept) -> None:
    by_call: dict[str, list[Booking]] = defaultdict(list)
    for booking in bookings:
        by_call[booking.call.call_id].append(booking)
    for call_id, booked in by_call.items():
        own = [one for one in booked if _is_own(one, facts)]
        others = [one for one in booked if not _is_own(one, facts)]
        if own:
            checked.counted += [_named(one.call, facts) for one in own]
            checked.disputed += [one for one in others if not _repeats(one, own)]
            continue
        old = [] if facts.requested_at else [one for one in others if not kept.must_hold(one)]
        if old:
            _count_unchecked(checked, call_id, old)
        for one in others:
            if _is_on_log(one.call, facts):
                checked.counted.append(_named(one.call, facts))
            elif one not in old:
                checked.unverified.append(one)


def _count_unchecked(checked: CheckedLedger, call_id: str, booked: Sequence[Booking]) -> None:
    """Count a call that is too old to check; of keys that differ the higher bill, so that none can hide a cost."""
    best = max(booked, key=lambda one: sum(one.call.billed or ()))
    own = [one for one in booked if (one.nkey, one.instance) == (best.nkey, best.instance)]
    checked.counted += [one.call for one in own]
    checked.disputed += [one for one in booked if one not in own and not _repeats(one, own)]
    checked.unchecked.add(call_id)


def _repeats(booking: Booking, own: Iterable[Booking]) -> bool:
    """Whether an entry adds nothing to the claimant's: it says the same, or that nothing is known."""
    call = booking.call
    if _knows_nothing(call):
        return True
    return any((call.billed, call.model, call.outcome) == (o.call.billed, o.call.model, o.call.outcome) for o in own)


def _is_on_log(call: BookedCall, facts: RunFacts) -> bool:
    """Whether an entry says what the log says of the call."""
    announced = facts.calls.get((call.epoch, call.turn, call.attempt))
    if announced is None or (cut_text(announced.model), announced.at) != (call.model, call.at):
        return False
    if announced.usage is None or _knows_nothing(call):
        return _knows_nothing(call)
    return call.outcome == "confirmed" and call.billed == billed_tokens(announced.usage)


def _knows_nothing(call: BookedCall) -> bool:
    return call.outcome == "unconfirmed" and call.billed is None


def _named(call: BookedCall, facts: RunFacts) -> BookedCall:
    """Return a call under the names that the run's log gives it."""
    names: dict[str, str | None] = {"host": cut_text(facts.claims[call.epoch].daemon.name)}
    if facts.request is not None:
        group, parent = facts.request.group, facts.request.parent
        names |= {"group": None if group is None else cut_text(group), "parent": cut_text(parent.id or parent.host)}
    same = all(getattr(call, name) == value for name, value in names.items())
    return call if same else call.model_copy(update=names)


def _is_run(run_id: str) -> bool:
    try:
        return bool(subjects.check_run_id(run_id))
    except BadMessage:
        return False


def _bookings(stored: Stored) -> list[Booking]:
    try:
        daemon, calls = decode_calls(stored.data)
    except BadMessage:
        log.debug("a message on %s cannot be read", stored.subject)
        return []
    if stored.subject.split(".")[1:] != [daemon.nkey, daemon.instance]:
        return []
    at = stored_at(stored) or time.time()
    return [Booking(one, daemon.nkey, daemon.instance, at) for one in calls]
