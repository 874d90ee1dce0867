"""What the ledger adds up to, against figures worked out by hand, and that its rows always add up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.core.usage import Usage
from nexofork.economics.ledger import BY, By, Sums, distinct, price_calls, sum_by, total
from nexofork.wire.ledger import BookedCall

MODEL = "claude-opus-4-8"  # 5 dollars in, 0.50 read, 25 out
WARM = 100_000
SHARED = 102_000
T0 = 1_790_000_000.0


def call(run: str, billed: tuple[int, int, int, int, int] | None, **more: Any) -> BookedCall:
    """A booked call: fresh, read, written for five minutes, written for an hour, output."""
    return BookedCall(**{"at": T0, "run_id": run, "model": MODEL, "prefix": "p", "billed": billed, **more})


def row(*calls: BookedCall) -> Sums:
    """The sum of all of them."""
    return total(price_calls(calls))


def test_a_call_costs_what_it_was_billed_for() -> None:
    """Each kind of token at its own price, and the whole prompt at the plain one without sharing."""
    sums = row(call("a", (1_000, 100_000, 10_000, 0, 2_000)), call("b", (0, 0, 0, 4_000, 0), prefix="q"))

    billed = (1_000 * 5 + 100_000 * 0.5 + 10_000 * 6.25 + 2_000 * 25 + 4_000 * 10) / 1e6
    unshared = ((111_000 + 4_000) * 5 + 2_000 * 25) / 1e6
    assert sums.money.billed == pytest.approx(billed)
    assert sums.money.unshared == pytest.approx(unshared)
    assert sums.saved == pytest.approx(1 - billed / unshared)
    assert sums.usage == Usage(
        input_tokens=1_000,
        cache_read_tokens=100_000,
        cache_write_5m_tokens=10_000,
        cache_write_1h_tokens=4_000,
        output_tokens=2_000,
    )


def test_the_least_is_one_write_and_reads() -> None:
    """Three children that all wrote the same tail: the least is that one of them does."""
    calls = [call(run, (50, WARM, 2_000, 0, 10), warm_tokens=WARM) for run in "abc"]

    sums = row(*calls)

    assert sums.ideal_usage == Usage(
        input_tokens=150, cache_read_tokens=WARM + 2 * SHARED, cache_write_5m_tokens=2_000, output_tokens=30
    )
    assert sums.to_ideal == pytest.approx(
        (150 * 5 + 3 * WARM * 0.5 + 6_000 * 6.25) / (150 * 5 + (WARM + 2 * SHARED) * 0.5 + 2_000 * 6.25)
    )


def test_a_fan_out_that_did_it_right_is_at_the_least() -> None:
    """One wrote for an hour and the others read, whatever their clocks say and whatever was thought to be warm."""
    leader = call("a", (50, 0, 0, SHARED, 10), at=T0 + 90, ttl="1h")
    followers = [call(run, (50, SHARED, 0, 0, 10), ttl="1h", warm_tokens=SHARED + 7) for run in "bc"]

    assert row(leader, *followers).to_ideal == pytest.approx(1.0)
    assert row(*followers).to_ideal == pytest.approx(1.0), "what was there before costs nobody a write"


def test_a_prefix_that_one_call_uses_need_not_be_written() -> None:
    """A single cold child pays the write's surcharge; one with a second turn has its use of it."""
    alone = call("a", (0, 0, 10_000, 0, 0))

    assert row(alone).to_ideal == pytest.approx(1.25)
    assert row(alone, call("a", (0, 10_000, 500, 0, 0), turn=2)).to_ideal == pytest.approx(1.0)


def test_a_prefix_is_written_again_when_it_has_expired() -> None:
    """More than its TTL after the last call the entry is gone, and writing it again is no waste."""
    first = [call(run, (0, 0 if run == "a" else SHARED, SHARED if run == "a" else 0, 0, 0)) for run in "ab"]
    later = [one.model_copy(update={"run_id": one.run_id * 2, "at": T0 + 301}) for one in first]
    soon = [one.model_copy(update={"at": T0 + 299}) for one in later]

    assert row(*first, *later).to_ideal == pytest.approx(1.0)
    assert row(*first, *soon).ideal_usage.cache_write_tokens == SHARED


def test_a_later_turn_reads_what_the_one_before_left() -> None:
    """A second turn that wrote everything anew could have read it."""
    first = call("a", (100, SHARED, 0, 0, 0))
    second = call("a", (0, 0, SHARED + 600, 0, 0), turn=2, epoch=2, at=T0 + 60)

    assert row(first, second).ideal_usage == Usage(
        input_tokens=100, cache_read_tokens=2 * SHARED, cache_write_5m_tokens=600
    )
    expired = second.model_copy(update={"at": T0 + 400})
    assert row(first, expired).ideal_usage.cache_write_5m_tokens == SHARED + 600


