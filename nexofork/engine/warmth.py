"""One write per prefix: siblings that would all write the same entry wait for the one that does.

An entry can be read only once the response that writes it begins. N children that start together on a prefix nobody has
written pay for it N times. So, where that is worth a wait, the first to ask leads and the others start at its first
byte; if it fails or is slow, the next one leads; and nobody waits longer than a deadline.

Within a process the children wait for each other here. Where the process is one of a fleet, whoever leads here asks the
fleet's board first, so that one child of the whole fleet leads.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from nexofork.engine.outlook import FirstByteTimes

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexofork.economics.fan_out import Decision

__all__ = ["Board", "Claim", "Lead", "Role", "Warmth"]

Role: TypeAlias = Literal["leader", "follower", "alone", "free"]
"""``free``: nobody waits here. ``alone``: waited until the deadline, and then went without."""

_LEAST_PATIENCE_S = 10.0
_PATIENCE = 4.0
"""How many times the expected first-byte time a leader is given before another one leads beside it."""
_EXPIRING_S = 5.0
"""An entry with less than this left may be gone before a call gets there."""
_LONG_PAUSE_S = 2.0
"""A leader that pauses longer than this before it tries again lets another one lead."""


class Claim(Protocol):
    """What the fleet's board says to whoever would lead here."""

    @property
    def leads(self) -> bool:
        """Whether this process leads for the fleet; the rest of the fleet waits until it is told."""

    @property
    def warm_s(self) -> float | None:
        """For how long the prefix is warm, where it is."""

    @property
    def cached(self) -> bool:
        """Whether the responses that began did read or write it."""

    @property
    def waited(self) -> bool:
        """Whether somebody else was waited for."""


class Board(Protocol):
    """What the fleet knows about its prefixes. It is advice: nothing is lost where it is wrong or out of reach."""

    async def claim(self, key: str, *, patience_s: float, limit_s: float) -> Claim:
        """Return when this process leads, or the prefix is warm, or the limit has passed.

        Args:
            key: Names the prefix.
            patience_s: How long a leader elsewhere may take before somebody leads beside it.
            limit_s: The longest to wait.
        """

    def listen(self, told: Callable[[str, float, bool], None]) -> None:
        """Tell of every prefix that becomes warm anywhere: its key, for how long, and whether it is cached."""

    def warm(self, key: str, *, for_s: float, ttl_s: float, cached: bool) -> None:
        """Say that a response that wrote or read the prefix began; neither waits nor raises."""

    def release(self, key: str) -> None:
        """Say that whoever led here no longer does; neither waits nor raises."""


