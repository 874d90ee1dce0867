from __future__ import annotations

import json
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.core.reply import EVENT_VALUES, JSON_VALUES, OversizedReply
from nexofork.core.usage import Usage
from nexofork.errors import BadJson, BadReply
from nexofork.providers.assembly import Assembly, ResponseIds
from nexofork.providers.failures import StreamFailed
from nexofork.providers.provider import BlockFinished, MessageFinished, MessageStarted, TextDelta
from tests.unit.providers.streams import event, messages, script_of

if TYPE_CHECKING:
    from nexofork.core.reply import Reply
    from nexofork.providers.provider import ProviderEvent


def assembled(events: list[bytes]) -> tuple[Reply, list[ProviderEvent]]:
    """Feed the events; return the reply and everything a watcher was told."""
    assembly = Assembly()
    seen = [found for data in events if (found := assembly.feed(data)) is not None]
    last = seen[-1]
    assert isinstance(last, MessageFinished)
    return last.reply, seen


def one_block(start: dict[str, Any], *deltas: bytes, stop_reason: str = "end_turn") -> Reply:
    """Stream one block whose deltas are given as raw JSON."""
    frames = [b'{"type":"content_block_delta","index":0,"delta":' + delta + b"}" for delta in deltas]
    return assembled(
        [
            event({"type": "message_start", "message": {"id": "msg_1", "model": "m", "usage": {}}}),
            event({"type": "content_block_start", "index": 0, "content_block": start}),
            *frames,
            event({"type": "content_block_stop", "index": 0}),
            event({"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": {"output_tokens": 1}}),
            event({"type": "message_stop"}),
        ]
    )[0]


@given(
    blocks=messages,
    cuts=st.lists(st.integers(0, 1000), max_size=6),
    ensure_ascii=st.booleans(),
    spaced=st.booleans(),
    spaced_input=st.booleans(),
)
def test_assembled_blocks_are_the_blocks_that_were_streamed(
    blocks: list[dict[str, Any]], cuts: list[int], ensure_ascii: bool, spaced: bool, spaced_input: bool
) -> None:
    """Whatever the content, its escaping and its cuts into deltas, blocks come out equal and inputs verbatim."""
    events, inputs = script_of(blocks, cuts=cuts, spaced_input=spaced_input, ensure_ascii=ensure_ascii, spaced=spaced)

    reply, _ = assembled(events)

    assert json.loads(reply.content) == blocks
    for block, sent in zip(reply.blocks, inputs, strict=True):
        assert sent.encode() in block.wire
        assert block.value == json.loads(block.wire)


@given(blocks=messages, cuts=st.lists(st.integers(0, 1000), max_size=6), ensure_ascii=st.booleans())
def test_watchers_see_the_text_the_reply_holds(
    blocks: list[dict[str, Any]], cuts: list[int], ensure_ascii: bool
) -> None:
    """The text deltas, joined, are the reply's text, and every block is announced once."""
    events, _ = script_of(blocks, cuts=cuts, ensure_ascii=ensure_ascii)

    reply, seen = assembled(events)

    assert "".join(found.text for found in seen if isinstance(found, TextDelta)) == reply.text
    assert [found.block for found in seen if isinstance(found, BlockFinished)] == list(reply.blocks)


def test_a_block_keeps_the_bytes_of_its_start_event() -> None:
    """Key order, spacing and unknown fields of the start event survive; only the filled fields change."""
    start = b'{ "text" : "", "type":"text","caller": {"b":1, "a":2} }'
    reply, _ = assembled(
        [
            b'{"type":"content_block_start","index":0,"content_block":' + start + b"}",
            b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"caf\\u00e9 \xc3\xa9"}}',
            b'{"type":"content_block_stop","index":0}',
            b'{"type":"message_stop"}',
        ]
    )

    assert reply.blocks[0].wire == b'{ "text" : "caf\\u00e9 \xc3\xa9", "type":"text","caller": {"b":1, "a":2} }'


