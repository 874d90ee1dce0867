"""Calls as messages of the ledger."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.core.usage import Usage
from nexofork.errors import BadMessage
from nexofork.run.call_records import CallFacts, CallOwner, booked
from nexofork.wire.ledger import BookedCall, decode_calls, encode_calls
from nexofork.wire.messages import Daemon

DAEMON = Daemon(nkey="N", instance="i1", name="d1")
counts = st.integers(0, 10**9)
calls = st.builds(
    BookedCall,
    at=st.floats(0, 1e11),
    run_id=st.text(max_size=20),
    turn=st.integers(0, 5),
    outcome=st.sampled_from(["confirmed", "unconfirmed", "failed"]),
    billed=st.none() | st.tuples(counts, counts, counts, counts, counts),
    group=st.none() | st.text(max_size=9),
    host=st.sampled_from(["", "d1"]),
)


@given(st.lists(calls, min_size=1, max_size=6))
def test_calls_come_back_as_they_were(some: list[BookedCall]) -> None:
    """However much they have in common."""
    assert decode_calls(encode_calls(DAEMON, some, at=1.0)) == (DAEMON, some)


def test_what_a_fan_out_has_in_common_stands_there_once() -> None:
    """Another child's call costs less than a hundred bytes."""
    one = BookedCall(at=1.7e9, run_id="0" * 20, model="claude-opus-5", billed=(10, 100_000, 0, 0, 60), prefix="f" * 32)
    many = [one.model_copy(update={"run_id": f"{number:020}"}) for number in range(100)]

    assert len(encode_calls(DAEMON, many, at=1.7e9)) < 100 * 100


def test_a_call_that_cannot_be_read_leaves_the_others() -> None:
    """One bad entry costs itself alone; what is no message of the ledger is refused."""
    good = {"at": 1, "run_id": "a"}
    bad = [{"at": -1}, {"billed": [1, 2]}, {"billed": [1, 2, 3, 4, -5]}, {"outcome": "free"}, {"at": 1e300}]
    data = json.dumps({"kind": "calls", "daemon": {}, "shared": good, "calls": [{}, *bad, {"unknown": 1}]}).encode()

    assert [call.run_id for call in decode_calls(data)[1]] == ["a", "a"]
    for noise in (b"", b"[]", b"\xff", b'{"kind":"calls"}', b'{"kind":"call","daemon":{}}'):
        with pytest.raises(BadMessage):
            decode_calls(noise)


@pytest.mark.parametrize("text", ["label", "host", "unknown"])
def test_what_calls_have_in_common_is_not_repeated_without_bound(text: str) -> None:
    """One message of a megabyte would take gigabytes to read."""
    shared = {"at": 1, "run_id": "a", text: "x" * 500_000}
    data = json.dumps({"kind": "calls", "daemon": {}, "shared": shared, "calls": [{}] * 900}).encode()

    with pytest.raises(BadMessage, match="in common"):
        decode_calls(data)


def test_a_daemons_long_name_is_cut_before_it_is_repeated() -> None:
    """It stands for the host of each call."""
    message = {"kind": "calls", "daemon": {"name": "x" * 500_000}, "shared": {"at": 1, "run_id": "a"}, "calls": [{}]}

    [call] = decode_calls(json.dumps(message).encode())[1]

    assert len(call.host) == 200


def test_a_message_has_no_more_calls_than_daemons_put_into_one() -> None:
    """A megabyte of empty objects would be hundreds of thousands of calls."""
    message = {"kind": "calls", "daemon": {}, "shared": {"at": 1, "run_id": "a"}, "calls": [{}] * 100_000}

    with pytest.raises(BadMessage):
        decode_calls(json.dumps(message).encode())


def test_a_number_that_python_does_not_print_makes_no_crash() -> None:
    """Whether it stands in one call or in what all have in common."""
    huge = "9" * 5_000
    for data in (
        f'{{"kind":"calls","daemon":{{}},"shared":{{"x":{huge}}},"calls":[{{}}]}}',
        f'{{"kind":"calls","daemon":{{}},"shared":{{}},"calls":[{{"x":{huge}}}]}}',
    ):
        with suppress(BadMessage):
            assert decode_calls(data.encode())[1] == []


def test_booking_takes_whatever_a_server_or_a_parent_made_up() -> None:
    """Absurd counts, endless names and half characters are cut to size."""
    usage = Usage(input_tokens=-5, cache_read_tokens=10**30)
    facts = CallFacts(
        at=-1.0, turn=1, attempt=1, model="\ud800", outcome="confirmed", usage=usage, error="x" * 9_000, ttl="2h"
    )

    call = booked(facts, CallOwner(run_id="r", group="g" * 9_000))

    assert call.billed is not None
    assert call.billed[:2] == (0, 10**12)
    assert (call.at, call.model, len(call.error), len(call.group or ""), call.ttl) == (0.0, "?", 200, 200, "5m")
    assert decode_calls(encode_calls(DAEMON, [call], at=0.0))[1] == [call]
