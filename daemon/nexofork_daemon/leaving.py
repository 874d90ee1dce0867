"""Leave a run to a daemon that suits it better, and say why, once.

Left runs come back every few seconds until a daemon takes them or their parent ends them. A run that needs what only
others say they know is left for about half an hour: a daemon's key can announce anything, and a run must not wait for
a daemon that does not exist.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nexofork.wire.needs import unknown_needs
from nexofork_daemon.workspaces import has_folder

if TYPE_CHECKING:
    from nexofork.bus.peers import Peers
    from nexofork.bus.pickup import Delivery
    from nexofork.providers.provider import Provider
    from nexofork.wire.messages import Requested

__all__ = ["Leaving"]

log = logging.getLogger(__name__)

_FIRST_S, _LONGEST_S = 1.0, 5.0
_REMEMBERED = 10_000
_MOST_LEFT = 360
"""Deliveries, five seconds apart."""


class Leaving:
    """What one daemon leaves to others."""

    def __init__(self, provider: Provider, peers: Peers) -> None:
        self._provider = provider
        self._peers = peers
        self._told: set[str] = set()

    async def is_read_by_others(self, version: int, *, attempt: int) -> bool:
        """Whether to leave a request of a later version to a daemon that says it reads it.

        Raises:
            BusError: NATS did not say who is there.
        """
        return attempt <= _MOST_LEFT and await self._peers.read(version)

    async def reason(self, request: Requested, *, attempt: int) -> str | None:
        """Return why another daemon suits a run better, or None: it shares the cache, has the folder, knows the needs.

        Args:
            request: What is asked for.
            attempt: How often it was delivered.

        Raises:
            BusError: NATS did not say who is there.
        """
        ours, theirs = self._provider.workspace_id, request.workspace_id
        if ours and theirs and ours != theirs and not request.allow_cache_break:
            return f"it is of the provider's workspace {theirs}, and our key is of {ours}: its cache is not ours"
        if not await asyncio.to_thread(has_folder, request.workspace):
            return f"its folder {getattr(request.workspace, 'path', '')!r} is not on this host"
        unknown = unknown_needs(request)
        if unknown and attempt <= _MOST_LEFT and await self._peers.know(request.needs):
            return f"it needs {', '.join(unknown)}, which a later version knows"
        return None

    async def leave(self, delivery: Delivery, reason: str) -> None:
        """Give a request back for a while; the log says why, the first time."""
        if delivery.run_id not in self._told:
            if len(self._told) >= _REMEMBERED:
                self._told.clear()
            self._told.add(delivery.run_id)
            log.info("run %s: left to another daemon: %s", delivery.run_id, reason)
        await delivery.release(delay_s=min(_FIRST_S * delivery.attempt, _LONGEST_S))