def test_halves_of_a_surrogate_pair_meet_again() -> None:
    """A character whose escape is split over two deltas is whole on the wire and for the watcher."""
    events = [
        event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\\ud83d"}}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\\ude00b"}}',
        event({"type": "content_block_stop", "index": 0}),
        event({"type": "message_stop"}),
    ]

    reply, seen = assembled(events)

    assert reply.blocks[0].wire == b'{"type":"text","text":"a\\ud83d\\ude00b"}'
    assert [found.text for found in seen if isinstance(found, TextDelta)] == ["a", "\N{GRINNING FACE}b"]


def test_an_escaped_backslash_is_not_half_a_pair() -> None:
    """Text that only looks like an escape is shown at once."""
    assembly = Assembly()
    assembly.feed(event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}))

    shown = assembly.feed(rb'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\\ud83d"}}')

    assert shown == TextDelta(text=r"\ud83d")


def test_halves_of_a_surrogate_pair_meet_in_a_tool_input() -> None:
    """An input's character split over two deltas is one character; a lone half stays valid JSON."""
    start = {"type": "tool_use", "id": "toolu_1", "name": "Say", "input": {}}
    split = one_block(
        start,
        b'{"type":"input_json_delta","partial_json":"{\\"a\\":\\"\\ud83d"}',
        b'{"type":"input_json_delta","partial_json":"\\ude00\\"}"}',
    )
    lone = one_block(start, b'{"type":"input_json_delta","partial_json":"{\\"a\\":\\"\\ud83d\\"}"}')

    assert split.tool_uses[0].input == {"a": "\N{GRINNING FACE}"}
    assert b'{"a":"\\ud83d"}' in lone.blocks[0].wire


def test_input_keeps_key_order_and_spacing() -> None:
    """A tool's input is the model's own JSON text: the prompt cache is bound to it."""
    reply = one_block(
        {"type": "tool_use", "id": "toolu_1", "name": "Edit", "input": {}},
        b'{"type":"input_json_delta","partial_json":""}',
        b'{"type":"input_json_delta","partial_json":"{\\"z\\": 1,"}',
        b'{"type":"input_json_delta","partial_json":" \\"a\\" : [ 2.50 ]}"}',
    )

    assert reply.blocks[0].wire == b'{"type":"tool_use","id":"toolu_1","name":"Edit","input":{"z": 1, "a" : [ 2.50 ]}}'


def test_no_input_at_all_is_an_empty_object() -> None:
    """A tool without arguments is called with `{}`, whether or not the start event says so."""
    named = {"type": "tool_use", "id": "toolu_1", "name": "Now"}

    assert one_block(named | {"input": {}}).tool_uses[0].input == {}
    assert one_block(named).tool_uses[0].input == {}


@pytest.mark.parametrize("partial", ['{"path": "a', '{"path": "a"', "[1]", '{"n": NaN}', '{"a":1}}'])
def test_a_tool_call_without_a_whole_input_is_reported_and_left_out(partial: str) -> None:
    """A call cut by `max_tokens` is not among the blocks; the reply names it and says how far it came."""
    delta = json.dumps({"type": "input_json_delta", "partial_json": partial}).encode()
    start = {"type": "tool_use", "id": "toolu_9", "name": "Write", "input": {}}

    reply = one_block(start, delta, stop_reason="max_tokens")

    assert reply.content == b"[]"
    assert reply.truncated_tool_use is not None
    cut = reply.truncated_tool_use
    assert (cut.id, cut.name, cut.partial_input) == ("toolu_9", "Write", partial)


def test_a_complete_reply_says_nothing_of_truncation() -> None:
    """Only a cut call is reported as one."""
    reply = one_block({"type": "tool_use", "id": "t", "name": "Now", "input": {}})

    assert reply.truncated_tool_use is None


def test_citations_are_appended_to_those_already_there() -> None:
    """Citations come one by one and end up in one array, also where the start event had none or null."""
    citation = b'{"type":"citations_delta","citation":{"b":1, "a":2}}'

    for before, after in (
        ([], b'[{"b":1, "a":2}]'),
        (None, b'[{"b":1, "a":2}]'),
        ([{"c": 3}], b'[{"c":3},{"b":1, "a":2}]'),
    ):
        reply = one_block({"type": "text", "text": "", "citations": before}, citation)
        assert b'"citations":' + after in reply.blocks[0].wire


