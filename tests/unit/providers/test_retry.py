from __future__ import annotations

import pytest

from nexofork.providers.failures import BadRequest, ConnectionLost, Overloaded, RateLimited
from nexofork.providers.retry import RetryPolicy

BUSY = Overloaded("Overloaded", status=529)


@pytest.mark.parametrize(("attempt", "longest_s"), [(1, 0.5), (2, 1.0), (3, 2.0)])
def test_the_wait_doubles_and_is_never_the_same_for_all(attempt: int, longest_s: float) -> None:
    """Backoff grows, and its jitter keeps a burst of forks from returning as a burst."""
    delays = {RetryPolicy().delay_s(BUSY, attempt=attempt) for _ in range(50)}

    assert len(delays) > 1
    assert all(delay is not None and 0.75 * longest_s <= delay <= longest_s for delay in delays)


def test_the_wait_has_a_ceiling() -> None:
    """However many attempts are allowed, nobody waits longer than the maximum."""
    policy = RetryPolicy(attempts=50, max_delay_s=3.0)

    delay = policy.delay_s(ConnectionLost("cut"), attempt=40)

    assert delay is not None
    assert delay <= 3.0


def test_attempts_are_bounded() -> None:
    """After the last attempt there is no wait but an end."""
    assert RetryPolicy(attempts=3).delay_s(BUSY, attempt=2) is not None
    assert RetryPolicy(attempts=3).delay_s(BUSY, attempt=3) is None


def test_what_cannot_succeed_is_not_repeated() -> None:
    """A refusal ends the call at its first attempt."""
    assert RetryPolicy().delay_s(BadRequest("no", status=400), attempt=1) is None


def test_the_wait_the_api_asks_for_is_obeyed_up_to_a_limit() -> None:
    """A `retry-after` is waited for exactly; one over the limit ends the call."""
    policy = RetryPolicy(max_retry_after_s=60)

    assert policy.delay_s(RateLimited("slow", retry_after_s=60), attempt=1) == 60
    assert policy.delay_s(RateLimited("slow", retry_after_s=61), attempt=1) is None
