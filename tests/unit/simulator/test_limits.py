"""Rate limits: who is refused, for how long, and what does not count."""

from __future__ import annotations

from nexofork.simulator import RateLimits, Simulator, SimulatorConfig
from tests.unit.simulator.client import post, request, text, user


def limited(**limits: int) -> Simulator:
    """A simulator with these limits."""
    return Simulator(SimulatorConfig(rate_limits=RateLimits(**limits)))


async def test_requests_beyond_the_limit_get_429_and_retry_after() -> None:
    """The third request of two a minute is told how long to wait, and is let in after that."""
    async with limited(requests_per_minute=2) as provider:
        await post(provider, request())
        await post(provider, request())

        refused = await post(provider, request())
        wait = int(refused.headers["retry-after"])
        provider.clock.advance(wait)
        again = await post(provider, request())

    assert (refused.status, refused.json["error"]["type"], again.status) == (429, "rate_limit_error", 200)
    assert 25 <= wait <= 30


async def test_workspaces_have_their_own_limits() -> None:
    """One workspace's requests do not slow another down."""
    async with limited(requests_per_minute=1) as provider:
        await post(provider, request(), key="sk-sim-alpha")

        assert (await post(provider, request(), key="sk-sim-beta")).status == 200


async def test_cache_reads_do_not_count_toward_input_tokens() -> None:
    """Many reads of a large prefix pass where one more write does not."""
    async with limited(input_tokens_per_minute=10_000) as provider:
        await post(provider, request(user(text(9000, "a", ttl="5m"))))

        reads = [(await post(provider, request(user(text(9000, "a", ttl="5m"))))).status for _ in range(5)]
        write = await post(provider, request(user(text(9000, "b", ttl="5m"))))

    assert reads == [200] * 5
    assert write.status == 429


async def test_a_refused_request_is_not_charged_and_writes_nothing() -> None:
    """After the wait the same request pays its write once."""
    async with limited(input_tokens_per_minute=10_000) as provider:
        await post(provider, request(user(text(9000, "a", ttl="5m"))))
        await post(provider, request(user(text(9000, "b", ttl="5m"))))
        provider.clock.advance(60)

        answer = await post(provider, request(user(text(9000, "b", ttl="5m"))))

    assert answer.usage.write_5m == 9000


async def test_headers_say_what_is_left() -> None:
    """Limit, remaining and reset for requests and tokens, on every answer."""
    async with limited(requests_per_minute=10, input_tokens_per_minute=10_000) as provider:
        answer = await post(provider, request(user(text(1000))))

    assert answer.headers["anthropic-ratelimit-requests-limit"] == "10"
    assert answer.headers["anthropic-ratelimit-requests-remaining"] == "9"
    assert answer.headers["anthropic-ratelimit-input-tokens-limit"] == "10000"
    assert 9000 <= int(answer.headers["anthropic-ratelimit-input-tokens-remaining"]) <= 9100
    for name in ("requests", "tokens", "input-tokens", "output-tokens"):
        assert answer.headers[f"anthropic-ratelimit-{name}-reset"].endswith("Z")
