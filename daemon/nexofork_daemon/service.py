"""The daemon: takes work while it has slots, says that it is there, and drains when it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from nexofork import __version__
from nexofork.bus.blobs import BlobStore
from nexofork.bus.pickup import Pickup
from nexofork.bus.presence import PresenceBoard
from nexofork.bus.provisioning import provision
from nexofork.bus.warmth import FleetWarmth
from nexofork.engine.abort import AbortReason
from nexofork.engine.warmth import Warmth
from nexofork.errors import BusError
from nexofork.wire.messages import Daemon, Presence
from nexofork_daemon.execution import Execution
from nexofork_daemon.host import Host
from nexofork_daemon.inboxes import Inboxes
from nexofork_daemon.purses import Purses
from nexofork_daemon.request import SnapshotShelf

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexofork.bus.connection import Bus
    from nexofork.bus.pickup import Delivery
    from nexofork.engine.dispatch import ToolDispatcher
    from nexofork.providers.provider import Provider
    from nexofork_daemon.settings import DaemonSettings

__all__ = ["run_daemon"]

log = logging.getLogger(__name__)

_PRESENCE_S = 5.0
_PRESENCE_PAUSE_S = 0.5
_HAND_OVER_S = 5.0


async def run_daemon(
    settings: DaemonSettings,
    *,
    bus: Bus,
    provider: Provider,
    tools: ToolDispatcher,
    stop: asyncio.Event,
    ready: Callable[[], None],
    hurry: asyncio.Event | None = None,
) -> None:
    """Serve until `stop` is set, then drain.

    Args:
        settings: What the operator set.
        bus: An open connection.
        provider: Answers the model calls.
        tools: Runs the tools.
        stop: Set to shut down: no new work, running forks finish or are handed over within the drain limit.
        ready: Called once, when the daemon can take work.
        hurry: Set to hand running forks over at once instead of letting them finish.

    Raises:
        BusError: The streams are not there and may not be made, or the consumer was deleted.
    """
    settings = replace(settings, lease_s=await _lease_s(bus, settings))
    board = FleetWarmth(bus, by=settings.instance)
    identity = Daemon(nkey=bus.identity, instance=settings.instance, host=settings.host, name=settings.name)
    host = Host(
        settings=settings,
        identity=identity,
        bus=bus,
        blobs=BlobStore(bus, "daemon"),
        provider=provider,
        tools=tools,
        warmth=Warmth(wait_s=settings.leader_wait_s, board=board),
        clock=board.clock,
        shelf=SnapshotShelf(),
        inboxes=Inboxes(bus, pool=settings.pool),
        purses=Purses(bus, pool=settings.pool),
    )
    await host.inboxes.open()
    async with board:
        await _Service(host, stop, hurry or asyncio.Event()).serve(ready)


async def _lease_s(bus: Bus, settings: DaemonSettings) -> float:
    """Make what is missing, and return the pool's lease.

    The lease is the pool's, not a daemon's: changing it under daemons that renew by the old one would take their runs
    from them, so who comes later takes it as it is.
    """
    await provision(bus, pool=settings.pool, lease_s=None)
    others = await PresenceBoard(bus).daemons(settings.pool)
    provisioned = await provision(bus, pool=settings.pool, lease_s=None if others else settings.lease_s)
    if provisioned.lease_s != settings.lease_s:
        log.warning("the lease of pool %s is %g s, not %g s", settings.pool, provisioned.lease_s, settings.lease_s)
    return provisioned.lease_s


class _Service:
    def __init__(self, host: Host, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        self._host = host
        self._stop = stop
        self._hurry = hurry
        self._active: dict[int, Execution] = {}
        """By the sequence of the request: somebody may have asked for a run twice."""
        self._working: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._changed = asyncio.Event()
        self._board = PresenceBoard(host.bus)
        self._runs: asyncio.TaskGroup | None = None
        self._pickup = Pickup(host.bus, pool=host.settings.pool, free_slots=self._free_slots, deliver=self._deliver)

    async def serve(self, ready: Callable[[], None]) -> None:
        problem: BusError | None = None
        async with asyncio.TaskGroup() as tasks, asyncio.TaskGroup() as runs:
            self._runs = runs
            announcing = tasks.create_task(self._announce())
            accounting = tasks.create_task(self._host.purses.run())
            ready()
            try:
                await self._pickup.run(self._stop)
            except BusError as exc:
                problem = exc  # raised inside, the group would wrap it
                self._stop.set()
            self._changed.set()  # that it drains is said at once
            await self._drain()
            announcing.cancel()
            accounting.cancel()
        if self._host.bus.connected:
            await self._say(draining=True)
        if problem is not None:
            raise problem

    def _free_slots(self) -> int:
        return 0 if self._stop.is_set() else self._host.settings.slots - len(self._active)

    def _deliver(self, delivery: Delivery) -> None:
        running = self._active.get(delivery.seq)
        if running is not None:
            running.redelivered(delivery)
            return
        assert self._runs is not None
        execution = Execution(delivery, self._host)
        self._active[delivery.seq] = execution
        self._idle.clear()
        self._changed.set()
        task = self._runs.create_task(self._execute(execution), name=f"run-{delivery.run_id}")
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _execute(self, execution: Execution) -> None:
        try:
            await execution.run()
        except Exception:
            # One run's defect must not take the daemon's other runs with it; the lease lapses and it is tried
            # elsewhere.
            log.exception("run %s failed inside the daemon", execution.run_id)
        finally:
            del self._active[execution.seq]
            self._pickup.wake()
            self._changed.set()
            if not self._active:
                self._idle.set()

    async def _drain(self) -> None:
        """Let running forks finish; hand over what has not by the limit, or when there is a hurry."""
        await self._until_idle(self._host.settings.drain_s, unless=self._hurry)
        for execution in self._active.values():
            execution.token.abort(AbortReason.SHUTDOWN, "the daemon is shutting down")
        await self._until_idle(_HAND_OVER_S, unless=asyncio.Event())
        for task in self._working:
            task.cancel()  # NATS does not answer; the leases run out by themselves

    async def _until_idle(self, limit_s: float, *, unless: asyncio.Event) -> None:
        if not self._active:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s), asyncio.TaskGroup() as racers:
                idle = racers.create_task(self._idle.wait())
                hurry = racers.create_task(unless.wait())
                idle.add_done_callback(lambda _: hurry.cancel())
                hurry.add_done_callback(lambda _: idle.cancel())

    async def _announce(self) -> None:
        while True:
            self._changed.clear()
            await self._say(draining=self._stop.is_set())
            await asyncio.sleep(_PRESENCE_PAUSE_S)  # a burst of claims is one change
            try:
                async with asyncio.timeout(_PRESENCE_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _say(self, *, draining: bool) -> None:
        settings = self._host.settings
        presence = Presence(
            at=time.time(),
            daemon=self._host.identity,
            version=__version__,
            pool=settings.pool,
            slots=0 if draining else settings.slots,
            running=len(self._active),
            draining=draining,
            workspace_id=self._host.provider.workspace_id,
        )
        try:
            await self._board.announce(presence)
        except BusError as exc:
            log.info("presence was not announced: %s", exc)
