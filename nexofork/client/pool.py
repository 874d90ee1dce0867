"""Keep a picture of a pool up to date: its daemons, its runs, what they read from the cache and what they cost.

The live feed is applied while it is without gaps, so watching costs the server no reading at all. A parent does not
see other parents' requests in the feed, and a broken connection loses some of it; the sequence tells, and then the log
is read from where the picture ends. Every so often it is read without a reason, in case the newest was what got lost.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

from nexofork.bus.jetstream import call
from nexofork.bus.presence import PresenceBoard, read_presence
from nexofork.bus.reading import Stored, read_subject
from nexofork.client.runs import (
    RunRow,
    advanced,
    attended,
    is_asked_for,
    is_run_id,
    list_runs,
    requested_row,
    stored_at,
)
from nexofork.core.usage import Usage
from nexofork.errors import BadMessage, BusError
from nexofork.wire import messages as wire
from nexofork.wire.streams import log_stream
from nexofork.wire.subjects import live_pool, live_presence, run_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from types import TracebackType

    from nexofork.bus.connection import Bus, Msg, Subscription
    from nexofork.wire.messages import Presence

__all__ = ["Change", "PoolTotals", "PoolView"]

_GATHER_S = 0.1
_REREAD_S = 10.0
_MOST_WAITING = 20_000
"""Messages that came while we were busy; beyond it the log is the shorter way."""


class Change(NamedTuple):
    """One thing that is now otherwise; a daemon that has gone is named alone."""

    run: RunRow | None = None
    daemon: Presence | None = None
    gone: Presence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTotals:
    """All of a picture in a few numbers."""

    hosts: int
    daemons: int
    slots: int
    busy: int
    queued: int
    running: int
    ended: int
    usage: Usage
    cost_usd: float | None
    """None where no price is known of any run."""


class PoolView:
    """A picture of one pool; an async context that listens while it is open."""

    def __init__(self, bus: Bus, pool: str, *, parent: str | None = None, group: str | None = None) -> None:
        self.runs: dict[str, RunRow] = {}
        self.daemons: dict[tuple[str, str], Presence] = {}
        self._bus = bus
        self._pool = pool
        self._parent = parent
        self._group = group
        self._seen = 0
        self._stale = True
        self._news = asyncio.Event()
        self._waiting: list[Stored] = []
        self._heard: list[Presence] = []
        self._subscriptions: list[Subscription] = []
        self._forget: Callable[[], None] = lambda: None

    @property
    def connected(self) -> bool:
        """Whether what is shown can be new."""
        return self._bus.connected

    @property
    def totals(self) -> PoolTotals:
        """The picture in numbers."""
        rows, daemons = self.runs.values(), self.daemons.values()
        costs = [row.cost_usd for row in rows if row.cost_usd is not None]
        return PoolTotals(
            hosts=len({one.daemon.host for one in daemons}),
            daemons=len(daemons),
            slots=sum(one.slots for one in daemons),
            busy=sum(one.running for one in daemons),
            queued=sum(row.status == "queued" for row in rows),
            running=sum(not row.over and row.status != "queued" for row in rows),
            ended=sum(row.over for row in rows),
            usage=sum((row.usage for row in rows), start=Usage()),
            cost_usd=sum(costs) if costs else None,
        )

    async def __aenter__(self) -> Self:
        self._forget = self._bus.on_reconnect(self._reread)
        for subject in live_pool(self._pool):
            self._subscriptions.append(await self._bus.subscribe(subject, self._live))
        self._subscriptions.append(await self._bus.subscribe(live_presence(), self._present))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._forget()
        for subscription in self._subscriptions:
            await subscription.unsubscribe()

    def nudge(self) -> None:
        """Let `changes` yield soon, whether or not there are any."""
        self._news.set()

    async def changes(self, *, every_s: float = 1.0) -> AsyncGenerator[list[Change], None]:
        """Yield what changed, first everything there is; an empty list where nothing did for a while. Never ends.

        Raises:
            BusError: NATS refuses; a connection that is down is waited for.
        """
        loop = asyncio.get_running_loop()
        info = await call(self._bus, f"STREAM.INFO.{log_stream(self._pool)}")
        self._seen = int(info["state"]["last_seq"])
        for row in await list_runs(self._bus, self._pool, parent=self._parent, group=self._group):
            self.runs[row.run_id] = row
        self._stale, reread_at = False, loop.time() + _REREAD_S
        yield [*(Change(run=row) for row in self.runs.values()), *await self._look_for_daemons()]
        while True:
            try:
                async with asyncio.timeout(every_s):
                    await self._news.wait()
                await asyncio.sleep(_GATHER_S)  # a burst is one change
            except TimeoutError:
                pass
            self._news.clear()
            if not self.connected:
                yield []
                continue
            if loop.time() >= reread_at:
                self._stale = True
            try:
                found = await self._catch_up()
                if loop.time() >= reread_at:
                    found += await self._look_for_daemons()
                    reread_at = loop.time() + _REREAD_S
            except BusError as exc:
                if not exc.retryable:
                    raise
                self._stale, found = True, []
            yield [*found, *self._attend()]

    def _attend(self) -> list[Change]:
        """Return the aborted runs for which a daemon has come or gone that could end them."""
        changed = []
        for run_id, row in self.runs.items():
            after = attended(row, self.daemons.values())
            if after is not row and after != row:
                changed.append((run_id, after))
        self.runs.update(changed)
        return [Change(run=row) for _, row in changed]

    async def _catch_up(self) -> list[Change]:
        changed: dict[str, RunRow] = {}
        arrived, self._waiting = sorted(self._waiting, key=lambda one: one.seq), []
        for stored in arrived:
            if stored.seq > self._seen + 1:
                self._stale = True
                break
            self._apply(stored, changed)
        if self._stale:
            self._stale = False
            everything = f"agent.{self._pool}.*.*"
            for stored in await read_subject(self._bus, log_stream(self._pool), everything, start_seq=self._seen + 1):
                self._apply(stored, changed)
        heard, self._heard = self._heard, []
        return [*(Change(run=row) for row in changed.values()), *self._took(heard)]

    def _apply(self, stored: Stored, changed: dict[str, RunRow]) -> None:
        if stored.seq <= self._seen:
            return
        self._seen = stored.seq
        run_id, row = run_of(stored.subject), self.runs.get(run_of(stored.subject))
        if row is not None and stored.seq <= row.seq:
            return  # the list was made while it came
        try:
            if not stored.subject.endswith(".events"):
                after = row and advanced(row, wire.decode_report(stored.data), stored.seq)
            elif isinstance(event := wire.decode_event(stored.data), wire.AbortEvent):
                after = row and advanced(row, event, stored.seq)
            elif row is None and is_run_id(run_id) and is_asked_for(event, self._parent, self._group):
                after = requested_row(
                    event, run_id=run_id, pool=self._pool, at=stored_at(event, stored), seq=stored.seq
                )
            else:
                return
        except BadMessage:
            return  # `logs` shows what cannot be read
        if after is not None and after != row:
            self.runs[run_id] = changed[run_id] = after

    async def _look_for_daemons(self) -> list[Change]:
        there = await PresenceBoard(self._bus).daemons(self._pool)
        keys = {_key(one) for one in there}
        gone = [one for key, one in self.daemons.items() if key not in keys]
        for one in gone:
            del self.daemons[_key(one)]
        return [*self._took(there), *(Change(gone=one) for one in gone)]

    def _took(self, heard: list[Presence]) -> list[Change]:
        changes = []
        for one in heard:
            before = self.daemons.get(_key(one))
            if one.draining and not one.slots and not one.running:
                if before is not None:
                    del self.daemons[_key(one)]
                    changes.append(Change(gone=before))
                continue
            self.daemons[_key(one)] = one
            if before is None or _state(before) != _state(one):
                changes.append(Change(daemon=one))
        return changes

    def _live(self, message: Msg) -> None:
        if (stored := _stored(message)) is None:
            return
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append(stored)
        else:
            self._stale = True
        self._news.set()

    def _present(self, message: Msg) -> None:
        stored = _stored(message)
        presence = read_presence(stored) if stored else None
        if presence is not None and presence.pool == self._pool:
            self._heard.append(presence)
            self._news.set()

    def _reread(self) -> None:
        self._stale = True
        self._news.set()


def _key(presence: Presence) -> tuple[str, str]:
    return presence.daemon.nkey, presence.daemon.instance


def _state(presence: Presence) -> tuple[object, ...]:
    """What a watcher wants to be told of; a daemon that only says again that it is there is no news."""
    return presence.slots, presence.running, presence.draining, presence.version, presence.sandbox


def _stored(message: Msg) -> Stored | None:
    """Return what the server republished, or None where it is not that."""
    subject, sequence = message.headers.get("Nats-Subject", ""), message.headers.get("Nats-Sequence", "")
    if not (sequence.isascii() and sequence.isdigit()) or message.subject.partition(".")[2] not in (
        subject.partition(".")[2],
        subject,
    ):
        return None
    return Stored(int(sequence), subject, message.data, message.headers)
