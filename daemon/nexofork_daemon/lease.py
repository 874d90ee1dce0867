"""Keep a claimed run ours, and find out when it no longer is.

Renewing keeps the server from handing the request to somebody else. Everything that may be news (a live message, a
reconnect, a renewal that came late) leads to a look at the log, which decides: an abort ends the run, a higher epoch
takes it away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nexofork.bus.pickup import RENEWALS
from nexofork.bus.reading import last_of, last_of_many
from nexofork.errors import BadMessage, BusError
from nexofork.run.abort import AbortReason
from nexofork.wire.messages import AbortEvent, Claimed, decode_event, decode_report
from nexofork.wire.streams import log_stream
from nexofork.wire.subjects import events, run_filter, run_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from nexofork.bus.connection import Bus
    from nexofork.bus.pickup import Delivery
    from nexofork.bus.reading import Stored
    from nexofork.bus.run_log import RunLog
    from nexofork.run.abort import AbortToken
    from nexofork.wire.messages import Parent, Requested
    from nexofork_daemon.host import Host
    from nexofork_daemon.run_writer import RunWriter

__all__ = ["Lease", "Leases", "read_event"]

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.5
_MISSED_HEARTBEATS = 3


class Leases:
    """Looks for all runs of a daemon at once whether they are still its own.

    The server renews the delivery of a daemon that has lost the run, so a renewal says nothing. The newest report does.
    """

    def __init__(self, bus: Bus, *, pool: str, lease_s: float) -> None:
        self._bus = bus
        self._pool = pool
        self._every_s = lease_s / RENEWALS
        self._held: dict[str, Lease] = {}

    @contextmanager
    def holding(self, run_id: str, lease: Lease) -> Iterator[None]:
        """Look after a run for as long as the block."""
        self._held[run_id] = lease
        try:
            yield
        finally:
            if self._held.get(run_id) is lease:
                del self._held[run_id]

    async def watch(self) -> None:
        """Look three times per lease, and after each reconnect; ends with its task."""
        wake = asyncio.Event()
        remove = self._bus.on_reconnect(wake.set)
        try:
            while True:
                try:
                    async with asyncio.timeout(self._every_s):
                        await wake.wait()
                except TimeoutError:
                    pass
                wake.clear()
                try:
                    await self._look()
                except BusError as exc:
                    log.info("the logs of the running forks could not be looked at: %s", exc)
        finally:
            remove()

    async def _look(self) -> None:
        held = dict(self._held)
        filters = [run_filter(run_id, self._pool) for run_id in held]
        for newest in await last_of_many(self._bus, log_stream(self._pool), filters):
            held[run_of(newest.subject)].saw(newest)


class Lease:
    """The tasks that run alongside one claimed run."""

    def __init__(
        self,
        host: Host,
        run_log: RunLog,
        journal: RunWriter,
        token: AbortToken,
        *,
        delivery: Callable[[], Delivery],
        news: asyncio.Event,
    ) -> None:
        """Prepare to keep a run.

        Args:
            host: The daemon.
            run_log: The run's log.
            journal: What this epoch has written.
            token: Thrown when the run is aborted or lost.
            delivery: The newest delivery of the request: the one to renew.
            news: Set when something may have happened that the log knows of.
        """
        self._host = host
        self._log = run_log
        self._journal = journal
        self._token = token
        self._delivery = delivery
        self._news = news

    async def renew(self) -> None:
        """Keep the request from being handed out again; after a gap, ask the log whether the run is still ours."""
        lease_s = self._host.settings.lease_s
        renewed_at = time.monotonic()
        wake = asyncio.Event()
        remove = self._host.bus.on_reconnect(wake.set)
        # Over a slow link, reading the log and claiming the run may have taken most of the lease.
        pause_s = self._delivery().due_s
        try:
            while True:
                try:
                    async with asyncio.timeout(pause_s):
                        await wake.wait()
                except TimeoutError:
                    pass
                wake.clear()
                pause_s = lease_s / RENEWALS
                gap = time.monotonic() - renewed_at
                if await self._renewed():
                    renewed_at = time.monotonic()
                if gap > lease_s:
                    self._news.set()
        finally:
            remove()

    async def confirm(self) -> None:
        """Return once the request is renewed and the log says that the run is still ours; else the token is thrown."""
        while not (await self._renewed() and await self._try(self._look)):  # noqa: ASYNC110 - NATS is asked, it does not tell
            await asyncio.sleep(_LOOK_AGAIN_S)
        if self._token.cause is not None:
            await asyncio.get_running_loop().create_future()  # the run is being cancelled

    async def _renewed(self) -> bool:
        asked_at = time.monotonic()
        if not await self._delivery().renew():
            return False
        self._journal.confirmed_at = max(self._journal.confirmed_at, asked_at)
        return True

    def saw(self, newest: Stored) -> None:
        """Take note of the newest message on one of the run's subjects."""
        if newest.subject.endswith(".events"):
            event = read_event(newest.data)
            if isinstance(event, AbortEvent):
                self._token.abort(AbortReason.PARENT, event.note)
            return
        try:
            report = decode_report(newest.data)
        except BadMessage:
            return
        if report.epoch > self._journal.epoch:
            self._token.abort(AbortReason.LEASE_LOST, f"epoch {report.epoch} has it, ours is {self._journal.epoch}")

    async def watch_log(self) -> None:
        """Look at the log whenever something suggests that it has news."""
        remove = self._host.bus.on_reconnect(self._news.set)
        # The claim has just seen the log; an abort that the log had no room for may be in the inbox already.
        look = self._look_into_fresh_inbox
        try:
            while True:
                if not await self._try(look):
                    await asyncio.sleep(_LOOK_AGAIN_S)
                    self._news.set()
                await self._news.wait()
                self._news.clear()
                look = self._look
        finally:
            remove()

    async def watch_parent(self, parent: Parent) -> None:
        """End the run when its parent has not been heard of for a few heartbeats."""
        assert parent.heartbeat_s is not None
        heard = asyncio.Event()
        unsubscribe = self._host.inboxes.listen(parent.id, lambda _: heard.set())
        # After an outage the parent may be back a moment later than we are.
        remove = self._host.bus.on_reconnect(heard.set)
        try:
            while True:
                heard.clear()
                try:
                    async with asyncio.timeout(_MISSED_HEARTBEATS * parent.heartbeat_s):
                        await heard.wait()
                except TimeoutError:
                    if self._host.bus.connected:
                        self._token.abort(AbortReason.PARENT, "its parent is gone")
                        return
        finally:
            remove()
            unsubscribe()

    async def _try(self, look: Callable[[], Awaitable[None]]) -> bool:
        try:
            await look()
        except BusError as exc:
            log.info("run %s: could not look at its log yet: %s", self._log.run_id, exc)
            return False
        return True

    async def _look(self) -> None:
        await self._look_at_events()
        for entry in await self._log.entries(start_seq=self._journal.seq + 1):
            if isinstance(entry.message, Claimed) and entry.message.epoch > self._journal.epoch:
                claimed = entry.message
                self._token.abort(AbortReason.LEASE_LOST, f"{claimed.daemon.name} took it as epoch {claimed.epoch}")
            elif isinstance(entry.message, AbortEvent):  # another event may stand after it
                self._token.abort(AbortReason.PARENT, entry.message.note)
        await self._look_into_inbox()

    async def _look_at_events(self) -> None:
        """Take the parent's last word, wherever it stands.

        An abort that was published without the compare-and-set may stand in front of a report of ours.
        """
        pool = self._host.settings.pool
        stored = await last_of(self._host.bus, log_stream(pool), events(self._log.run_id, pool))
        event = read_event(stored.data) if stored else None
        if isinstance(event, AbortEvent):
            self._token.abort(AbortReason.PARENT, event.note)

    async def _look_into_fresh_inbox(self) -> None:
        if await self._host.inboxes.may_hold(self._log.run_id, self._delivery().seq):
            await self._look_into_inbox()

    async def _look_into_inbox(self) -> None:
        if (posted := await self._log.inbox_abort()) is not None:
            self._token.abort(AbortReason.PARENT, posted.note)


def read_event(data: bytes) -> Requested | AbortEvent | None:
    """Return what a parent published, or None where it cannot be read."""
    try:
        return decode_event(data)
    except BadMessage:
        return None
