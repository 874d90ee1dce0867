"""The judge of the cost tables, on logs made by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.ideal import Billed, judge

MODEL = "claude-sonnet-5"
SHARED = 2_000
OWN = 10
MARK = {"type": "ephemeral"}


def block(word: str, tokens: int, **more: Any) -> dict[str, Any]:
    """A text block of so many tokens that begins with a word."""
    frame = len('{"type":"text","text":""}')
    return {"type": "text", "text": word.ljust(4 * tokens - frame, "."), **more}


def request(*blocks: dict[str, Any], at: float = 0.0, **counts: Any) -> Billed:
    """A request of one user message; what is no count is a field of the body."""
    fields: dict[str, Any] = {
        name: counts.pop(name) for name in ("max_tokens", "tools", "cache_control") if name in counts
    }
    messages = [{"role": "user", "content": list(blocks)}]
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 100, "messages": messages, **fields}
    return Billed(body=json.dumps(body).encode(), received_at=at, **counts)


def child(name: str, **counts: Any) -> Billed:
    """A request with the shared block and one of its own."""
    return request(block("shared", SHARED), block(name, OWN), **counts)


def fan_out(count: int, *, writers: int) -> list[Billed]:
    """Children of which the first few write the shared block, and the others read it."""
    return [
        child(f"c{number}", write_5m=SHARED, fresh=OWN)
        if number < writers
        else child(f"c{number}", read=SHARED, fresh=OWN)
        for number in range(count)
    ]


@pytest.mark.parametrize("count", [2, 3, 20])
def test_one_write_and_reads_are_ideal(count: int) -> None:
    """A cold fan-out whose first child writes costs exactly the least."""
    verdict = judge(fan_out(count, writers=1), ttl="5m")

    assert verdict.billed == pytest.approx(1.25 * SHARED + (count - 1) * 0.1 * SHARED + count * OWN)
    assert verdict.ratio == pytest.approx(1)
    assert verdict.writes == 1


def test_every_write_more_is_seen() -> None:
    """Three writers of five pay two writes in place of two reads."""
    verdict = judge(fan_out(5, writers=3), ttl="5m")

    assert verdict.writes == 3
    assert verdict.billed - verdict.ideal == pytest.approx(2 * (1.25 - 0.1) * SHARED)


def test_an_hour_is_priced_as_an_hour() -> None:
    """The least is written at the price of the TTL in force."""
    requests = [child("a", write_1h=SHARED, fresh=OWN), child("b", read=SHARED, fresh=OWN)]

    assert judge(requests, ttl="1h").ratio == pytest.approx(1)
    assert judge(requests, ttl="5m").billed - judge(requests, ttl="5m").ideal == pytest.approx(0.75 * SHARED)


def test_a_lone_cold_child_is_all_fresh_at_the_least() -> None:
    """A write that nobody reads is a quarter more than the least."""
    verdict = judge([child("a", write_5m=SHARED, fresh=OWN)], ttl="5m")

    assert verdict.ideal == SHARED + OWN
    assert verdict.ratio == pytest.approx(1.25, abs=0.01)


def test_what_the_parent_wrote_is_read_while_it_lives() -> None:
    """A warm parent's prefix is never written at the least; an expired one is."""
    parent = request(block("shared", SHARED, cache_control=MARK), write_5m=SHARED)
    soon = [child("a", at=299, read=SHARED, fresh=OWN), child("b", at=299, read=SHARED, fresh=OWN)]
    late = [child("a", at=301, write_5m=SHARED, fresh=OWN), child("b", at=301, read=SHARED, fresh=OWN)]

    assert judge(soon, ttl="5m", before=[parent]).ratio == pytest.approx(1)
    assert judge(late, ttl="5m", before=[parent]).ratio == pytest.approx(1)
    assert judge(soon, ttl="5m", before=[parent]).ideal < judge(late, ttl="5m", before=[parent]).ideal


def test_automatic_caching_marks_the_last_block() -> None:
    """A parent that leaves the marking to the provider has its whole request cached."""
    parent = request(block("shared", SHARED), cache_control=MARK, write_5m=SHARED)
    requests = [child("a", read=SHARED, fresh=OWN), child("b", read=SHARED, fresh=OWN)]

    assert judge(requests, ttl="5m", before=[parent]).ratio == pytest.approx(1)


def test_a_parent_that_marked_nothing_left_nothing() -> None:
    """Without a marker nothing is written, so there is nothing to read."""
    parent = request(block("shared", SHARED), fresh=SHARED)
    requests = [child("a", write_5m=SHARED, fresh=OWN), child("b", read=SHARED, fresh=OWN)]

    assert judge(requests, ttl="5m", before=[parent]).ratio == pytest.approx(1)


def test_a_tail_behind_the_parent_is_written_once() -> None:
    """The children share more than the parent wrote: the first writes the rest, and the others read all of it."""
    parent = request(block("shared", SHARED, cache_control=MARK), write_5m=SHARED)
    tail, more = block("tail", 100), {"fresh": OWN}
    first = request(block("shared", SHARED), tail, block("a", OWN), read=SHARED, write_5m=100, **more)
    second = request(block("shared", SHARED), tail, block("b", OWN), read=SHARED + 100, **more)
    careless = request(block("shared", SHARED), tail, block("b", OWN), read=SHARED, write_5m=100, **more)

    assert judge([first, second], ttl="5m", before=[parent]).ratio == pytest.approx(1)
    assert judge([first, careless], ttl="5m", before=[parent]).ratio > 1


def test_a_second_turn_reads_the_whole_first() -> None:
    """At the least a child's own words are written once and read at its next turn."""
    said, own = block("shared", SHARED), block("a", OWN)
    turns = [
        request(said, own, write_5m=SHARED + OWN),
        request(said, own, block("more", 50), read=SHARED + OWN, fresh=50),
    ]

    assert judge(turns, ttl="5m").ratio == pytest.approx(1)


def test_retries_and_pre_warms_are_on_the_bill_alone() -> None:
    """A request that was sent again, or asked for no answer, is never part of the least."""
    plain = judge(fan_out(3, writers=1), ttl="5m")
    again = judge([*fan_out(3, writers=1), child("c1", read=SHARED, fresh=OWN)], ttl="5m")
    prewarm = request(block("shared", SHARED), max_tokens=0, write_5m=SHARED)
    warmed = judge([prewarm, *fan_out(3, writers=0)], ttl="5m")

    assert again.ideal == warmed.ideal == plain.ideal
    assert again.billed == pytest.approx(plain.billed + 0.1 * SHARED + OWN)
    assert warmed.billed == pytest.approx(plain.billed + 0.1 * SHARED)


def test_below_the_minimum_nothing_is_shared() -> None:
    """A prefix too short to be cached is fresh for everybody."""
    short = [request(block("s", 500), block(name, OWN), fresh=500 + OWN) for name in "abc"]

    assert judge(short, ttl="5m").ratio == pytest.approx(1)


def test_another_order_or_parameter_is_another_prefix() -> None:
    """Requests share only what stands before their first difference, tools first."""
    tools = [{"name": "a", "input_schema": {}}], [{"name": "b", "input_schema": {}}]
    size = 8
    requests = [child(str(number), tools=tool, fresh=SHARED + OWN + size) for number, tool in enumerate(tools)]

    assert judge(requests, ttl="5m").ratio == pytest.approx(1)


def test_a_log_that_counts_otherwise_is_refused() -> None:
    """The judge counts tokens itself and does not take the log's word."""
    with pytest.raises(AssertionError, match="the log counts 5 tokens"):
        judge([child("a", fresh=5)], ttl="5m")
