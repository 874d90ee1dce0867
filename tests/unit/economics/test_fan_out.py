from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.economics.fan_out import WORTH_WAITING, FanOut, decide
from nexofork.economics.prices import price_of

SONNET = price_of("claude-sonnet-5", 20_000)


def fan_out(**changes: Any) -> FanOut:
    """A warm parent of 20,000 tokens with a tail of 300 and ten children."""
    usual: dict[str, Any] = {
        "siblings": 10,
        "shared_tokens": 20_300,
        "warm_tokens": 20_000,
        "own_tokens": 20,
        "minimum_tokens": 1024,
        "ttl": "5m",
        "price": SONNET,
        "leader_s": 1.0,
        "leader_seen": True,
        "prewarm_s": 1.0,
        "wait_limit_s": 30.0,
    }
    return FanOut(**{**usual, **changes})


def test_a_cold_prefix_is_written_by_one() -> None:
    """Ten writes of 20,300 tokens at 1.25, or one and nine reads at a tenth: in dollars, by hand."""
    decision = decide(fan_out(warm_tokens=0))

    assert decision.plan == "leader_first"
    assert decision.all_at_once == pytest.approx(10 * (20_300 * 1.25 + 20) * 2e-6)
    assert decision.leader_first == pytest.approx((20_300 * 1.25 + 20 + 9 * (20_300 * 0.1 + 20)) * 2e-6)


def test_an_hour_costs_twice_to_write() -> None:
    """The bill goes by the TTL in force."""
    decision = decide(fan_out(warm_tokens=0, ttl="1h"))

    assert decision.all_at_once == pytest.approx(10 * (20_300 * 2 + 20) * 2e-6)


def test_a_tail_that_is_small_against_a_warm_prefix_is_not_waited_for() -> None:
    """200 tokens behind 150,000 are worth 1.4% of the bill: nobody waits."""
    decision = decide(fan_out(shared_tokens=150_200, warm_tokens=150_000))

    assert decision.plan == "all_at_once"
    assert "would save" in decision.why


def test_a_small_tail_that_is_dear_to_write_is_left_unwritten() -> None:
    """An hour doubles the price of 200 tokens behind 150,000; at the plain price they are 1.2% of the bill."""
    decision = decide(fan_out(shared_tokens=150_200, warm_tokens=150_000, ttl="1h"))

    assert (decision.plan, decision.writes_tail) == ("all_at_once", False)
    assert decide(fan_out(ttl="1h")).plan == "leader_first"


def test_a_tail_that_is_dear_against_a_warm_prefix_is_waited_for() -> None:
    """300 tokens behind 20,000 are worth a seventh of the bill."""
    assert decide(fan_out()).plan == "leader_first"


def test_below_the_minimum_there_is_nothing_to_wait_for() -> None:
    """What is not cached cannot be read."""
    assert decide(fan_out(shared_tokens=1000, warm_tokens=0)).plan == "all_at_once"


def test_a_first_byte_beyond_the_limit_is_not_waited_for() -> None:
    """Everybody would go alone at the limit, later and no cheaper; but a guess is no reason to pay N writes."""
    assert decide(fan_out(warm_tokens=0, leader_s=40.0)).plan == "all_at_once"
    assert decide(fan_out(warm_tokens=0, leader_s=40.0, leader_seen=False)).plan == "leader_first"


def test_a_lone_cold_child_does_not_pay_for_an_hour() -> None:
    """Nobody shares its write: five minutes, renewed by each of its turns, cost 1.25 instead of 2."""
    assert decide(fan_out(siblings=1, warm_tokens=0, ttl="1h")).ttl == "5m"
    assert decide(fan_out(siblings=1, ttl="1h")).ttl is None
    assert decide(fan_out(siblings=2, warm_tokens=0, ttl="1h")).ttl is None
    assert decide(fan_out(siblings=None, warm_tokens=0, ttl="1h")).ttl is None


def test_a_prewarm_is_taken_where_it_is_much_sooner_and_hardly_dearer() -> None:
    """It is one read more, which many children hide; a proxy that buffers makes a leader's first byte late."""
    assert decide(fan_out(siblings=100, warm_tokens=0, leader_s=20.0, prewarm_s=2.0)).plan == "prewarm"
    assert decide(fan_out(siblings=3, warm_tokens=0, leader_s=20.0, prewarm_s=2.0)).plan == "leader_first"
    assert decide(fan_out(siblings=100, warm_tokens=0, leader_s=2.0, prewarm_s=2.0)).plan == "leader_first"
    assert decide(fan_out(siblings=100, warm_tokens=0, leader_s=20.0, prewarm_s=None)).plan == "leader_first"


def test_what_is_asked_for_is_done() -> None:
    """Except a pre-warm that the request does not allow, which says so."""
    assert decide(fan_out(), asked_for="all_at_once").plan == "all_at_once"
    assert decide(fan_out(), asked_for="prewarm").plan == "prewarm"
    refused = decide(fan_out(prewarm_s=None), asked_for="prewarm")
    assert (refused.plan, "does not allow" in refused.why) == ("leader_first", True)


def test_a_child_that_nobody_counted_may_have_siblings() -> None:
    """It leads, which costs it nothing, so that whoever comes next can wait for it."""
    assert decide(fan_out(siblings=None, warm_tokens=0)).plan == "leader_first"
    assert decide(fan_out(siblings=1, warm_tokens=0)).plan == "leader_first"


def test_an_unknown_price_is_planned_with_the_usual_proportions() -> None:
    """In plain tokens instead of dollars."""
    decision = decide(fan_out(price=None, warm_tokens=0))

    assert decision.plan == "leader_first"
    assert decision.all_at_once == pytest.approx(10 * (20_300 * 1.25 + 20))


@given(
    siblings=st.integers(1, 1000),
    shared=st.integers(0, 1_000_000),
    warm=st.floats(0, 1),
    own=st.integers(0, 100_000),
    ttl=st.sampled_from(["5m", "1h"]),
    model=st.sampled_from(["claude-sonnet-5", "claude-opus-5-5", "claude-fable-5-1", "claude-haiku-5-5"]),
)
def test_whoever_does_not_wait_pays_at_most_two_percent_more(
    siblings: int, shared: int, warm: float, own: int, ttl: str, model: str
) -> None:
    """Whatever the numbers: starting at once is chosen only where it costs next to nothing."""
    price = price_of(model, shared)
    decision = decide(
        fan_out(
            siblings=siblings,
            shared_tokens=shared,
            warm_tokens=round(warm * shared),
            own_tokens=own,
            ttl=ttl,
            price=price,
            minimum_tokens=0,
        )
    )

    assert decision.leader_first <= decision.all_at_once * (1 + 1e-9)
    if decision.plan == "all_at_once":
        warm_tokens, fresh = round(warm * shared), price.input / 1e6
        loose = siblings * (warm_tokens * price.read / 1e6 + (shared - warm_tokens + own) * fresh)
        paid = decision.all_at_once if decision.writes_tail else loose
        assert paid <= decision.leader_first * (1 + WORTH_WAITING) + 1e-12


def test_a_lone_child_is_not_told_that_waiting_saves_anything() -> None:
    """It leads at no cost to itself, and its decision says one child."""
    decision = decide(fan_out(siblings=1, warm_tokens=0))

    assert (decision.plan, decision.siblings) == ("leader_first", 1)
    assert decision.all_at_once == decision.leader_first
    assert "alone" in decision.why
