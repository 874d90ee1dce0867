"""Watch several runs at once until they are over, and say why nothing happens while nothing happens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from nexofork.bus.pickup import queue_depth
from nexofork.bus.presence import PresenceBoard
from nexofork.cli.output import counted
from nexofork.errors import BusError
from nexofork.run.events import ForkClaimed, ForkEnded
from nexofork.run.result import ForkStatus

if TYPE_CHECKING:
    from types import TracebackType

    from nexofork.bus.connection import Bus
    from nexofork.cli.progress import Sink
    from nexofork.client.handle import ForkHandle
    from nexofork.run.result import ForkResult

__all__ = ["INTERRUPTED_NOTE", "Watch"]

INTERRUPTED_NOTE = "interrupted on the command line"

_TICK_S = 1.0
_FIRST_NOTICE_S = 3.0
_NOTICE_EVERY_S = 30.0
_DOWN_S = 120.0
_LAST_WORDS_S = 10.0


class Watch:
    """An async context that ends when every run that was added is over."""

    def __init__(self, sink: Sink, bus: Bus, *, pool: str, queue_limit_s: float | None = None) -> None:
        self._sink = sink
        self._bus = bus
        self._pool = pool
        self._queue_limit_s = queue_limit_s
        self._tasks = asyncio.TaskGroup()
        self._clock: asyncio.Task[None] | None = None
        self._feeds: list[asyncio.Task[None]] = []
        self._unclaimed: set[str] = set()
        self.handles: list[ForkHandle] = []
        self._results: dict[str, ForkResult] = {}

    @property
    def results(self) -> list[ForkResult]:
        """The results so far, in the order the runs were added."""
        return [self._results[one.run_id] for one in self.handles if one.run_id in self._results]

    @property
    def open(self) -> list[ForkHandle]:
        """The runs that are not over."""
        return [one for one in self.handles if one.run_id not in self._results]

    def add(self, handle: ForkHandle) -> None:
        """Watch a run from its beginning."""
        self.handles.append(handle)
        self._unclaimed.add(handle.run_id)
        self._feeds.append(self._tasks.create_task(self._feed(handle)))

    async def abort(self, note: str) -> None:
        """Abort the runs that are not over, and give the daemons a moment to report their ends."""
        aborted: list[ForkHandle] = []
        async with asyncio.TaskGroup() as tasks:
            for handle in self.open:
                tasks.create_task(self._abort(handle, note, aborted))
        try:
            async with asyncio.timeout(_LAST_WORDS_S), asyncio.TaskGroup() as tasks:
                for handle in aborted:
                    tasks.create_task(self._end(handle))
        except TimeoutError:
            self._sink.note(
                f"{counted(len(self.open), 'run')} did not report an end within {_LAST_WORDS_S:g} s; "
                "see `nexofork ps` for what became of them."
            )

    async def _abort(self, handle: ForkHandle, note: str, aborted: list[ForkHandle]) -> None:
        try:
            await handle.abort(note)
        except BusError as exc:
            self._sink.note(f"Run {handle.run_id} was not aborted: {exc}")
        else:
            aborted.append(handle)

    async def _end(self, handle: ForkHandle) -> None:
        result = await handle.result()
        self._results[handle.run_id] = result
        self._sink.event(handle.run_id, ForkEnded(result=result))

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._clock = self._tasks.create_task(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if error is None and self._feeds:
            try:
                await asyncio.wait(self._feeds)
            except asyncio.CancelledError as exc:
                kind, error, at = type(exc), exc, exc.__traceback__
        if self._clock is not None:
            self._clock.cancel()
        await self._tasks.__aexit__(kind, error, at)

    async def _feed(self, handle: ForkHandle) -> None:
        async for event in handle.events():
            if isinstance(event, (ForkClaimed, ForkEnded)):
                self._unclaimed.discard(handle.run_id)
            if isinstance(event, ForkEnded):
                self._results[handle.run_id] = event.result
            self._sink.event(handle.run_id, event)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        connected_at, notice_at = loop.time(), loop.time() + _FIRST_NOTICE_S
        while True:
            await asyncio.sleep(_TICK_S)
            self._sink.tick()
            if self._bus.connected:
                connected_at = loop.time()
            elif loop.time() - connected_at > _DOWN_S:
                self._give_up()
            if self._bus.connected and loop.time() >= notice_at:
                if self._unclaimed:
                    notice_at = loop.time() + _NOTICE_EVERY_S
                    await self._notice()
                elif any(handle.status is ForkStatus.ABORTING_NO_DAEMON for handle in self.open):
                    notice_at = loop.time() + _NOTICE_EVERY_S
                    start = f"start one with `nexofork daemon --pool {self._pool}`"
                    self._sink.note(f"aborting (no daemon): no daemon is there to end the run; {start}.")

    async def _notice(self) -> None:
        """Say what the runs wait for that no daemon has taken."""
        try:
            daemons = await PresenceBoard(self._bus).daemons(self._pool)
            queued = await queue_depth(self._bus, pool=self._pool)
        except BusError:
            return  # the connection's own trouble is told elsewhere
        free = sum(max(daemon.slots - daemon.running, 0) for daemon in daemons)
        if free:
            advice = (
                "Those with free slots leave it to others: its folder, provider workspace or needs; their logs say."
            )
        elif daemons:
            advice = "They take turns."
        else:
            advice = f"Start one with `nexofork daemon --pool {self._pool}`."
        limit = ""
        if self._queue_limit_s:
            limit = f" A run is given up after {self._queue_limit_s:g} s if no daemon is there that could take it."
        self._sink.note(
            f"Waiting for a daemon: {len(self._unclaimed)} of {counted(len(self.handles), 'run')}, "
            f"{counted(len(daemons), 'daemon')} with {counted(free, 'free slot')} in pool {self._pool!r}, "
            f"about {counted(queued, 'request')} queued. {advice}{limit}"
        )

    def _give_up(self) -> None:
        left = self.open
        for handle in left:
            handle.detach()
        ids = " ".join(handle.run_id for handle in left)
        raise BusError(
            f"The connection to NATS has been down for {_DOWN_S:g} s. The runs go on without us; when NATS is back, "
            f"`nexofork wait {ids}` gives their results.",
            retryable=True,
        )
