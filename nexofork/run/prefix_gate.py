"""One write per prefix: siblings that would all write the same entry wait for the one that does.

An entry can be read only once the response that writes it begins. N children that start together on a prefix that is
not written yet pay for it N times. So, where that is worth a wait, the first to ask leads and the others start at its
first byte; if it fails or is slow, the next one leads; and no child waits longer than a deadline. How a fan-out starts
is decided by what can be known before its first call.

Within a process the children wait for each other here. In a fleet, the leader of a process asks the fleet's board
first, so that one child of the whole fleet leads.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from nexofork.economics.fan_out import FanOut, decide
from nexofork.economics.outlook import SMALLEST_MINIMUM, tokens_per_byte, ttl_of, usual_first_byte_s, warm_tokens
from nexofork.economics.prices import model_facts, price_of
from nexofork.errors import UnknownModelPrice

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexofork.core.prompt import ForkBase
    from nexofork.economics.fan_out import Decision
    from nexofork.economics.prices import Price
    from nexofork.run.params import ForkParams

__all__ = [
    "Board",
    "Claim",
    "FirstByteTimes",
    "Lead",
    "Role",
    "Warmth",
    "plan_fan_out",
    "prefix_key",
    "tokens_per_byte",
    "ttl_of",
    "warm_tokens",
]

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


class FirstByteTimes:
    """How long responses take to begin, learnt from those that have.

    Calls are told apart by how much they have to read: how soon a cached prefix is answered says nothing about how long
    it takes to write one, and a wrong guess there costs a write per child.
    """

    def __init__(self) -> None:
        self._pace: dict[tuple[str, int, bool], float] = {}

    def expected_s(self, model: str, tokens: int, *, prewarm: bool = False) -> float:
        """Return the time until a call that has to read so many uncached tokens is answered."""
        return self._pace.get((model, tokens.bit_length(), prewarm), 1.0) * usual_first_byte_s(tokens)

    def knows(self, model: str, tokens: int) -> bool:
        """Whether a call of about this size has been seen to begin."""
        return (model, tokens.bit_length(), False) in self._pace

    def saw(self, model: str, tokens: int, seconds: float, *, prewarm: bool = False) -> None:
        """Learn from a response that began."""
        like, pace = (model, tokens.bit_length(), prewarm), seconds / usual_first_byte_s(tokens)
        known = self._pace.get(like)
        self._pace[like] = pace if known is None else 0.7 * known + 0.3 * pace


def prefix_key(params: ForkParams, base: ForkBase) -> str:
    """Name the prefix that a fork shares with its siblings: by workspace, cache key and content."""
    snapshot = params.cache_safe
    # Whoever is billed reads its own workspace's entries; until a response has told, the parent's word counts.
    workspace = (params.llm.workspace_id if params.llm else None) or snapshot.workspace_id or ""
    parts = json.dumps([workspace, snapshot.cache_key_hash, params.model, base.digest])
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def plan_fan_out(
    params: ForkParams, base: ForkBase, *, times: FirstByteTimes, is_warm: bool, wait_s: float, now: float
) -> Decision:
    """Decide how the fan-out that this fork is part of starts.

    Args:
        params: The fork.
        base: What it shares with its siblings.
        times: How long responses take to begin.
        is_warm: Whether the whole shared prefix is known to be cached.
        wait_s: The longest a child waits.
        now: Unix time.
    """
    snapshot = params.cache_safe
    rate = tokens_per_byte(snapshot)
    shared = round((len(snapshot.body) + base.tail_bytes) * rate)
    warm = shared if is_warm else min(0 if params.overrides.request else warm_tokens(snapshot, now=now), shared)
    facts = model_facts(params.model)
    return decide(
        FanOut(
            siblings=params.siblings,
            shared_tokens=shared,
            warm_tokens=warm,
            own_tokens=round(params.own_bytes * rate),
            minimum_tokens=facts.minimum_tokens if facts else SMALLEST_MINIMUM,
            ttl=ttl_of(snapshot),
            price=_price(params.model, shared),
            leader_s=times.expected_s(params.model, shared - warm),
            leader_seen=times.knows(params.model, shared - warm),
            prewarm_s=times.expected_s(params.model, shared - warm, prewarm=True) if base.allows_prewarm else None,
            wait_limit_s=wait_s,
        ),
        asked_for=params.warm_up,
    )


def _price(model: str, tokens: int) -> Price | None:
    try:
        return price_of(model, tokens)
    except UnknownModelPrice:
        return None