@dataclass(slots=True, eq=False)
class _Prefix:
    leader: Lead | None = None
    led_since: float = 0.0
    warm_until: float = 0.0
    waiting: int = 0
    """How many hold it while they wait; its name is not forgotten meanwhile."""
    cached: bool = True
    """Whether the responses that began did read or write it; else nobody waits, and nobody counts on it either."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def announce(self) -> None:
        """Wake everybody who waits."""
        self.changed.set()
        self.changed = asyncio.Event()


class Lead:
    """Leave to send the first call; says so when its response begins, or when it never will."""

    def __init__(self, warmth: Warmth, key: str, *, role: Role, sent_at: float, waited_s: float) -> None:
        self._warmth = warmth
        self.key = key
        self.role: Role = role
        self.sent_at = sent_at
        self.waited_s = waited_s
        """How long this call waited for another."""

    def began(self, ttl_s: float, *, cached: bool = True) -> None:
        """The response began: the entry is there, for `ttl_s` from when the call was sent."""
        self._warmth._warm(self, until=self.sent_at + ttl_s - _EXPIRING_S, ttl_s=ttl_s, cached=cached)

    def pauses(self, delay_s: float) -> None:
        """The call failed and is tried again after a while; a long one is not for others to wait for."""
        if delay_s > _LONG_PAUSE_S:
            self.gave_up()

    def gave_up(self) -> None:
        """The call ended, however it did; a no-op once it began."""
        self._warmth._leave(self)


class Warmth:
    """What this process knows about which prefixes are cached, and who is writing which."""

    def __init__(
        self, *, wait_s: float = 30.0, board: Board | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Start knowing nothing.

        Args:
            wait_s: The longest a follower waits for its leader's first byte before it goes on alone.
            board: What the rest of the fleet knows.
            now: A monotonic clock.
        """
        self.wait_s = wait_s
        self.times = FirstByteTimes()
        self._board = board
        self._now = now
        self._prefixes: dict[str, _Prefix] = {}
        if board is not None:
            board.listen(self._told)

    def _told(self, key: str, for_s: float, cached: bool) -> None:
        """Start whoever waits here for a leader that was overtaken by another host's."""
        prefix = self._prefixes.get(key)
        if prefix is not None:
            prefix.warm_until, prefix.cached = max(prefix.warm_until, self._now() + for_s), cached
            prefix.announce()

    def is_warm(self, key: str) -> bool:
        """Whether a response that wrote or read the prefix has begun here, within its TTL."""
        prefix = self._prefixes.get(key)
        return prefix is not None and prefix.cached and prefix.warm_until > self._now()

    async def enter(self, key: str, decision: Decision) -> Lead:
        """Return leave to call: at once where nobody has to wait, else when the leader's response begins."""
        asked_at = self._now()
        self._forget_expired(asked_at)
        if decision.plan == "all_at_once":
            return self._lead(key, "free")
        patience_s = max(_LEAST_PATIENCE_S, _PATIENCE * decision.first_byte_s)
        prefix = self._prefixes.setdefault(key, _Prefix())
        waited_from: float | None = None
        while prefix.warm_until <= self._now():
            left_s = asked_at + self.wait_s - self._now()
            if left_s <= 0:
                return self._lead(key, "alone", waited_from)
            slow_s = prefix.led_since + patience_s - self._now()
            if prefix.leader is None or slow_s <= 0:
                prefix.leader = lead = self._lead(key, "leader", waited_from)
                prefix.led_since = self._now()
                self._prefixes[key] = prefix
                if self._board is not None:
                    await self._ask_fleet(self._board, lead, prefix, patience_s=patience_s, limit_s=left_s)
                return lead
            waited_from = asked_at
            prefix.waiting += 1
            try:
                await _until(prefix.changed, min(left_s, slow_s))
            finally:
                prefix.waiting -= 1
        return self._lead(key, "follower", waited_from)

    async def _ask_fleet(self, board: Board, lead: Lead, prefix: _Prefix, *, patience_s: float, limit_s: float) -> None:
        """Make whoever leads here the leader of the fleet, or a follower like the others."""
        asked_at = self._now()
        try:
            claim = await board.claim(lead.key, patience_s=patience_s, limit_s=limit_s)
        except BaseException:
            self._leave(lead)
            raise
        lead.sent_at = prefix.led_since = self._now()
        if claim.waited:
            lead.waited_s += lead.sent_at - asked_at
        if claim.leads:
            return
        if claim.warm_s is not None:
            prefix.warm_until = max(prefix.warm_until, lead.sent_at + claim.warm_s)
            prefix.cached = claim.cached
        lead.role = "alone" if claim.warm_s is None else "follower"
        if prefix.leader is lead:
            prefix.leader = None
            prefix.announce()

    def _lead(self, key: str, role: Role, waited_from: float | None = None) -> Lead:
        now = self._now()
        return Lead(self, key, role=role, sent_at=now, waited_s=0.0 if waited_from is None else now - waited_from)

    def _warm(self, lead: Lead, *, until: float, ttl_s: float, cached: bool) -> None:
        prefix = self._prefixes.setdefault(lead.key, _Prefix())
        prefix.cached = cached
        known_until, prefix.warm_until = prefix.warm_until, max(prefix.warm_until, until)
        if prefix.leader is lead:
            prefix.leader = None
        prefix.announce()
        # Others are told of what is news to them: the first byte, and later that the entry lives on.
        if self._board is not None and (lead.role == "leader" or known_until - self._now() < ttl_s / 2):
            self._board.warm(lead.key, for_s=until - self._now(), ttl_s=ttl_s, cached=cached)

    def _leave(self, lead: Lead) -> None:
        prefix = self._prefixes.get(lead.key)
        if prefix is None or prefix.leader is not lead:
            return
        prefix.leader = None
        prefix.announce()
        if self._board is not None:
            self._board.release(lead.key)

    def _forget_expired(self, now: float) -> None:
        gone = [
            key
            for key, prefix in self._prefixes.items()
            if not (prefix.leader or prefix.waiting) and prefix.warm_until <= now
        ]
        for key in gone:
            del self._prefixes[key]


async def _until(changed: asyncio.Event, limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await changed.wait()
    except TimeoutError:
        return