def test_what_was_not_needed_is_no_part_of_the_least() -> None:
    """Pre-warms, lost calls and failures cost what is known of them, and the least has none of it."""
    prewarm = call("a", (10, 0, SHARED, 0, 0), turn=0)
    lost = call("b", (50, SHARED, 0, 0, 1), outcome="unconfirmed")
    blank = call("c", None, outcome="unconfirmed")
    failed = call("d", None, outcome="failed")
    good = [call(run, (50, SHARED, 0, 0, 10)) for run in "ef"]

    sums = row(prewarm, lost, blank, failed, *good)

    assert (sums.calls, sums.confirmed, sums.unconfirmed, sums.failed) == (6, 3, 2, 1)
    assert sums.ideal_usage == Usage(
        input_tokens=100, cache_read_tokens=SHARED, cache_write_5m_tokens=SHARED, output_tokens=20
    )
    assert sums.usage.cache_read_tokens == 3 * SHARED


def test_a_call_counts_once_by_the_entry_that_knows_most() -> None:
    """Confirmed before a bill that was seen, that before a refusal, and that before not having heard."""
    blank = call("a", None, outcome="unconfirmed")
    failed = call("a", None, outcome="failed")
    seen = call("a", (1, 2, 3, 0, 1), outcome="unconfirmed")
    known = call("a", (1, 2, 3, 0, 9))

    for better, worse in ((failed, blank), (seen, failed), (known, seen), (known, blank)):
        assert distinct([better, worse]) == distinct([worse, better]) == [better]
    assert len(distinct([known, call("a", None, attempt=2), call("a", None, epoch=2), call("a", None, turn=2)])) == 4


def test_a_model_without_a_price_is_counted_in_tokens() -> None:
    """Its dollars are not said, and do not hide those of others."""
    strange = call("a", (1_000, 0, 0, 0, 5), model="who-knows", prefix="q")

    assert row(strange).to_json() | {"usd": None, "unpriced": 1, "saved": None} == row(strange).to_json()
    mixed = row(strange, call("b", (1_000, 0, 0, 0, 0)))
    assert mixed.unpriced == 1
    assert mixed.money.billed == pytest.approx(0.005)
    assert row().to_json()["usd"] == 0


counts = st.integers(0, 200_000)
booked = st.builds(
    BookedCall,
    at=st.floats(T0, T0 + 200_000),
    run_id=st.sampled_from("abc"),
    epoch=st.integers(1, 2),
    turn=st.integers(0, 3),
    attempt=st.integers(1, 2),
    model=st.sampled_from([MODEL, "claude-haiku-5-5", "who-knows", ""]),
    outcome=st.sampled_from(["confirmed", "unconfirmed", "failed"]),
    billed=st.none() | st.tuples(counts, counts, counts, counts, counts),
    prefix=st.sampled_from(["", "p", "q"]),
    warm_tokens=counts,
    ttl=st.sampled_from(["5m", "1h"]),
    group=st.sampled_from([None, "g", "-"]),
    parent=st.sampled_from(["", "x"]),
    host=st.sampled_from(["", "d0", "d1"]),
)


@given(st.lists(booked, max_size=30), st.sampled_from(BY))
def test_rows_add_up_to_the_total(calls: list[BookedCall], by: By) -> None:
    """Whatever it is summed by, nothing is lost and nothing counted twice."""
    priced = price_calls(calls)
    rows, whole = sum_by(priced, by), total(priced)

    assert whole.calls == len({one.call_id for one in calls})
    for name in ("calls", "confirmed", "unconfirmed", "failed", "unpriced"):
        assert sum(getattr(one, name) for one in rows) == getattr(whole, name)
    assert sum((one.usage for one in rows), Usage()) == whole.usage
    for name in ("billed", "billed_input", "unshared", "ideal", "ideal_input"):
        assert sum(getattr(one.money, name) for one in rows) == pytest.approx(getattr(whole.money, name))
    assert len({one.key for one in rows}) == len(rows)


@given(st.lists(booked, max_size=30))
def test_the_least_has_the_same_prompts(calls: list[BookedCall]) -> None:
    """It differs in what is read, written and fresh, never in how much was asked."""
    for priced in price_calls(calls):
        if priced.call.outcome == "confirmed" and priced.call.turn:
            assert priced.ideal.prompt_tokens == priced.call.usage.prompt_tokens
        else:
            assert priced.ideal == Usage()
