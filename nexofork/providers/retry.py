"""Whether a failed call is sent again, and after how long.

The SDK obeys ``retry-after`` without a limit and does not see failures in mid-stream, so the provider turns its retries
off and asks this policy instead. Every attempt sends the same bytes, so a retry costs what a cache read costs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.providers.failures import RateLimited

if TYPE_CHECKING:
    from nexofork.errors import ProviderError

__all__ = ["RetryPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Bounded attempts with exponential backoff and jitter."""

    attempts: int = 4
    """How often the bytes are sent at most, the first time included."""
    first_delay_s: float = 0.5
    """The wait after the first failure; it doubles with each further one."""
    max_delay_s: float = 8.0
    """The longest wait of the backoff."""
    max_retry_after_s: float = 60.0
    """The longest ``retry-after`` that is waited for; a longer one ends the call."""

    def delay_s(self, error: ProviderError, *, attempt: int) -> float | None:
        """Return how long to wait after attempt number `attempt` (from 1) failed, or None to give up."""
        if not error.retryable or attempt >= self.attempts:
            return None
        if isinstance(error, RateLimited) and error.retry_after_s is not None:
            return error.retry_after_s if error.retry_after_s <= self.max_retry_after_s else None
        delay = min(self.first_delay_s * 2.0 ** (attempt - 1), self.max_delay_s)
        return delay * random.uniform(0.75, 1.0)
