"""The daemon: takes work while it has slots, says that it is there, and drains when it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from nexofork import __version__
from nexofork.bus.blobs import BlobStore
from nexofork.bus.failures import BusDenied, NoResponders
from nexofork.bus.jetstream import retry
from nexofork.bus.peers import Peers
from nexofork.bus.pickup import Pickup
from nexofork.bus.presence import PresenceBoard
from nexofork.bus.provisioning import provision
from nexofork.bus.warmth import FleetWarmth
from nexofork.errors import BusError
from nexofork.run.abort import AbortReason
from nexofork.run.prefix_gate import Warmth
from nexofork.run.result import ForkStatus
from nexofork.telemetry import metrics
from nexofork.wire.messages import REQUEST_VERSION, Daemon, Presence
from nexofork.wire.needs import KNOWN_NEEDS
from nexofork_daemon.budgets import Budgets
from nexofork_daemon.execution import Execution
from nexofork_daemon.host import Host
from nexofork_daemon.inbox import Inboxes
from nexofork_daemon.lease import Leases
from nexofork_daemon.ledger import DaemonLedger
from nexofork_daemon.logs import add_facts
from nexofork_daemon.placement import Placement
from nexofork_daemon.run_setup import Snapshots
from nexofork_daemon.settings import LiveSettings
from nexofork_daemon.systemd import Supervisor, Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexofork.bus.connection import Bus
    from nexofork.bus.pickup import Delivery
    from nexofork.providers.provider import Provider
    from nexofork_daemon.run_environment import Environments
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
    environments: Environments,
    stop: asyncio.Event,
    ready: Callable[[], None],
    hurry: asyncio.Event | None = None,
    live: LiveSettings | None = None,
    watch: Watch | None = None,
) -> None:
    """Serve until `stop` is set, then drain.

    Args:
        settings: What the operator set.
        bus: An open connection.
        provider: Answers the model calls.
        environments: Gives runs their tools and workspaces.
        stop: Set to shut down: no new work, running forks finish or are handed over within the drain limit.
        ready: Called once, when the daemon can take work; while NATS elects a leader or restarts, that is waited for.
        hurry: Set to hand running forks over at once instead of letting them finish.
        live: What may be changed while it runs; the settings' own values unless given.
        watch: Told how busy the daemon is, and kept told that its loop turns.

    Raises:
        BusError: NATS does not let this daemon in any more, or the streams or the consumer are not there.
    """
    settings = replace(settings, lease_s=await _lease_s(bus, settings))
    board = FleetWarmth(bus, by=settings.instance)
    identity = Daemon(nkey=bus.identity, instance=settings.instance, host=settings.host, name=settings.name)
    peers = Peers(bus, pool=settings.pool)
    host = Host(
        settings=settings,
        identity=identity,
        bus=bus,
        blobs=BlobStore(bus, "daemon"),
        provider=provider,
        environments=environments,
        warmth=Warmth(wait_s=settings.leader_wait_s, board=board),
        clock=board.clock,
        snapshots=Snapshots(),
        inboxes=Inboxes(bus, pool=settings.pool),
        peers=peers,
        placement=Placement(provider, peers, environments=environments, instance=settings.instance),
        leases=Leases(bus, pool=settings.pool, lease_s=settings.lease_s),
        budgets=Budgets(bus, pool=settings.pool),
        ledger=DaemonLedger(bus, identity),
    )
    await host.inboxes.open()
    await environments.start()
    async with board:
        service = _Service(
            host,
            stop=stop,
            hurry=hurry or asyncio.Event(),
            live=live or LiveSettings(slots=settings.slots, drain_s=settings.drain_s),
            watch=watch or Watch(Supervisor()),
        )
        await service.serve(ready)


async def _lease_s(bus: Bus, settings: DaemonSettings) -> float:
    """Make what is missing, and return the pool's lease.

    An election ends by itself, and a restart too, so they are waited for. Wrong streams are an error at once.

    The lease is the pool's, not a daemon's: changing it under daemons that renew by the old one would take their runs
    from them, so who comes later takes it as it is. So does the first, unless its operator said otherwise.
    """
    pool, wanted = settings.pool, settings.lease_s
    without = (NoResponders,)  # a server without JetStream does not get it by waiting
    made = await retry(bus, lambda: provision(bus, pool=pool, lease_s=None), limit_s=math.inf, final=without)
    found = made.lease_s
    if not settings.sets_lease or found == wanted:
        return found
    others = await retry(bus, lambda: PresenceBoard(bus).daemons(pool), limit_s=math.inf)
    lease_s = found
    if not others:
        set_to = await retry(bus, lambda: provision(bus, pool=pool, lease_s=wanted), limit_s=math.inf, final=without)
        lease_s = set_to.lease_s
    if lease_s == wanted:
        log.info("the lease of pool %s was %g s and is %g s now", pool, found, lease_s)
    else:
        log.warning("the lease of pool %s is %g s, not %g s", pool, lease_s, wanted)
    return lease_s


class _Service:
    def __init__(
        self, host: Host, *, stop: asyncio.Event, hurry: asyncio.Event, live: LiveSettings, watch: Watch
    ) -> None:
        self._host = host
        self._stop = stop
        self._hurry = hurry
        self._live = live
        self._watch = watch
        self._active: dict[int, Execution] = {}
        """By the sequence of the request: somebody may have asked for a run twice."""
        self._working: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._changed = asyncio.Event()
        self._board = PresenceBoard(host.bus)
        self._runs: asyncio.TaskGroup | None = None
        self._pickup = Pickup(
            host.bus,
            pool=host.settings.pool,
            free_slots=self._free_slots,
            deliver=self._deliver,
            lease_s=host.settings.lease_s,
        )
        self._counted = live.slots
        """How many slots the metrics know of."""
        live.on_change(self._turned)

    async def serve(self, ready: Callable[[], None]) -> None:
        problem: BusError | None = None
        async with asyncio.TaskGroup() as tasks, asyncio.TaskGroup() as runs:
            self._runs = runs
            announcing = tasks.create_task(self._announce())
            accounting = tasks.create_task(self._host.budgets.run())
            booking = tasks.create_task(self._host.ledger.write())
            beating = tasks.create_task(self._watch.beat())
            watching = tasks.create_task(self._host.leases.watch())
            self._tell()
            tending = tasks.create_task(self._host.environments.tend())
            metrics.expect_runs(status.value for status in ForkStatus if status.over)
            metrics.slots_changed(self._counted)
            ready()
            try:
                await self._pickup.run(self._stop)
            except BusError as exc:
                problem = exc  # raised inside, the group would wrap it
                self._stop.set()
                if isinstance(exc, BusDenied):
                    self._hurry.set()  # what runs here cannot report any more
            metrics.slots_changed(-self._counted)
            self._watch.stopping()
            self._news()  # that it drains is said at once
            await self._drain()
            announcing.cancel()
            accounting.cancel()
            booking.cancel()
            beating.cancel()
            watching.cancel()
            tending.cancel()
        await self._host.ledger.close()
        if self._host.bus.connected:
            await self._say(draining=True)
        if problem is not None:
            raise problem

    def _free_slots(self) -> int:
        return 0 if self._stop.is_set() else self._live.slots - len(self._active)

    def _turned(self) -> None:
        if not self._stop.is_set():
            metrics.slots_changed(self._live.slots - self._counted)
            self._counted = self._live.slots
        self._pickup.wake()
        self._news()

    def _news(self) -> None:
        self._changed.set()
        self._tell()

    def _tell(self) -> None:
        self._watch.doing(slots=self._live.slots, running=len(self._active), draining=self._stop.is_set())

    def _deliver(self, delivery: Delivery) -> None:
        if delivery.attempt > 1:
            metrics.redelivered()
        running = self._active.get(delivery.seq)
        if running is not None:
            running.redelivered(delivery)
            return
        assert self._runs is not None
        execution = Execution(delivery, self._host)
        self._active[delivery.seq] = execution
        metrics.slots_used_changed(1)
        self._idle.clear()
        self._news()
        task = self._runs.create_task(self._execute(execution), name=f"run-{delivery.run_id}")
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _execute(self, execution: Execution) -> None:
        add_facts(run_id=execution.run_id)
        begun = time.monotonic()
        try:
            await execution.run()
            if not execution.left:
                log.info("run %s: done with it here after %.1f s", execution.run_id, time.monotonic() - begun)
        except Exception:
            # One run's defect must not take the daemon's other runs with it; the lease lapses and it is tried
            # elsewhere.
            log.exception("run %s failed inside the daemon", execution.run_id)
        finally:
            del self._active[execution.seq]
            metrics.slots_used_changed(-1)
            self._pickup.wake()
            self._news()
            if not self._active:
                self._idle.set()

    async def _drain(self) -> None:
        """Let running forks finish; hand over what has not by the limit, or when there is a hurry."""
        await self._until_idle(self._live.drain_s, unless=self._hurry)
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
            slots=0 if draining else self._live.slots,
            running=len(self._active),
            draining=draining,
            workspace_id=self._host.provider.workspace_id,
            sandbox=self._host.environments.sandbox.name,
            reads=REQUEST_VERSION,
            knows=list(KNOWN_NEEDS),
            reads_mounted=True,
        )
        try:
            await self._board.announce(presence)
        except BusError as exc:
            log.info("presence was not announced: %s", exc)
