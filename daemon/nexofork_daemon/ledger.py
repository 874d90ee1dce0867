"""Book the model calls of a daemon's runs in NATS, many in one message.

Booking neither waits nor fails: calls are queued, and one task writes them. A run waits for its own before it reports
its end, so the ledger knows of every call of a run that is over. It also waits while NATS is away or elects a leader.
Where the ledger takes nothing for longer than that, the runs go on: it is said once, the newest calls are kept, and
writing is tried again now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from nexofork.bus.failures import PayloadTooLarge, StoreFull
from nexofork.bus.ledger import append_calls
from nexofork.errors import BusError
from nexofork.run.call_records import booked

if TYPE_CHECKING:
    from nexofork.bus.connection import Bus
    from nexofork.run.call_records import CallFacts, CallOwner
    from nexofork.wire.ledger import BookedCall
    from nexofork.wire.messages import Daemon

__all__ = ["DaemonLedger", "RunLedger"]

log = logging.getLogger(__name__)

_LINGER_S = 1.0
"""How long a call may wait for others to be written with, while nobody waits for it."""
_GATHER_S = 0.05
"""How long it may where somebody does: runs of one fan-out end together."""
_RETRY_S = 0.25
_REFUSED_RETRY_S = 5.0
_PATIENCE_S = 30.0
"""As long as the log is tried; without NATS no run can end anyway."""
_MOST_IN_ONE = 500
_MOST_KEPT = 20_000
_CLOSING_S = 2.0


class DaemonLedger:
    """Everything this daemon books."""

    def __init__(self, bus: Bus, daemon: Daemon, *, patience_s: float = _PATIENCE_S) -> None:
        self._bus = bus
        self._daemon = daemon
        self._patience_s = patience_s
        self._queue: deque[BookedCall] = deque()
        self._booked = 0
        self._most_in_one = _MOST_IN_ONE
        self._done = 0
        """How many of those booked are stored, or given up."""
        self._refused = False
        """Whether the last writing failed for a reason that waiting does not mend."""
        self._written = asyncio.Condition()
        self._filled = asyncio.Event()
        self._urgent = asyncio.Event()

    def of_run(self, account: CallOwner) -> RunLedger:
        """Return where one epoch of a run books."""
        return RunLedger(self, account)

    def add(self, call: BookedCall) -> int:
        """Queue a call and return its number."""
        self._queue.append(call)
        self._booked += 1
        if len(self._queue) > _MOST_KEPT:
            self._queue.popleft()
            self._done += 1
        self._filled.set()
        return self._booked

    async def stored(self, number: int) -> None:
        """Return when the call of this number is stored, or when waiting for it is of no use; never raises."""
        if self._done >= number or self._refused:
            return
        self._urgent.set()
        try:
            async with asyncio.timeout(self._patience_s), self._written:
                await self._written.wait_for(lambda: self._done >= number or self._refused)
        except TimeoutError:
            self._refuse(f"it stored nothing within {self._patience_s:g} s")

    async def write(self) -> None:
        """Write what is booked, for ever."""
        while True:
            await self._filled.wait()
            await self._linger()
            self._filled.clear()
            self._urgent.clear()
            while self._queue:
                await self._write_some()

    async def close(self) -> None:
        """Write what is left, if that is possible at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING_S):
                while self._queue and await self._write_some():
                    pass
        if self._queue:
            log.warning("%d calls were not booked: the ledger could not be written", len(self._queue))

    async def _linger(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                await self._urgent.wait()
                await asyncio.sleep(_GATHER_S)

    async def _write_some(self) -> bool:
        """Write one message, or wait a little because it could not be written."""
        calls = [self._queue[index] for index in range(min(len(self._queue), self._most_in_one))]
        before = self._done
        try:
            await append_calls(self._bus, self._daemon, calls)
        except PayloadTooLarge as exc:
            self._most_in_one = max(len(calls) // 2, 1)
            if len(calls) > 1:
                return True
            log.warning("a call is too long for the ledger: %s", exc)
            if self._done == before:
                self._queue.popleft()
                self._done += 1
            return True
        except BusError as exc:
            if exc.retryable and not isinstance(exc, StoreFull):
                log.debug("the ledger was not written yet: %s", exc)
                await asyncio.sleep(_REFUSED_RETRY_S if self._refused else _RETRY_S)
                return False
            self._refuse(str(exc))
            async with self._written:
                self._written.notify_all()
            await asyncio.sleep(_REFUSED_RETRY_S)
            return False
        self._refused = False
        for _ in range(len(calls) - (self._done - before)):  # less what was dropped from a full queue meanwhile
            self._queue.popleft()
            self._done += 1
        async with self._written:
            self._written.notify_all()
        return True

    def _refuse(self, why: str) -> None:
        if not self._refused:
            log.warning("the ledger takes no calls; runs go on without it and it is tried again: %s", why)
        self._refused = True


class RunLedger:
    """Where one epoch of one run books."""

    def __init__(self, ledger: DaemonLedger, account: CallOwner) -> None:
        self._ledger = ledger
        self._account = account
        self._last = 0

    def book(self, call: CallFacts, *, epoch: int | None = None, host: str | None = None) -> None:
        """Keep the call; neither waits nor raises.

        Args:
            call: What is known of it.
            epoch: The one that made it; this one unless said.
            host: The daemon that made it; this one unless said.
        """
        account = self._account
        if epoch is not None:
            account = replace(account, epoch=epoch, host=host or "")
        self._last = self._ledger.add(booked(call, account))

    async def flush(self) -> None:
        """Return when every call booked here is stored, or the ledger takes none."""
        if self._last:
            await self._ledger.stored(self._last)
