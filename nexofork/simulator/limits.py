"""Rate limits per workspace: requests and input tokens, refilled by the minute.

Cache reads do not count toward input tokens; fresh input and cache writes do. A request is charged only when it is
let in. Invariant: with no limit set, nothing is ever refused and the headers show full buckets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from nexofork.simulator.errors import ApiError

if TYPE_CHECKING:
    from nexofork.simulator.cache import Bill
    from nexofork.simulator.config import RateLimits

__all__ = ["RateLimiter"]

UNLIMITED_REQUESTS = 1_000
UNLIMITED_TOKENS = 10_000_000
OUTPUT_TOKENS = 2_000_000
"""Shown in the headers; output is not limited here."""


@dataclass(slots=True)
class _Bucket:
    """A bucket of one minute's worth, refilled steadily."""

    capacity: float
    level: float
    filled_at: float

    def refill(self, now: float) -> None:
        self.level = min(self.capacity, self.level + (now - self.filled_at) * self.capacity / 60)
        self.filled_at = now

    def wait_s(self, amount: float) -> float:
        """Seconds until the amount is there; an amount above capacity waits for a full bucket."""
        return max(0.0, (min(amount, self.capacity) - self.level) * 60 / self.capacity)


class RateLimiter:
    """The buckets of every workspace."""

    def __init__(self, limits: RateLimits) -> None:
        self._limits = limits
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    def admit(self, workspace: str, bill: Bill, now: float) -> None:
        """Charge a request, or refuse it.

        Raises:
            ApiError: 429 with the seconds to wait.
        """
        tokens = bill.write_5m + bill.write_1h + bill.fresh
        wanted = [(bucket, name, amount) for bucket, name, amount in self._wanted(workspace, tokens, now)]
        for bucket, name, amount in wanted:
            wait = bucket.wait_s(amount)
            if wait > 0:
                raise ApiError(
                    429,
                    f"This request would exceed your organization's rate limit of {bucket.capacity:.0f} {name} per "
                    "minute. Please reduce the prompt length or try again later.",
                    retry_after_s=math.ceil(wait),
                )
        for bucket, _, amount in wanted:
            bucket.level -= amount

    def headers(self, workspace: str, now: float) -> list[tuple[str, str]]:
        """The `anthropic-ratelimit-*` headers as they stand now."""
        requests = self._state(workspace, "requests", self._limits.requests_per_minute, UNLIMITED_REQUESTS, now)
        inputs = self._state(workspace, "input tokens", self._limits.input_tokens_per_minute, UNLIMITED_TOKENS, now)
        outputs = (OUTPUT_TOKENS, OUTPUT_TOKENS, now)
        both = (inputs[0] + outputs[0], inputs[1] + outputs[1], max(inputs[2], outputs[2]))
        named = {"requests": requests, "tokens": both, "input-tokens": inputs, "output-tokens": outputs}
        return [
            (f"anthropic-ratelimit-{name}-{part}", value)
            for name, (limit, remaining, reset) in named.items()
            for part, value in (("limit", str(limit)), ("remaining", str(remaining)), ("reset", _timestamp(reset)))
        ]

    def clear(self) -> None:
        """Fill every bucket."""
        self._buckets.clear()

    def _wanted(self, workspace: str, tokens: int, now: float) -> list[tuple[_Bucket, str, float]]:
        limits = (
            ("requests", self._limits.requests_per_minute, 1),
            ("input tokens", self._limits.input_tokens_per_minute, tokens),
        )
        return [(self._bucket(workspace, name, limit, now), name, amount) for name, limit, amount in limits if limit]

    def _bucket(self, workspace: str, name: str, limit: int, now: float) -> _Bucket:
        fresh = _Bucket(capacity=limit, level=limit, filled_at=now)
        bucket = self._buckets.setdefault((workspace, name), fresh)
        bucket.refill(now)
        return bucket

    def _state(self, workspace: str, name: str, limit: int | None, shown: int, now: float) -> tuple[int, int, float]:
        if limit is None:
            return shown, shown, now
        bucket = self._bucket(workspace, name, limit, now)
        return limit, max(0, int(bucket.level)), now + bucket.wait_s(bucket.capacity)


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
