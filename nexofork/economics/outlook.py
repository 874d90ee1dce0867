"""What a parent's snapshot says about its prefix: how long it is, and how much of it is cached.

The parent's own bill says how many tokens its bytes are, so what stands behind them is measured by the same rule. Where
there is no bill (a request from a file), four bytes are a token and the cache is assumed to be cold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.core.markers import TTL_S

if TYPE_CHECKING:
    from nexofork.core.snapshot import CacheSafeParams
    from nexofork.core.usage import Usage

__all__ = [
    "BYTES_PER_TOKEN",
    "SMALLEST_MINIMUM",
    "CacheState",
    "cache_state",
    "is_billed",
    "tokens_per_byte",
    "ttl_of",
    "usual_first_byte_s",
    "warm_tokens",
]

BYTES_PER_TOKEN = 4.0
SMALLEST_MINIMUM = 512
"""The shortest prefix that is cached on any model; to go by where the model's own is not known."""
_AHEAD_S = 60.0
"""How far a clock may be ahead; a call later than that was not sent."""
_EXPIRING_S = 10.0
"""An entry that lives no longer than this may be gone before a child gets there."""
_MOST_TOKENS = 100_000_000
"""No prompt is longer; a bill that says so was not written by the provider."""
_PREFILL_TOKENS_PER_S = 20_000.0
_OVERHEAD_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheState:
    """How much of a parent's prefix is cached."""

    tokens: int
    """0 where the cache is cold, or has to be taken for it."""
    why: str
    """What that is known by."""


def usual_first_byte_s(tokens: int) -> float:
    """Return the time until a call that reads so many uncached tokens is answered: a guess, and unverified."""
    return _OVERHEAD_S + tokens / _PREFILL_TOKENS_PER_S


def ttl_of(snapshot: CacheSafeParams) -> str:
    """Return the TTL that entries of this conversation are written with."""
    return snapshot.write.ttl if snapshot.write else "5m"


def is_billed(snapshot: CacheSafeParams) -> bool:
    """Whether the parent's own bill came with the snapshot, so that its tokens need not be guessed."""
    return _bill(snapshot) is not None


def tokens_per_byte(snapshot: CacheSafeParams) -> float:
    """Return how many tokens a byte of this conversation is, by the parent's own bill where there is one."""
    bill = _bill(snapshot)
    return 1 / BYTES_PER_TOKEN if bill is None else bill.prompt_tokens / len(snapshot.body)


def warm_tokens(snapshot: CacheSafeParams, *, now: float) -> int:
    """Return how much of the parent's prefix is in the cache, as far as its own bill and clock say.

    Args:
        snapshot: The parent's request and reply.
        now: Unix time.
    """
    return cache_state(snapshot, now=now).tokens


def cache_state(snapshot: CacheSafeParams, *, now: float) -> CacheState:
    """Return how much of the parent's prefix is in the cache, and what that is known by.

    Args:
        snapshot: The parent's request and reply.
        now: Unix time.
    """

    def cold(why: str) -> CacheState:
        return CacheState(tokens=0, why=why)

    usage = _bill(snapshot)
    if snapshot.write is None:
        return cold("the parent's request marks nothing to be cached")
    if not snapshot.exact:
        return cold("the request is not byte for byte what the parent sent")
    if usage is None:
        return cold("no bill of the parent's call is known")
    if snapshot.sent_at is None:
        return cold("it is not known when the parent's call was sent")
    cached = usage.cache_read_tokens + usage.cache_write_tokens
    if not cached:
        return cold("the parent's call neither read nor wrote the cache")
    ttl = snapshot.write.ttl
    if ttl == "1h" and usage.cache_write_5m_tokens and not usage.cache_write_1h_tokens:
        ttl = "5m"  # something between the parent and the provider removed the ttl
    if snapshot.sent_at > now + _AHEAD_S:
        return cold(f"the parent's call is said to be sent {snapshot.sent_at - now:,.0f} s from now")
    left_s = min(snapshot.sent_at, now) + TTL_S[ttl] - now
    if left_s < _EXPIRING_S:
        return cold(f"the parent's call was sent {now - snapshot.sent_at:,.0f} s ago and its entry lives for {ttl}")
    return CacheState(tokens=cached, why=f"the parent's entry lives for another {min(left_s, TTL_S[ttl]):,.0f} s")


def _bill(snapshot: CacheSafeParams) -> Usage | None:
    """Return what the parent's call was billed; None where that is not known, or cannot be."""
    usage = snapshot.reply.usage if snapshot.reply else None
    if usage is None or min(usage.input_tokens, usage.cache_read_tokens) < 0:
        return None
    if min(usage.cache_write_5m_tokens, usage.cache_write_1h_tokens) < 0:
        return None
    return usage if 0 < usage.prompt_tokens <= _MOST_TOKENS else None
