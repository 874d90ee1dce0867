"""Leave a run to a daemon that suits it better, and say why, once.

The first time, a daemon gives a run back at once, so that the run goes round all daemons with a free slot without a
pause. After that it comes back every few seconds until a daemon takes it or its parent ends it. One that no daemon here
can work on is refused after a few rounds, so that its parent learns why. A run that needs what only others say they
know is left for about half an hour: a daemon's key can announce anything, and a run must not wait for a daemon that
does not exist.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nexofork.wire.needs import unknown_needs

if TYPE_CHECKING:
    from nexofork.bus.peers import Peers
    from nexofork.bus.pickup import Delivery
    from nexofork.providers.provider import Provider
    from nexofork.wire.messages import Requested
    from nexofork_daemon.run_environment import Environments
    from nexofork_daemon.run_state import RunState

__all__ = ["Placement"]

log = logging.getLogger(__name__)

_FIRST_S, _LONGEST_S = 1.0, 5.0
_ROUNDS = 3
"""How often each other daemon may have been offered a run before it is refused."""
_ROUNDS_AFTER_FULL = 12
"""The same, once a daemon without a free slot was seen: when it has one, chance decides who is offered the run."""
_REMEMBERED = 10_000
_MOST_LEFT = 360
"""Deliveries, five seconds apart."""


class Placement:
    """What one daemon leaves to others."""

    def __init__(self, provider: Provider, peers: Peers, *, environments: Environments, instance: str) -> None:
        self._provider = provider
        self._peers = peers
        self._environments = environments
        self._instance = instance
        self._told: set[str] = set()
        self._full_at: dict[str, int] = {}
        """At which delivery of a run a daemon without a free slot was last seen."""

    async def is_read_by_others(self, version: int, *, attempt: int) -> bool:
        """Whether to leave a request of a later version to a daemon that says it reads it.

        Raises:
            BusError: NATS did not say who is there.
        """
        return attempt <= _MOST_LEFT and await self._peers.read(version)

    async def reason(self, request: Requested, *, attempt: int) -> str | None:
        """Return why another daemon suits a run better, or None: it shares the cache, knows the needs.

        Args:
            request: What is asked for.
            attempt: How often it was delivered.

        Raises:
            BusError: NATS did not say who is there.
        """
        ours, theirs = self._provider.workspace_id, request.workspace_id
        if ours and theirs and ours != theirs and not request.allow_cache_break:
            return f"it is of the provider's workspace {theirs}, and our key is of {ours}: its cache is not ours"
        unknown = unknown_needs(request)
        if unknown and attempt <= _MOST_LEFT and await self._peers.know(request.needs):
            return f"it needs {', '.join(unknown)}, which a later version knows"
        return None

    async def unfit(self, request: Requested, state: RunState, delivery: Delivery) -> str | None:
        """Return why a run cannot work here while another daemon may still take it, or None.

        Raises:
            BusError: NATS did not say who is there.
        """
        problem = await asyncio.to_thread(self._environments.unfit, delivery.run_id, request, state)
        if problem is None or problem.lasting:
            return problem.reason if problem else None
        others = await self._peers.others(self._instance)
        # One with a free slot has had it by then; one without may be able to, and needs its turns once it has a slot.
        if any(peer.running >= peer.slots > 0 for peer in others):
            if len(self._full_at) >= _REMEMBERED:
                self._full_at.clear()
            self._full_at[delivery.run_id] = delivery.attempt
        full_at = self._full_at.get(delivery.run_id)
        rounds = _ROUNDS * len(others) if full_at is None else full_at + _ROUNDS_AFTER_FULL * len(others)
        return problem.reason if delivery.attempt <= min(rounds, _MOST_LEFT) else None

    async def leave(self, delivery: Delivery, reason: str) -> None:
        """Give a request back: the first time at once and with a line in the log, later for a while.

        The server hands what is given back at once to the daemon whose pull has waited longest, and ours is the last.
        """
        if delivery.run_id in self._told:
            await delivery.release(delay_s=min(_FIRST_S * delivery.attempt, _LONGEST_S))
            return
        if len(self._told) >= _REMEMBERED:
            self._told.clear()
        self._told.add(delivery.run_id)
        log.info("run %s: left to another daemon: %s", delivery.run_id, reason)
        await delivery.release()
