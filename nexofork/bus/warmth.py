"""What the fleet knows about its prefixes: one message per prefix, changed by compare-and-set, told to all at once.

Whoever first writes ``warming`` leads for the whole fleet. A leader says that it lives by writing again every second;
one that falls silent has lost its daemon, and the next one writes over it. When its response begins it writes ``warm``,
which reaches every daemon by the server's republish. All of it is advice: without NATS a daemon goes by what it knows
itself, and nobody waits longer than a limit.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from nexofork.bus.clock import ServerClock, steady_time
from nexofork.bus.failures import WrongTip
from nexofork.bus.jetstream import expect_last, store
from nexofork.bus.reading import last_of
from nexofork.core.markers import TTL_S
from nexofork.errors import BusError
from nexofork.wire.messages import Warming, encode
from nexofork.wire.streams import WARM
from nexofork.wire.subjects import live_warm, warm

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType
    from typing import Literal, Self

    from nexofork.bus.connection import Bus, Msg
    from nexofork.bus.subscription import Subscription

__all__ = ["FleetWarmth", "Standing"]

log = logging.getLogger(__name__)

_RENEW_S = 1.0
_SILENT_S = 3.0
_LONGEST_S = max(TTL_S.values()) + 600.0
"""The longest that a prefix can stay warm; clocks may differ by minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a prefix stands with the fleet."""

    leads: bool = False
    """Whether this daemon writes it now."""
    warm_s: float | None = None
    """For how long it is warm, where it is."""
    cached: bool = True
    """Whether the response that began did read or write it."""
    waited: bool = False
    """Whether somebody else was waited for."""


@dataclass(slots=True)
class _Leading:
    since: float
    seq: int
    renewing: asyncio.Task[None] | None = None


class FleetWarmth:
    """One daemon's view of the board."""

    def __init__(self, bus: Bus, *, by: str, clock: Callable[[], float] = steady_time) -> None:
        """Prepare to look at the board.

        Args:
            bus: The connection.
            by: Names this daemon.
            clock: This host's clock, as Unix time; it may be wrong.
        """
        self._bus = bus
        self._by = by
        self.clock = ServerClock(bus, WARM, own=clock)
        self._news: dict[str, set[asyncio.Event]] = {}
        self._leading: dict[str, _Leading] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._subscription: Subscription | None = None
        self._deaf: Callable[[], None] = _nothing
        self._told: Callable[[str, float, bool], None] = _unheard

    async def __aenter__(self) -> Self:
        """Listen for what becomes of prefixes.

        Raises:
            BusError: NATS was not reached.
        """
        self._subscription = await self._bus.subscribe(live_warm(), self._heard)
        self._deaf = self._bus.on_reconnect(self._wake_all)
        await self.clock.refresh()
        self._tasks = await asyncio.TaskGroup().__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave what we lead to others, and stop listening."""
        for key in list(self._leading):
            self.release(key)
        tasks, self._tasks = self._tasks, None
        assert tasks is not None
        # What is under way are single writes that end by themselves; the group is not told what the caller raised.
        await tasks.__aexit__(None, None, None)
        self._deaf()
        if self._subscription is not None:
            await self._subscription.unsubscribe()

    async def claim(self, key: str, *, patience_s: float, limit_s: float) -> Standing:
        """Return when this daemon leads, or the prefix is warm, or the limit has passed.

        Args:
            key: Names the prefix.
            patience_s: How long a leader elsewhere may take before somebody leads beside it.
            limit_s: The longest to wait.
        """
        news = asyncio.Event()
        self._news.setdefault(key, set()).add(news)
        try:
            async with asyncio.timeout(limit_s):
                await self.clock.refresh()
                return await self._claim(key, patience_s, news)
        except TimeoutError:
            return Standing(waited=True)
        except BusError as exc:
            log.info("the fleet's warmth is out of reach, so this daemon goes by its own: %s", exc)
            return Standing(leads=True)
        finally:
            self._news[key].discard(news)
            if not self._news[key]:
                del self._news[key]

    async def _claim(self, key: str, patience_s: float, news: asyncio.Event) -> Standing:
        waited, seen, seen_at = False, -1, 0.0
        while True:
            news.clear()
            record, seq = await self._read(key)
            now = time.monotonic()
            if seq != seen:
                seen, seen_at = seq, now
            left_s = record.until - self.clock.now()
            if record.state == "warm" and left_s > 0:
                return Standing(warm_s=left_s, cached=record.cached, waited=waited)
            silence_s = seen_at + _SILENT_S - now
            slowness_s = record.since + patience_s - self.clock.now()
            if record.state != "warming" or silence_s <= 0 or slowness_s <= 0:
                if await self._take(key, seq):
                    return Standing(leads=True, waited=waited)
                continue
            waited = True
            await _until(news, min(silence_s, slowness_s))

    async def _take(self, key: str, seq: int) -> bool:
        """Become the leader, unless somebody else was quicker."""
        since = self.clock.now()
        try:
            taken = await self._write(key, "warming", after=seq, since=since)
        except WrongTip:
            return False
        self._stop_leading(key)
        self._leading[key] = leading = _Leading(since=since, seq=taken)
        leading.renewing = self._begin(self._renew(key, leading))
        return True

    async def _renew(self, key: str, leading: _Leading) -> None:
        """Say every second that the leader lives, until somebody else has written."""
        while True:
            await asyncio.sleep(_RENEW_S)
            try:
                leading.seq = await self._write(key, "warming", after=leading.seq, since=leading.since)
            except WrongTip:
                return
            except BusError as exc:
                log.debug("the lead of %s was not renewed: %s", key, exc)

    def listen(self, told: Callable[[str, float, bool], None]) -> None:
        """Tell of every prefix that becomes warm anywhere: its key, for how long, and whether it is cached."""
        self._told = told

    def warm(self, key: str, *, for_s: float, ttl_s: float, cached: bool = True) -> None:
        """Say that a response that wrote or read the prefix began; neither waits nor raises."""
        leading = self._stop_leading(key)
        self._begin(self._settle(key, "warm", leading, until=self.clock.now() + for_s, news_s=ttl_s / 4, cached=cached))

    def release(self, key: str) -> None:
        """Say that whoever led here no longer does; neither waits nor raises."""
        leading = self._stop_leading(key)
        if leading is not None:
            self._begin(self._settle(key, "cold", leading))

    async def _settle(
        self,
        key: str,
        state: Literal["cold", "warm"],
        leading: _Leading | None,
        *,
        until: float = 0.0,
        news_s: float = 0.0,
        cached: bool = True,
    ) -> None:
        seq = leading.seq if leading is not None else None
        try:
            while True:
                if seq is None:
                    record, seq = await self._read(key)
                    # Somebody said so already; a leader that gave up does not speak for whoever leads now.
                    if record.until >= until - news_s if state == "warm" else record.by != self._by:
                        return
                try:
                    await self._write(key, state, after=seq, until=until, cached=cached)
                    return
                except WrongTip:
                    seq = None
        except BusError as exc:
            log.info("that prefix %s is %s was not told: %s", key, state, exc)

    async def _read(self, key: str) -> tuple[Warming, int]:
        stored = await last_of(self._bus, WARM, warm(key))
        if stored is None:
            return Warming(state="cold"), 0
        # Garbage is written over.
        return self._decoded(stored.data) or Warming(state="cold"), stored.seq

    def _decoded(self, data: bytes) -> Warming | None:
        """Return what a message says, or None where it cannot be read or be true: no entry lives that long."""
        try:
            record = Warming.model_validate_json(data)
        except ValidationError:
            return None
        return record if record.until <= self.clock.now() + _LONGEST_S else None

    async def _write(
        self,
        key: str,
        state: Literal["cold", "warming", "warm"],
        *,
        after: int,
        since: float = 0.0,
        until: float = 0.0,
        cached: bool = True,
    ) -> int:
        record = Warming(at=self.clock.now(), state=state, by=self._by, since=since, until=until, cached=cached)
        subject = warm(key)
        return await store(self._bus, subject, encode(record), headers=expect_last(after, subject))

    def _stop_leading(self, key: str) -> _Leading | None:
        leading = self._leading.pop(key, None)
        if leading is not None and leading.renewing is not None:
            leading.renewing.cancel()
        return leading

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None] | None:
        if self._tasks is None:
            work.close()  # the daemon has left; others find out by its silence
            return None
        return self._tasks.create_task(work)

    def _heard(self, msg: Msg) -> None:
        key = msg.subject.rpartition(".")[2]
        for news in self._news.get(key, ()):
            news.set()
        record = self._decoded(msg.data)
        if record is None or record.state != "warm":
            return
        if (left_s := record.until - self.clock.now()) > 0:
            self._told(key, left_s, record.cached)

    def _wake_all(self) -> None:
        for waiting in self._news.values():
            for news in waiting:
                news.set()


def _nothing() -> None:
    pass


def _unheard(key: str, for_s: float, cached: bool) -> None:
    pass


async def _until(news: asyncio.Event, limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await news.wait()
    except TimeoutError:
        return
