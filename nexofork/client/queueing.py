"""What a request waits for until a daemon has it.

First that no daemon takes work which would end it unread, then a place among those of this parent that wait, then a
daemon that claims it. Each wait has an end that says what was missing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nexofork.bus.peers import Peers
from nexofork.bus.presence import PresenceBoard
from nexofork.engine.events import ForkEnded
from nexofork.engine.result import ForkResult, ForkStatus
from nexofork.engine.workspace import PathWorkspace, ShippedWorkspace
from nexofork.errors import BusError, DaemonsTooOld
from nexofork.wire.contents import VERSION
from nexofork.wire.workspace import PathSpec

if TYPE_CHECKING:
    from nexofork.bus.connection import Bus
    from nexofork.client.fleet_settings import FleetSettings
    from nexofork.client.remote_run import RemoteRun
    from nexofork.engine.params import ForkParams
    from nexofork.wire.messages import Presence, Requested

__all__ = ["Queue"]

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_TELL_S = 5.0


class Queue:
    """The waiting requests of one parent."""

    def __init__(self, bus: Bus, settings: FleetSettings) -> None:
        self._settings = settings
        self._board = PresenceBoard(bus)
        self._peers = Peers(bus, pool=settings.pool)
        self._window = asyncio.Semaphore(settings.window)
        self._warned_of: set[str] = set()
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
        try:
            if tells and not await _claimed(run, within_s=_TELL_S):
                await self._tell_of_wait(run, params)
                limit_s = None if limit_s is None else limit_s - _TELL_S
            while not await _claimed(run, within_s=limit_s):
                if not await self._is_served(params):
                    await self._give_up(run, params)
                    return
        finally:
            self.leave()

    async def _tell_of_wait(self, run: RemoteRun, params: ForkParams) -> None:
        """Say once why nothing happens, if nothing happens because nobody is there."""
        if not await self._is_served(params) and not self._told:  # others asked meanwhile
            self._told = True
            log.warning(
                "run %s waits: no daemon that could take it is there in pool %r; start one with `nexofork daemon`",
                run.record.run_id,
                self._settings.pool,
            )

    async def _until_readable(self, request: Requested) -> None:
        loop = asyncio.get_running_loop()
        began, limit_s = loop.time(), self._settings.queue_limit_s
        while old := await self._too_old(request):
            names = sorted(peer.daemon.name for peer in old)
            problem = DaemonsTooOld(daemons=names, needs=request.needs, pool=self._settings.pool)
            if limit_s is not None and loop.time() - began > limit_s:
                raise problem
            if not self._warned_of.issuperset(names):
                self._warned_of.update(names)
                log.warning("waiting: %s", problem)
            await asyncio.sleep(_LOOK_S)

    async def _too_old(self, request: Requested) -> list[Presence]:
        try:
            return await self._peers.too_old_for(request.v)
        except BusError:
            return []  # publishing has its own patience with a NATS that is away, and its own words

    async def _is_served(self, params: ForkParams) -> bool:
        """Whether a daemon is there that could take a run; while NATS is away, nobody knows."""
        workspace_id, workspace = params.cache_safe.workspace_id, params.workspace
        try:
            daemons = await self._board.daemons(self._settings.pool)
        except BusError:
            return True
        able = [daemon for daemon in daemons if not workspace_id or daemon.workspace_id in (None, workspace_id)]
        if isinstance(workspace, PathWorkspace) or (
            isinstance(workspace, ShippedWorkspace) and isinstance(workspace.spec, PathSpec)
        ):
            # One with a free slot would have taken it, if it had the folder.
            able = [daemon for daemon in able if daemon.running >= daemon.slots > 0]
        return bool(able)

    async def _give_up(self, run: RemoteRun, params: ForkParams) -> None:
        error = (
            f"No daemon took the run within {self._settings.queue_limit_s:g} s: none that could is there in pool "
            f"{self._settings.pool!r}, and about {await run.waiting()} requests are waiting. "
            "Start one with `nexofork daemon` and a key of the parent's workspace"
            f"{', where the folder of its workspace is' if params.workspace else ''}."
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


async def _claimed(run: RemoteRun, *, within_s: float | None) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await run.claimed.wait()
    except TimeoutError:
        return False
    return True
