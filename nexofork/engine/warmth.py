"""One write per prefix: siblings that would all write the same entry wait for the one that does.

An entry can be read only once the response that writes it begins. N children that start together on a prefix nobody has
written pay for it N times. So the first to ask leads, the others start at its first byte; if it fails, the next one
leads; and nobody waits longer than a deadline.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Lead", "LocalWarmth"]


@dataclass(slots=True)
class _Entry:
    leader: Lead | None = None
    warm_until: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Lead:
    """Leave to send the first call; says so when its response begins, or when it never will."""

    def __init__(self, warmth: LocalWarmth, digest: str, *, leads: bool, started_at: float, waited_s: float) -> None:
        self._warmth = warmth
        self._digest = digest
        self._started_at = started_at
        self.leads = leads
        """Whether others wait for this call."""
        self.waited_s = waited_s
        """How long this call waited for another."""

    def began(self, ttl_s: float) -> None:
        """The response began: the entry is there, for `ttl_s` from when the call was sent."""
        self._warmth._settle(self, self._digest, warm_until=self._started_at + ttl_s)

    def gave_up(self) -> None:
        """The call ended, however it did; a no-op once it began."""
        self._warmth._settle(self, self._digest, warm_until=None)


class LocalWarmth:
    """What this process knows about which prefixes are cached."""

    def __init__(self, *, now: Callable[[], float], wait_s: float = 30.0) -> None:
        """Start knowing nothing.

        Args:
            now: A monotonic clock.
            wait_s: The longest a follower waits for its leader's first byte before it goes on alone.
        """
        self._now = now
        self._wait_s = wait_s
        self._entries: dict[str, _Entry] = {}

    async def enter(self, digest: str) -> Lead:
        """Return leave to call.

        At once where the prefix is warm or nobody leads, else when the leader's response begins.
        """
        asked_at = self._now()
        deadline = asyncio.get_running_loop().time() + self._wait_s
        self._forget_expired(asked_at)
        entry = self._entries.setdefault(digest, _Entry())
        waited_from: float | None = None
        while entry.leader is not None and entry.warm_until <= self._now():
            waited_from = asked_at
            try:
                async with asyncio.timeout_at(deadline):
                    await entry.changed.wait()
            except TimeoutError:
                return self._lead(digest, leads=False, waited_from=waited_from)
        if entry.warm_until > self._now():
            return self._lead(digest, leads=False, waited_from=waited_from)
        entry.leader = self._lead(digest, leads=True, waited_from=waited_from)
        entry.changed.clear()
        self._entries[digest] = entry
        return entry.leader

    def _lead(self, digest: str, *, leads: bool, waited_from: float | None) -> Lead:
        now = self._now()
        waited_s = 0.0 if waited_from is None else now - waited_from
        return Lead(self, digest, leads=leads, started_at=now, waited_s=waited_s)

    def _settle(self, lead: Lead, digest: str, *, warm_until: float | None) -> None:
        entry = self._entries.setdefault(digest, _Entry())
        if warm_until is not None:
            entry.warm_until = max(entry.warm_until, warm_until)
        if entry.leader is lead:
            entry.leader = None
            entry.changed.set()
        elif warm_until is not None:
            entry.changed.set()

    def _forget_expired(self, now: float) -> None:
        for digest in [key for key, entry in self._entries.items() if not entry.leader and entry.warm_until <= now]:
            # Waiters hold the entry itself; only the name is forgotten.
            del self._entries[digest]
