"""What can be known about a fan-out before its first call: how long its prefix is, and how much of it is cached.

The parent's own bill says how many tokens its bytes are, so what stands behind them is measured by the same rule. Where
there is no bill (a request from a file), four bytes are a token and the cache is assumed to be cold.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from nexofork.core.markers import TTL_S
from nexofork.economics.fan_out import FanOut, decide
from nexofork.economics.prices import model_facts, price_of
from nexofork.errors import UnknownModelPrice

if TYPE_CHECKING:
    from nexofork.core.prompt import ForkBase
    from nexofork.core.snapshot import CacheSafeParams
    from nexofork.economics.fan_out import Decision
    from nexofork.economics.prices import Price
    from nexofork.engine.params import ForkParams

__all__ = ["FirstByteTimes", "plan_fan_out", "prefix_key", "tokens_per_byte", "ttl_of", "warm_tokens"]

BYTES_PER_TOKEN = 4.0
_SMALLEST_MINIMUM = 512
_EXPIRING_S = 10.0
"""An entry that lives no longer than this may be gone before a child gets there."""
_PREFILL_TOKENS_PER_S = 20_000.0
_OVERHEAD_S = 0.5


class FirstByteTimes:
    """How long responses take to begin, learnt from those that have.

    Calls are told apart by how much they have to read: how soon a cached prefix is answered says nothing about how long
    it takes to write one, and a wrong guess there costs a write per child.
    """

    def __init__(self) -> None:
        self._pace: dict[tuple[str, int, bool], float] = {}

    def expected_s(self, model: str, tokens: int, *, prewarm: bool = False) -> float:
        """Return the time until a call that has to read so many uncached tokens is answered."""
        return self._pace.get((model, tokens.bit_length(), prewarm), 1.0) * _usual_s(tokens)

    def saw(self, model: str, tokens: int, seconds: float, *, prewarm: bool = False) -> None:
        """Learn from a response that began."""
        like, pace = (model, tokens.bit_length(), prewarm), seconds / _usual_s(tokens)
        known = self._pace.get(like)
        self._pace[like] = pace if known is None else 0.7 * known + 0.3 * pace


def _usual_s(tokens: int) -> float:
    # A guess to start from; unverified, and corrected by what is seen.
    return _OVERHEAD_S + tokens / _PREFILL_TOKENS_PER_S


def prefix_key(params: ForkParams, base: ForkBase) -> str:
    """Name the prefix that a fork shares with its siblings: by workspace, cache key and content."""
    snapshot = params.cache_safe
    parts = json.dumps([snapshot.workspace_id or "", snapshot.cache_key_hash, params.model, base.digest])
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def ttl_of(snapshot: CacheSafeParams) -> str:
    """Return the TTL that entries of this conversation are written with."""
    return snapshot.write.ttl if snapshot.write else "5m"


def tokens_per_byte(snapshot: CacheSafeParams) -> float:
    """Return how many tokens a byte of this conversation is, by the parent's own bill where there is one."""
    billed = snapshot.reply.usage.prompt_tokens if snapshot.reply else 0
    return billed / len(snapshot.body) if billed else 1 / BYTES_PER_TOKEN


def warm_tokens(snapshot: CacheSafeParams, *, now: float) -> int:
    """Return how much of the parent's prefix is in the cache, as far as its own bill and clock say.

    Args:
        snapshot: The parent's request and reply.
        now: Unix time.
    """
    usage = snapshot.reply.usage if snapshot.reply else None
    if snapshot.write is None or snapshot.sent_at is None or usage is None or not snapshot.exact:
        return 0
    ttl = snapshot.write.ttl
    if ttl == "1h" and usage.cache_write_5m_tokens and not usage.cache_write_1h_tokens:
        ttl = "5m"  # something between the parent and the provider removed the ttl
    if now - snapshot.sent_at > TTL_S[ttl] - _EXPIRING_S:
        return 0
    return usage.cache_read_tokens + usage.cache_write_tokens


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
            minimum_tokens=facts.minimum_tokens if facts else _SMALLEST_MINIMUM,
            ttl=ttl_of(snapshot),
            price=_price(params.model, shared),
            leader_s=times.expected_s(params.model, shared - warm),
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
