"""Say before a call what it may cost at most, as far as anybody can know.

The answer is as long as the request allows. How many tokens the prompt has is known from the last bill for what that
covered: the parent's, later the fork's own. What was added since counts by its bytes, two to a token, which is the
densest text we plan for; an image counts by its bytes too, once, until a bill says better. What is known to be cached
is read; the rest is written, at the price of the TTL in force.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.core.markers import TTL_S
from nexofork.core.usage import Usage
from nexofork.economics.outlook import is_billed
from nexofork.economics.prices import model_facts
from nexofork.engine.budget import cost_of
from nexofork.engine.outlook import ttl_of, warm_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nexofork.core.prompt import ForkBase
    from nexofork.engine.params import ForkParams
    from nexofork.engine.result import CallRecord
    from nexofork.wire.messages import Amount

__all__ = ["BYTES_PER_TOKEN", "CallQuotes"]

BYTES_PER_TOKEN = 2
_SPARSE = 8
"""Bytes per token of the loosest text, for what must not be counted too high."""
_EXPIRING_S = 10.0
"""An entry that lives no longer than this may be gone before the call gets there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """What is remembered of a call until the next one."""

    at: float
    size_bytes: int


class CallQuotes:
    """Quotes one fork's calls."""

    def __init__(self, params: ForkParams, base: ForkBase, *, now: Callable[[], float] = time.time) -> None:
        self._params = params
        self._base = base
        self._now = now
        self._cost = cost_of(params.model)
        self._sent: dict[int, _Sent] = {}

    def recorded(self, turn: int, at: float) -> None:
        """Take note of a call that an earlier daemon made: of it, only the parent's bytes are sure to be covered."""
        self._sent[turn] = _Sent(at=at, size_bytes=len(self._params.cache_safe.body))

    def quote(self, turn: int, *, size_bytes: int, calls: Sequence[CallRecord], is_warm: bool) -> Amount:
        """Return the most a call may cost.

        Args:
            turn: Which; 0 for a pre-warm, which gets no answer.
            size_bytes: The length of the request.
            calls: The fork's calls so far.
            is_warm: Whether all that it shares with its siblings is known to be cached.
        """
        now = self._now()
        last = calls[-1] if calls else None
        prompt = self._prompt_tokens(size_bytes, last)
        warm = self._known_warm(last, now)
        if last is None and is_warm and self._is_cacheable():
            own = size_bytes - len(self._params.cache_safe.body) - self._base.tail_bytes
            warm = max(warm, prompt - _dense(own))
        warm = min(warm, prompt)
        self._sent[turn] = _Sent(at=now, size_bytes=size_bytes)
        hour = ttl_of(self._params.cache_safe) == "1h"
        return self._cost(
            Usage(
                cache_read_tokens=warm,
                cache_write_5m_tokens=0 if hour else prompt - warm,
                cache_write_1h_tokens=prompt - warm if hour else 0,
                output_tokens=self._answer_tokens() if turn else 0,
            )
        )

    def _prompt_tokens(self, size_bytes: int, last: CallRecord | None) -> int:
        if last is None:
            billed, covered = self._parents_bill()
            return billed + _dense(size_bytes - covered)
        sent = self._sent.get(last.turn)
        covered = sent.size_bytes if sent else len(self._params.cache_safe.body)
        added = _dense(size_bytes - covered)
        return last.usage.prompt_tokens + (max(added, last.usage.output_tokens) if last.complete else added)

    def _parents_bill(self) -> tuple[int, int]:
        """Return how many tokens the parent was billed for, and for how many bytes."""
        snapshot = self._params.cache_safe
        billed = snapshot.reply.usage.prompt_tokens if snapshot.reply and is_billed(snapshot) else 0
        if not billed or set(self._params.overrides.request) - {"max_tokens"}:
            return 0, 0
        return billed, len(snapshot.body)

    def _is_cacheable(self) -> bool:
        """Whether the prefix is sure to be as long as the provider wants it: a shorter one is silently not kept."""
        facts = model_facts(self._params.model)
        billed, _ = self._parents_bill()
        return facts is None or (billed or len(self._params.cache_safe.body) // _SPARSE) >= facts.minimum_tokens

    def _known_warm(self, last: CallRecord | None, now: float) -> int:
        snapshot = self._params.cache_safe
        if last is None:
            return 0 if self._params.overrides.request else warm_tokens(snapshot, now=now)
        sent = self._sent.get(last.turn)
        if sent is None or now - sent.at > TTL_S[ttl_of(snapshot)] - _EXPIRING_S:
            return 0
        return last.usage.cache_read_tokens + last.usage.cache_write_tokens

    def _answer_tokens(self) -> int:
        asked = self._params.overrides.request.get("max_tokens", self._params.cache_safe.field("max_tokens"))
        return min(asked, _MOST_ANSWERED) if isinstance(asked, int) and asked > 0 else 0


_MOST_ANSWERED = 10**9
"""No model answers more, whatever it is asked for."""


def _dense(size_bytes: int) -> int:
    return -(-max(size_bytes, 0) // BYTES_PER_TOKEN)
