"""The stream: order of events, deltas, escapes and usage."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.unit.simulator.client import call, joined, post, request, sim, stream, text, user

if TYPE_CHECKING:
    from nexofork.simulator import Simulator

TURN = {
    "thinking": "Überlegung über das Wörtchen",
    "text": "Ergebnis: 😀 fertig, und noch ein Satz dazu.",
    "tools": [{"name": "Bash", "input": {"z": "naïve 😀 emoji", "a": [1, 2, {"k": "ключ"}]}}],
}


async def test_events_come_in_the_documented_order(provider: Simulator) -> None:
    """Start, blocks one after the other, delta, stop; pings in between."""
    events = await stream(provider, request(sim(TURN)))

    kinds = [event["type"] for event in events if event["type"] not in {"ping", "content_block_delta"}]
    assert kinds == [
        "message_start",
        *["content_block_start", "content_block_stop"] * 3,
        "message_delta",
        "message_stop",
    ]
    assert "ping" in [event["type"] for event in events]


@pytest.mark.parametrize("escape", [False, True])
async def test_deltas_join_to_the_reply(provider: Simulator, escape: bool) -> None:
    """Whatever the splits and escapes, text, thinking and input arrive whole, keys in order."""
    events = await stream(provider, request(sim({**TURN, "escape": escape})))

    thinking, said, tool_input = joined(events)
    assert (thinking, said) == (TURN["thinking"], TURN["text"])
    assert list(json.loads(tool_input)) == ["z", "a"]
    assert json.loads(tool_input)["z"] == "naïve 😀 emoji"


async def test_everything_comes_in_several_deltas(provider: Simulator) -> None:
    """No block of some length arrives in one piece."""
    events = await stream(provider, request(sim(TURN)))

    for index in range(3):
        assert sum(event["type"] == "content_block_delta" and event["index"] == index for event in events) >= 3


async def test_the_number_of_deltas_can_be_set(provider: Simulator) -> None:
    """Exactly so many pieces."""
    events = await stream(provider, request(sim({"text": "x" * 100, "deltas": 17})))

    assert sum(event["type"] == "content_block_delta" for event in events) == 17


async def test_raw_utf8_or_escapes_on_the_wire(provider: Simulator) -> None:
    """By default the bytes are UTF-8, with the flag they are ASCII."""
    bodies = []
    for escape in (False, True):
        async with call(provider, request(sim({**TURN, "escape": escape}), stream=True)) as under_way:
            bodies.append((await under_way.answer()).body)

    assert "über".encode() in bodies[0]
    assert bodies[1].isascii()


async def test_an_escaped_surrogate_pair_is_split_over_two_deltas(provider: Simulator) -> None:
    """The halves of an emoji in tool input arrive in different events."""
    events = await stream(provider, request(sim({**TURN, "escape": True})))

    pieces = [event["delta"].get("partial_json", "") for event in events if event["type"] == "content_block_delta"]
    assert any(piece.endswith("\\ud83d") for piece in pieces)
    assert any(piece.startswith("\\ude00") for piece in pieces)


async def test_usage_is_on_the_first_and_cumulative_on_the_last_event(provider: Simulator) -> None:
    """Input counters at the start, output at the end, equal to the whole answer's."""
    body = request(user(text(600, ttl="5m")), sim({"text": "abc"}))

    whole = await post(provider, body)
    events = await stream(provider, body)

    assert events[0]["message"]["usage"]["cache_read_input_tokens"] == 600
    assert events[-2]["usage"]["output_tokens"] == whole.json["usage"]["output_tokens"]
    assert events[0]["message"]["id"] == provider.log[1].message_id


async def test_an_empty_reply_is_a_stream_without_blocks(provider: Simulator) -> None:
    """A turn that says nothing still starts and stops."""
    events = await stream(provider, request(sim({"stop_reason": "refusal"})))

    assert [event["type"] for event in events] == ["message_start", "ping", "message_delta", "message_stop"]
    assert events[-2]["delta"]["stop_details"]["type"] == "refusal"