def test_a_delta_of_unusual_shape_is_read_the_long_way() -> None:
    """Extra fields and another key order change nothing."""
    reply = one_block(
        {"type": "thinking", "thinking": "", "signature": ""},
        b'{"thinking":"hm\\n","estimated_tokens":null,"type":"thinking_delta"}',
        b'{"signature":"c2ln","type":"signature_delta"}',
        b'{"type":"delta_of_tomorrow","x":1}',
    )

    assert reply.blocks[0].wire == b'{"type":"thinking","thinking":"hm\\n","signature":"c2ln"}'


def test_a_compaction_arrives_whole() -> None:
    """A compaction block takes its content from the one delta that brings it."""
    reply = one_block(
        {"type": "compaction", "content": None}, b'{"type":"compaction_delta","content":"sum","encrypted_content":"e"}'
    )

    assert reply.blocks[0].wire == b'{"type":"compaction","content":"sum","encrypted_content":"e"}'


def test_usage_is_the_start_merged_with_the_end() -> None:
    """What message_delta leaves out stays as message_start had it."""
    cached = {"input_tokens": 3, "cache_read_input_tokens": 900, "cache_creation": {"ephemeral_1h_input_tokens": 40}}
    reply, seen = assembled(
        [
            event({"type": "message_start", "message": {"id": "msg_7", "model": "claude", "usage": cached}}),
            event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 21}}),
            event({"type": "message_stop"}),
        ]
    )

    assert isinstance(seen[0], MessageStarted)
    assert (seen[0].message_id, seen[0].model, seen[0].usage.cache_read_tokens) == ("msg_7", "claude", 900)
    assert reply.usage == Usage(input_tokens=3, cache_read_tokens=900, cache_write_1h_tokens=40, output_tokens=21)
    assert (reply.stop_reason, reply.message_id, reply.model) == ("end_turn", "msg_7", "claude")


def test_the_start_carries_the_response_ids_and_diagnostics() -> None:
    """Whoever watches for cache misses learns workspace and diagnosis from the first event."""
    assembly = Assembly(ResponseIds(request_id="req_1", workspace_id="wrkspc_1", organization_id="org_1"))
    diagnosis = {"cache_miss_reason": {"type": "tools_changed"}}

    started = assembly.feed(event({"type": "message_start", "message": {"id": "msg_1", "diagnostics": diagnosis}}))

    assert isinstance(started, MessageStarted)
    assert (started.request_id, started.workspace_id, started.organization_id) == ("req_1", "wrkspc_1", "org_1")
    assert started.diagnostics == diagnosis


def test_a_message_without_its_last_event_is_whole() -> None:
    """When only message_stop is missing, nothing that was paid for is thrown away; before that, there is no reply."""
    events, _ = script_of([{"type": "text", "text": "hello"}], cuts=[])
    assembly = Assembly()
    replies = [(assembly.feed(data), assembly.reply)[1] for data in events[:-1]]

    assert replies[-2] is None
    assert replies[-1] is not None
    assert replies[-1].text == "hello"


def test_unknown_events_and_orphans_are_ignored() -> None:
    """A newer API's events, and deltas of blocks that never began, do not disturb the message."""
    reply, _ = assembled(
        [
            event({"type": "event_of_tomorrow"}),
            b"[1]",
            event({"type": "content_block_delta", "index": 8, "delta": {"type": "text_delta", "text": "lost"}}),
            event({"type": "content_block_stop", "index": 8}),
            event({"type": "message_stop"}),
        ]
    )

    assert reply.blocks == ()


def test_an_error_event_raises_the_named_failure() -> None:
    """An overload in mid-stream is a retryable failure with the API's words."""
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}

    with pytest.raises(StreamFailed, match="overloaded_error: Overloaded") as failure:
        Assembly().feed(event(overloaded))

    assert failure.value.retryable


