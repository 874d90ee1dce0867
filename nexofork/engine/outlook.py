"""How the fan-out that a fork is part of starts, by what can be known before its first call."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from nexofork.economics.fan_out import FanOut, decide
from nexofork.economics.outlook import SMALLEST_MINIMUM, tokens_per_byte, ttl_of, usual_first_byte_s, warm_tokens
from nexofork.economics.prices import model_facts, price_of
from nexofork.errors import UnknownModelPrice

if TYPE_CHECKING:
    from nexofork.core.prompt import ForkBase
    from nexofork.economics.fan_out import Decision
    from nexofork.economics.prices import Price
    from nexofork.engine.params import ForkParams

__all__ = ["FirstByteTimes", "plan_fan_out", "prefix_key", "tokens_per_byte", "ttl_of", "warm_tokens"]


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
