"""What the daemons of a pool can run, while a fleet is upgraded and daemons of two versions take from one queue.

One that meets a run it does not understand leaves it to a daemon that does, as long as there is one. The first version
could not: it ends what it cannot read, so a parent keeps such a run back while one of those takes work.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nexofork.bus.presence import PresenceBoard

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nexofork.bus.connection import Bus
    from nexofork.wire.messages import Presence

__all__ = ["Peers"]

_FRESH_S = 1.0
"""A queue full of runs that are left alone is no reason to ask NATS for each of them."""


class Peers:
    """The daemons of a pool, by what they say of themselves."""

    def __init__(self, bus: Bus, *, pool: str) -> None:
        self._board = PresenceBoard(bus)
        self._pool = pool
        self._lock = asyncio.Lock()
        self._seen: list[Presence] = []
        self._seen_at: float | None = None

    async def read(self, version: int) -> bool:
        """Whether somebody who takes work can read requests of this version.

        Raises:
            BusError: NATS did not answer.
        """
        return any(peer.reads >= version for peer in await self._working())

    async def know(self, needs: Iterable[str]) -> bool:
        """Whether somebody who takes work knows all that a request needs.

        Raises:
            BusError: NATS did not answer.
        """
        wanted = set(needs)
        return any(wanted <= set(peer.knows) for peer in await self._working())

    async def all_read_mounted(self) -> bool:
        """Whether no daemon takes work that would go on wrongly with a checkout at the parent's paths.

        Raises:
            BusError: NATS did not answer.
        """
        return all(peer.reads_mounted for peer in await self._working())

    async def others(self, instance: str) -> list[Presence]:
        """Return the daemons that take work, without one of them.

        Raises:
            BusError: NATS did not answer.
        """
        return [peer for peer in await self._working() if peer.daemon.instance != instance]

    async def too_old_for(self, version: int) -> list[Presence]:
        """Return those who take work and cannot read requests of this version.

        Raises:
            BusError: NATS did not answer.
        """
        return [peer for peer in await self._working() if peer.reads < version]

    async def _working(self) -> list[Presence]:
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if self._seen_at is None or now - self._seen_at > _FRESH_S:
                self._seen = [peer for peer in await self._board.daemons(self._pool) if not peer.draining]
                self._seen_at = now
        return self._seen
