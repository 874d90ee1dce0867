from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.core.usage import CALL_TOKENS, BadUsage, Usage
from tests.strategies import examples

COUNT = st.integers(0, 10**9)
USAGES = st.builds(
    Usage,
    input_tokens=COUNT,
    cache_read_tokens=COUNT,
    cache_write_5m_tokens=COUNT,
    cache_write_1h_tokens=COUNT,
    output_tokens=COUNT,
)


@examples(60)
@given(one=USAGES, other=USAGES)
def test_sum_adds_every_count(one: Usage, other: Usage) -> None:
    """Adding is count by count, and the derived sums follow."""
    total = one + other

    assert total == other + one
    assert total.prompt_tokens == one.prompt_tokens + other.prompt_tokens
    assert total.cache_write_tokens == one.cache_write_tokens + other.cache_write_tokens
    assert total.output_tokens == one.output_tokens + other.output_tokens
    assert one + Usage() == one


def test_prompt_is_fresh_read_and_written() -> None:
    """The four input counts never overlap."""
    usage = Usage(
        input_tokens=1, cache_read_tokens=20, cache_write_5m_tokens=300, cache_write_1h_tokens=4_000, output_tokens=9
    )

    assert usage.prompt_tokens == 4_321
    assert usage.cache_write_tokens == 4_300


def test_hit_ratio_is_the_share_read() -> None:
    """80,000 of 80,200 tokens are 99.75%; an empty prompt is no hit."""
    assert Usage(input_tokens=200, cache_read_tokens=80_000).hit_ratio == pytest.approx(0.9975, abs=1e-5)
    assert Usage().hit_ratio == 0


def test_writes_are_read_by_their_ttl() -> None:
    """Where the API splits them, the split counts."""
    wire = {
        "input_tokens": 1,
        "cache_read_input_tokens": 2,
        "cache_creation_input_tokens": 7,
        "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4},
        "output_tokens": 5,
        "service_tier": "standard",
    }

    assert Usage.from_wire(wire) == Usage(
        input_tokens=1, cache_read_tokens=2, cache_write_5m_tokens=3, cache_write_1h_tokens=4, output_tokens=5
    )


def test_unsplit_writes_are_the_default_ttl() -> None:
    """A server that does not split by TTL means five minutes."""
    assert Usage.from_wire({"cache_creation_input_tokens": 7}) == Usage(cache_write_5m_tokens=7)


@examples(60)
@given(start=USAGES, output=COUNT)
def test_delta_repeats_only_what_changed(start: Usage, output: int) -> None:
    """What `message_delta` leaves out is what `message_start` said."""
    later = Usage.from_wire({"output_tokens": output}, base=start)

    assert later.output_tokens == output
    assert (later.input_tokens, later.cache_read_tokens) == (start.input_tokens, start.cache_read_tokens)
    assert later.cache_write_5m_tokens == start.cache_write_5m_tokens
    assert later.cache_write_1h_tokens == start.cache_write_1h_tokens


@examples(60)
@given(start=USAGES, written=COUNT)
def test_no_count_is_ever_negative(start: Usage, written: int) -> None:
    """A delta with fewer writes than the start said cannot make a negative bill."""
    later = Usage.from_wire({"cache_creation_input_tokens": written}, base=start)

    assert later.cache_write_tokens == written
    assert min(later.cache_write_5m_tokens, later.cache_write_1h_tokens) >= 0


@pytest.mark.parametrize("value", [None, "7", 1.5, [], {}])
def test_count_of_a_wrong_type_is_taken_as_missing(value: Any) -> None:
    """A strange server does not break a run."""
    assert Usage.from_wire({"input_tokens": value, "cache_creation": value}) == Usage()


@examples(60)
@given(usage=USAGES)
def test_wire_form_keeps_every_count(usage: Usage) -> None:
    """Under the API's names everything survives, the split by TTL and its sum included."""
    wire = usage.to_wire()

    assert Usage.from_wire(wire) == usage
    assert wire["cache_creation_input_tokens"] == usage.cache_write_tokens


def test_a_count_that_no_call_can_have_is_as_good_as_none() -> None:
    """Arithmetic goes on with what is left."""
    assert Usage.from_wire({"input_tokens": 10**400, "output_tokens": 7}) == Usage(output_tokens=7)


@pytest.mark.parametrize(
    "value", [-1, 1.0, 1.5, True, False, "7", [], {}, CALL_TOKENS + 1, 10**30, -(10**400)], ids=repr
)
@pytest.mark.parametrize(
    "name", ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens"]
)
def test_a_bill_with_an_impossible_count_is_refused(name: str, value: Any) -> None:
    """By the name of the count; what other daemons wrote is read without it."""
    with pytest.raises(BadUsage, match=name):
        Usage.billed({"input_tokens": 1, "output_tokens": 1, name: value})
    assert min(Usage.from_wire({name: -1}).to_wire()[key] for key in (name, "output_tokens")) == 0


@pytest.mark.parametrize(
    "usage",
    [
        7,
        "x",
        [],
        {"cache_creation": 7},
        {"cache_creation": {"ephemeral_5m_input_tokens": -1}},
        {"cache_creation": {"ephemeral_1h_input_tokens": 0.5}},
        {"input_tokens": CALL_TOKENS, "cache_read_input_tokens": 1},
    ],
    ids=str,
)
def test_a_bill_that_is_no_bill_is_refused(usage: object) -> None:
    """Also where each count alone would do."""
    with pytest.raises(BadUsage):
        Usage.billed(usage)


@pytest.mark.parametrize(
    "usage", [None, {}, {"input_tokens": None, "cache_creation": None, "service_tier": "x"}], ids=str
)
def test_a_bill_may_leave_counts_out(usage: object) -> None:
    """They are what was known before."""
    assert Usage.billed(usage, base=Usage(output_tokens=3)) == Usage(output_tokens=3)
