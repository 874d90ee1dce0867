"""What a request waits for until a daemon has it.

First that no daemon takes work which would end it unread, then a place among those of this parent that wait, then a
daemon that claims it. Each wait has an end that says what was missing.

What daemons say of themselves is not believed without limit, because a daemon's key can announce anything. One that
says it is too old keeps runs back for a while only. One that says it is busy counts if a run under way was claimed with
its key, and one with free slots counts while the queue moves.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

from nexofork.bus.credentials import LOCAL
from nexofork.bus.peers import Peers
from nexofork.bus.pickup import queue_state
from nexofork.bus.presence import PresenceBoard
from nexofork.client.runs import claimants
from nexofork.errors import BusError, DaemonsTooOld
from nexofork.run.events import ForkEnded
from nexofork.run.result import ForkResult, ForkStatus
from nexofork.wire.contents import VERSION
from nexofork.wire.workspace import PathSpec
from nexofork.workspace import PathWorkspace, ShippedWorkspace

if TYPE_CHECKING:
    from nexofork.bus.connection import Bus
    from nexofork.client.fleet_settings import FleetSettings
    from nexofork.client.remote_run import RemoteRun
    from nexofork.run.params import ForkParams
    from nexofork.wire.messages import Daemon, Presence, Requested

__all__ = ["Queue"]

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_TELL_S = 5.0
_FRESH_S = 5.0
_MOST_NAMES = 100
_NAME = 80


class Queue:
    """The waiting requests of one parent."""

    def __init__(self, bus: Bus, settings: FleetSettings) -> None:
        self._settings = settings
        self._bus = bus
        self._board = PresenceBoard(bus)
        self._peers = Peers(bus, pool=settings.pool)
        self._window = asyncio.Semaphore(settings.window)
        self._warned_of: set[str] = set()
        self._outwaited: set[str] = set()
        """Daemons that said they are too old for longer than runs are kept back."""
        self._working: tuple[float, set[str]] | None = None
        self._working_lock = asyncio.Lock()
        self._told = False

    async def enter(self, request: Requested) -> None:
        """Return when a request may be published; it then holds a place until `until_claimed` or `leave` ends that.

        Raises:
            DaemonsTooOld: Daemons that would end it unread were there all the time.
        """
        if request.v > VERSION:
            await self._until_readable(request)
        await self._window.acquire()

    def leave(self) -> None:
        """Give the place back."""
        self._window.release()

    async def until_claimed(self, run: RemoteRun, params: ForkParams) -> None:
        """Hold the run's place until a daemon has it; give up when there is none to take it."""
        limit_s = self._settings.queue_limit_s
        tells = self._settings.tells_of_waits and not self._told and (limit_s is None or limit_s > _TELL_S)
        reached: int | None = None
        try:
            if tells and not await _claimed(run, within_s=_TELL_S):
                await self._tell_of_wait(run, params)
                limit_s = None if limit_s is None else limit_s - _TELL_S
            while not await _claimed(run, within_s=limit_s):
                try:
                    queue = await queue_state(self._bus, pool=self._settings.pool)
                    moves = reached is None or (queue.waiting > 0 and queue.reached > reached)
                    if not await self._is_served(params, moves=moves):
                        await self._give_up(run, params)
                        return
                    reached = queue.reached
                except BusError as exc:
                    log.info("run %s: who could take it is not known: %s", run.record.run_id, exc)
        finally:
            self.leave()

    async def _tell_of_wait(self, run: RemoteRun, params: ForkParams) -> None:
        """Say once why nothing happens, if nothing happens because no daemon is there."""
        try:
            able = await self._able(params)
        except BusError:
            return  # who is there is not known
        if not able and not self._told:  # others asked meanwhile
            self._told = True
            log.warning(
                "run %s waits: no daemon that could take it is there in pool %r; start one with `nexofork daemon%s`",
                run.record.run_id,
                self._settings.pool,
                _sharing(params),
            )

    async def _until_readable(self, request: Requested) -> None:
        loop = asyncio.get_running_loop()
        began, limit_s = loop.time(), self._settings.queue_limit_s
        while old := await self._too_old(request):
            names = sorted({_printable(peer.daemon.name) for peer in old})
            problem = DaemonsTooOld(daemons=names, needs=request.needs, pool=self._settings.pool)
            waited_s = loop.time() - began
            if waited_s > self._settings.old_daemons_s:
                log.warning("run kept back for %.0f s, and asked for now all the same: %s", waited_s, problem)
                self._outwaited.update(map(_key, old))
                return
            if limit_s is not None and waited_s > limit_s:
                raise problem
            if not self._warned_of.issuperset(names):
                self._warned_of.update(names[:_MOST_NAMES])
                log.warning("waiting: %s", problem)
            await asyncio.sleep(_LOOK_S)

    async def _too_old(self, request: Requested) -> list[Presence]:
        try:
            old = await self._peers.too_old_for(request.v)
        except BusError:
            return []  # publishing retries on its own, and says why
        return [peer for peer in old if _key(peer) not in self._outwaited]

    async def _able(self, params: ForkParams) -> list[Presence]:
        """Return the daemons that say they could take a run.

        Raises:
            BusError: NATS did not answer.
        """
        workspace_id = params.cache_safe.workspace_id
        daemons = await self._board.daemons(self._settings.pool)
        able = [daemon for daemon in daemons if not workspace_id or daemon.workspace_id in (None, workspace_id)]
        if _sharing(params):
            # One with a free slot would have taken it, if it shared the folder.
            able = [daemon for daemon in able if _is_busy(daemon)]
        return able

    async def _is_served(self, params: ForkParams, *, moves: bool) -> bool:
        """Whether a daemon is there that could take a run.

        Args:
            params: The run.
            moves: Whether daemons took requests from the queue since the last look.

        Raises:
            BusError: NATS did not answer.
        """
        able = await self._able(params)
        busy = [daemon for daemon in able if _is_busy(daemon)]
        if moves and len(able) > len(busy):
            return True
        return bool(busy) and not set(map(_key, busy)).isdisjoint(await self._working_keys())

    async def _working_keys(self) -> set[str]:
        """Return the daemons that have runs under way, as the runs' logs say."""
        async with self._working_lock:
            now = asyncio.get_running_loop().time()
            if self._working is None or now - self._working[0] > _FRESH_S:
                found = {_name(one) async for one in claimants(self._bus, self._settings.pool)}
                self._working = (now, found)
            return self._working[1]

    async def _give_up(self, run: RemoteRun, params: ForkParams) -> None:
        error = (
            f"No daemon took the run within {self._settings.queue_limit_s:g} s: none that could is there in pool "
            f"{self._settings.pool!r}, and about {await run.waiting()} requests are waiting. "
            f"Start one with `nexofork daemon{_sharing(params)}` and a key of the parent's workspace."
        )
        await run.abort(error)
        if run.claimed.is_set():
            return  # taken at the last moment: the daemon reports the abort
        result = ForkResult(
            run_id=run.record.run_id,
            label=params.fork_label,
            directive=params.directive,
            model=params.cache_safe.model,
            status=ForkStatus.FAILED,
            end="no_daemon",
            error=error,
        )
        run.record.add(ForkEnded(result=result))


def _sharing(params: ForkParams) -> str:
    """Return the option that shares the folder a run works in; empty where it names none."""
    match params.workspace:
        case PathWorkspace(path) | ShippedWorkspace(spec=PathSpec(path=path)):
            return f" --shared-dir {os.fspath(path)}"
        case _:
            return ""


async def _claimed(run: RemoteRun, *, within_s: float | None) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await run.claimed.wait()
    except TimeoutError:
        return False
    return True


def _is_busy(presence: Presence) -> bool:
    return presence.running >= presence.slots > 0


def _key(presence: Presence) -> str:
    return _name(presence.daemon)


def _name(daemon: Daemon) -> str:
    """Return what a daemon cannot change without a key of another: its own, or its instance on an open server."""
    return daemon.instance if daemon.nkey == LOCAL else daemon.nkey


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:_NAME])
