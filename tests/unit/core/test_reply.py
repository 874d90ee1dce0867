from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.core.reply import Reply, ReplyBlock, ToolUse
from nexofork.core.usage import Usage
from nexofork.errors import BadReply
from tests.strategies import Obj, examples, json_values, render, replies

RESPONSE = (
    b'{"id":"msg_1", "type":"message","role":"assistant","model":"claude-opus-5","content":[ {"signature":"c2ln",'
    b'"thinking":"hm \\u00e9","type":"thinking"} ,\n'
    b'{"input":{"b":1, "a":[ ]},"name":"Bash","id":"toolu_1","type":"tool_use"},'
    b'{"type":"text","text":"a"},{"type":"text","text":"\\ud83d"}],"stop_reason":"tool_use","stop_sequence":null,'
    b'"usage":{"input_tokens":3,"output_tokens":4}}'
)


def test_response_keeps_the_exact_bytes_of_every_block() -> None:
    """Key order, spaces and escapes of a block are what is sent again; what stands between blocks is not."""
    reply = Reply.from_response(RESPONSE)

    assert [block.wire for block in reply.blocks] == [
        b'{"signature":"c2ln","thinking":"hm \\u00e9","type":"thinking"}',
        b'{"input":{"b":1, "a":[ ]},"name":"Bash","id":"toolu_1","type":"tool_use"}',
        b'{"type":"text","text":"a"}',
        b'{"type":"text","text":"\\ud83d"}',
    ]
    assert reply.content == b"[" + b",".join(block.wire for block in reply.blocks) + b"]"


def test_response_is_read_for_looking() -> None:
    """Ids, reason, usage, text and calls are there beside the bytes."""
    reply = Reply.from_response(RESPONSE)

    assert (reply.message_id, reply.model, reply.stop_reason) == ("msg_1", "claude-opus-5", "tool_use")
    assert reply.usage == Usage(input_tokens=3, output_tokens=4)
    assert reply.text == "a\ud83d"
    assert reply.tool_uses == (ToolUse(id="toolu_1", name="Bash", input={"b": 1, "a": []}),)
    assert [block.kind for block in reply.blocks] == ["thinking", "tool_use", "text", "text"]


@examples(100)
@given(extras=st.lists(st.tuples(st.text(max_size=3), json_values()), max_size=3), seed=st.integers(0, 2**32))
def test_content_array_keeps_arbitrary_blocks(extras: list[tuple[str, Any]], seed: int) -> None:
    """Blocks of kinds nobody has heard of, spelt anyhow, go through byte for byte."""
    rng = Random(seed)
    blocks = [render(Obj([*extras, ("type", kind)]), rng) for kind in ("text", "news")]

    reply = Reply.from_response(b"\n[" + b" ,\t".join(blocks) + b"] ")

    assert [block.wire for block in reply.blocks] == blocks


@examples(60)
@given(reply=replies())
def test_reply_can_be_read_again_from_its_own_content(reply: Reply) -> None:
    """Bytes, text and dict lead to the same blocks; bytes are a fixed point."""
    assert Reply.from_response(reply.content) == reply
    values = json.loads(reply.content)
    assert [block.value for block in Reply.from_response(values).blocks] == values
    assert Reply.from_response({"content": values, "role": "assistant"}).text == reply.text
    assert Reply.from_response(reply.content.decode()) == reply


@examples(60)
@given(reply=replies(), usage=st.builds(Usage, input_tokens=st.integers(0), cache_write_1h_tokens=st.integers(0)))
def test_reply_survives_its_own_wire_form(reply: Reply, usage: Usage) -> None:
    """Recorded and read again, a reply has the same blocks, byte for byte, and the same facts about it."""
    whole = replace(reply, stop_reason="tool_use", message_id="msg_\ud800é", model=None, usage=usage)

    assert Reply.from_response(whole.to_wire()) == whole


def test_parsed_reply_keeps_its_key_order() -> None:
    """A dict is written as it is ordered, compact and not escaped."""
    block = {"type": "tool_use", "name": "é", "id": "t", "input": {"b": 1, "a": 2}}

    assert Reply.from_response([block]).content == (
        '[{"type":"tool_use","name":"é","id":"t","input":{"b":1,"a":2}}]'.encode()
    )


def test_duplicate_content_the_last_one_counts() -> None:
    """As every JSON reader takes it."""
    reply = Reply.from_response(b'{"content":[],"content":[{"type":"text","text":"x"}]}')

    assert reply.text == "x"