def test_garbage_is_refused() -> None:
    """Data that is not JSON, or a string that is broken, is an error and not a silent loss."""
    assembly = Assembly()
    with pytest.raises(BadJson):
        assembly.feed(b'{"type":')
    assembly.feed(event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}))
    with pytest.raises(BadJson):
        assembly.feed(b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\\q"}}')


def test_a_hundred_thousand_deltas_take_linear_time() -> None:
    """Twice the deltas take about twice the time, for text and for tool inputs."""

    def seconds(count: int) -> float:
        assembly = Assembly()
        tool = {"type": "tool_use", "id": "t", "name": "n", "input": {}}
        assembly.feed(event({"type": "content_block_start", "index": 0, "content_block": tool}))
        assembly.feed(
            b'{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\\"a\\":\\""}}'
        )
        started = time.process_time()
        for _ in range(count):
            assembly.feed(
                b'{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"ab"}}'
            )
        assembly.feed(
            b'{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"\\"}"}}'
        )
        finished = assembly.feed(event({"type": "content_block_stop", "index": 0}))
        assert isinstance(finished, BlockFinished)
        assert len(finished.block.wire) > 2 * count
        return time.process_time() - started

    assert seconds(100_000) < 10 * seconds(25_000)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-32-le", "utf-8-sig"])
def test_an_event_is_read_as_utf_8_alone(encoding: str) -> None:
    """Another encoding hides its brackets from the limits: here two of its bytes look like the quote of a string."""
    wide = '{"type":"ping","quote":"\u0122","x":[' + "{}," * JSON_VALUES + "1]}"

    with pytest.raises((BadJson, OversizedReply)):
        Assembly().feed(wide.encode(encoding))


@pytest.mark.parametrize("kind", ["ping", "content_block_delta", "content_block_start"])
def test_all_events_of_an_answer_share_one_limit(kind: str) -> None:
    """Many events that are each just small enough are too large together, before they cost minutes to read."""
    wide = b'{"type":"%s","index":0,"x":[%s1]}' % (kind.encode(), b"1," * (JSON_VALUES - 100))
    assembly = Assembly()
    for _ in range(EVENT_VALUES // JSON_VALUES):
        assembly.feed(wide)

    with pytest.raises(OversizedReply, match="events with a number of JSON values"):
        assembly.feed(wide)


def test_an_open_block_takes_the_memory_of_its_bytes() -> None:
    """A block that never ends is not kept parsed, which takes many times as much."""
    start = (
        b'{"type":"content_block_start","index":%d,"content_block":{"type":"x","y":[' + b'{"a":[]},' * 20_000 + b"1]}}"
    )
    assembly = Assembly()
    tracemalloc.start()
    try:
        for index in range(5):
            assembly.feed(start % index)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept < 2 * 5 * len(start)


def test_ids_hold_only_what_can_be_printed() -> None:
    """A message's id, model and stop reason go to ledgers, logs and terminals."""
    odd = "m\x1b]52;c;eA==\x07\ud800\u202e1"
    reply, _ = assembled(
        [
            event({"type": "message_start", "message": {"id": odd, "model": odd, "usage": {}}}, ensure_ascii=True),
            event({"type": "message_delta", "delta": {"stop_reason": odd}}, ensure_ascii=True),
            event({"type": "message_stop"}),
        ]
    )

    assert {reply.message_id, reply.model, reply.stop_reason} == {"m]52;c;eA==1"}


@pytest.mark.parametrize("id_", ["t\ud800", "t\x1b[1m", "t" * 257])
def test_a_tool_call_with_an_impossible_id_is_refused(id_: str) -> None:
    """It is sent back as it came, and would fit no message on its way."""
    call = {"type": "tool_use", "id": id_, "name": "Bash", "input": {}}
    assembly = Assembly()
    assembly.feed(event({"type": "content_block_start", "index": 0, "content_block": call}, ensure_ascii=True))

    with pytest.raises(BadReply):
        assembly.feed(event({"type": "content_block_stop", "index": 0}))