def test_half_a_pair_in_a_parsed_reply_stays_an_escape() -> None:
    """A reply that came parsed with half a pair can still be sent."""
    assert Reply.from_response([{"type": "text", "text": "\ud800"}]).content == b'[{"type":"text","text":"\\ud800"}]'


def test_block_read_alone_is_stripped_of_space_around_it() -> None:
    """A block's bytes begin and end with its braces, so that a marker can be put inside."""
    assert ReplyBlock.from_wire(b' {"type":"text","text":" "}\n').wire == b'{"type":"text","text":" "}'


DEEP: list[Any] = []
for _ in range(5_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (b"", "truncated"),
        (b'{"content":[{"type":"te', "truncated"),
        (b"[] x", "has something behind its JSON at byte 2"),
        (b'"x"', "is neither an API response nor a content array"),
        (b"1", "is neither an API response nor a content array"),
        (b"{}", "has no `content` array"),
        (b'{"content":"x"}', "has no `content` array"),
        (b'{"content":null}', "has no `content` array"),
        (b'{"content":[],"role":"user"}', "has the role 'user'"),
        (b"[1]", "has a content block without a `type`"),
        (b'[{"text":"x"}]', "has a content block without a `type`"),
        (b'[{"type":1}]', "has a content block without a `type`"),
        (b'[{"type":"text","x":NaN}]', "holds NaN, which is not JSON"),
        (b"[\xff]", "is not UTF-8"),
        (b"[" * 100_000, "is nested too deeply to read"),
        ([{"type": "text", "x": float("nan")}], "holds NaN, which is not JSON"),
        ([object()], "cannot be serialised"),
        ({"content": [{"type": "text", "text": b"bytes"}]}, "cannot be serialised"),
        (DEEP, "cannot be serialised"),
    ],
)
def test_unusable_reply_is_refused_with_the_problem(response: Any, said: str) -> None:
    """Each kind of bad input is one named error with its own words and what to do."""
    with pytest.raises(BadReply) as caught:
        Reply.from_response(response)

    assert said in caught.value.problem
    assert str(caught.value).endswith("as it was received.") or said == "has the role 'user'"


def test_truncation_at_every_byte_is_a_bad_reply() -> None:
    """However the response was cut short, the one exception is the named one."""
    for end in range(len(RESPONSE)):
        with pytest.raises(BadReply):
            Reply.from_response(RESPONSE[:end])


@pytest.mark.parametrize(
    "wire", [b"", b"{", b"[]", b'{"type":null}', b'{"type":"text","x":NaN}', b"\xff", b'{"type":' + b"[" * 100_000]
)
def test_unusable_block_is_refused(wire: bytes) -> None:
    """A block that was assembled wrongly never gets into a request."""
    with pytest.raises(BadReply, match="has a content block"):
        ReplyBlock.from_wire(wire)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "tool_use", "name": "x", "input": {}},
        {"type": "tool_use", "id": "", "name": "x", "input": {}},
        {"type": "tool_use", "id": 1, "name": "x", "input": {}},
        {"type": "tool_use", "id": "t", "input": {}},
        {"type": "tool_use", "id": "t", "name": "x"},
        {"type": "tool_use", "id": "t", "name": "x", "input": "{}"},
    ],
)
def test_malformed_call_is_refused_when_it_is_looked_at(block: dict[str, Any]) -> None:
    """A call without id, name or arguments cannot be answered."""
    with pytest.raises(BadReply, match="tool_use without id, name or input object"):
        _ = Reply.from_response([block]).tool_uses


@pytest.mark.parametrize("usage", [None, [], "x", {"input_tokens": None}])
def test_odd_metadata_does_not_spoil_a_reply(usage: Any) -> None:
    """Only the content has to be right."""
    reply = Reply.from_response({"content": [], "usage": usage, "id": 7, "stop_reason": None})

    assert (reply.usage, reply.message_id, reply.stop_reason) == (Usage(), None, None)


def test_usage_with_a_very_long_integer_is_no_crash() -> None:
    """A count that Python would not convert is taken as missing."""
    assert Reply.from_response(b'{"content":[],"usage":{"input_tokens":%s}}' % (b"9" * 5000)).usage == Usage()


def test_server_tool_calls_are_not_ours_to_answer() -> None:
    """Only client calls are listed."""
    blocks = [{"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}]

    assert Reply.from_response(blocks).tool_uses == ()
