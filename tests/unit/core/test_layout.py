from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from nexofork.core.layout import Section, removal_spans, scan_request
from nexofork.core.spans import Span, members_of
from nexofork.errors import BadRequestBody
from tests.strategies import examples, request_bodies
from tests.unit.core.judge import block_ttls, parse, positions, takes_marker

SAMPLE = (
    b' {"model" : "m", "max_tokens":16,"tools":[{"name":"t","input_schema":{"type":"object"}}],"temperature":-1.5e3,\n'
    b'"system":[{"type":"text","text":"caf\xc3\xa9 \\u00e9 \\ud83d\\ude00",'
    b'"cache_control":{"type":"ephemeral","ttl":"1h"}}],'
    b'"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"t",'
    b'"input":{"x":null,"y":[true,false]}}]},{"content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":'
    b'"text","text":"ok","cache_control":{"type":"ephemeral"}}]}],"role":"user"} ] ,"stream":true}'
)


def request(**fields: Any) -> bytes:
    """Return a small request with some fields replaced; `...` leaves one out."""
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}], **fields}
    return json.dumps({key: value for key, value in body.items() if value is not ...}).encode()


def refused(body: bytes) -> BadRequestBody:
    """Return the error a body is refused with."""
    with pytest.raises(BadRequestBody) as caught:
        scan_request(body)
    return caught.value


@examples(100)
@given(body=request_bodies())
def test_layout_agrees_with_a_json_reader(body: bytes) -> None:
    """Every block's span holds that block, in the provider's order, with its TTL and whether it takes a marker."""
    row = positions(parse(body))

    layout = scan_request(body)

    assert [json.loads(body[block.span.start : block.span.end]) for block in layout.blocks] == row
    assert [block.ttl for block in layout.blocks] == [
        block_ttls(block)[-1] if block_ttls(block) else None for block in row
    ]
    assert [block.insert_at is not None for block in layout.blocks] == [takes_marker(block) for block in row]


@examples(100)
@given(body=request_bodies())
def test_cut_is_the_bracket_that_closes_messages(body: bytes) -> None:
    """What is inserted at the cut becomes the last message, and nothing else changes."""
    cut = scan_request(body).cut
    extra = {"role": "user", "content": "more"}

    grown = parse(body[:cut] + b"," + json.dumps(extra).encode() + body[cut:])

    before = parse(body)
    assert grown.pop("messages") == [*before.pop("messages"), extra]
    assert grown == before


@examples(80)
@given(body=request_bodies())
def test_taking_a_blocks_markers_away_leaves_the_block(body: bytes) -> None:
    """Deleting the marker spans gives the same block without any `cache_control`, wherever it stood."""
    for block in scan_request(body).blocks:
        wire = bytearray(body[block.span.start : block.span.end])
        for span in sorted(block.markers, reverse=True):
            del wire[span.start - block.span.start : span.end - block.span.start]
        value = json.loads(wire)
        assert block_ttls(value) == []
        expected = json.loads(body[block.span.start : block.span.end])
        if isinstance(expected, dict):
            assert "cache_control" not in value or not block.markers
            assert {key: value[key] for key in value if key not in ("cache_control", "content")} == {
                key: expected[key] for key in expected if key not in ("cache_control", "content")
            }


def test_positions_come_in_cache_order_whatever_the_body_says() -> None:
    """Tools, system, messages: the order of the provider, not of the keys."""
    body = (
        b'{"messages":[{"role":"user","content":"c"}],"system":"b","tools":[{"name":"a"}],"max_tokens":1,"model":"m"}'
    )

    layout = scan_request(body)

    assert [block.section for block in layout.blocks] == [Section.TOOLS, Section.SYSTEM, Section.MESSAGES]
    assert [block.kind for block in layout.blocks] == ["tool", "string", "string"]
    assert [block.message for block in layout.blocks] == [-1, -1, 0]


def test_duplicate_messages_the_last_one_counts() -> None:
    """As every JSON reader takes it; the first is left as it is."""
    body = (
        b'{"messages":[{"role":"user","content":"old"}],"model":"m","max_tokens":1,'
        b'"messages":[{"role":"user","content":"new"}]}'
    )

    layout = scan_request(body)

    assert layout.cut == body.rindex(b"]")
    assert body[layout.messages[0].content.start : layout.messages[0].content.end] == b'"new"'


def test_duplicate_content_of_a_message_the_last_one_counts() -> None:
    """The shadowed blocks are no cache positions."""
    body = request().replace(b'"role"', b'"content":[{"type":"text","text":"old"}],"role"')

    assert [block.kind for block in scan_request(body).blocks] == ["string"]


def test_earlier_duplicate_of_another_type_does_no_harm_to_system_and_tools() -> None:
    """A shadowed `system` leaves no positions behind."""
    body = b'{"system":[{"type":"text","text":"old"}],"tools":[{"name":"a"}],"system":"new","tools":[],' + request()[1:]

    assert [block.kind for block in scan_request(body).blocks] == ["string", "string"]


def test_keys_spelt_with_escapes_are_understood() -> None:
    r"""`cache\u005fcontrol` is a marker, at the top of a block and inside a tool result."""
    body = (
        b'{"mod\\u0065l":"m","max_tokens":1,"m\\u0065ssages":[{"r\\u006fle":"user","content":[{"type":"tool_result",'
        b'"tool_use_id":"a","content":[{"type":"text","text":"x","cache\\u005fcontrol":{"type":"ephemeral","ttl":"1h"}}]}]}]}'
    )

    block = scan_request(body).blocks[0]

    assert (block.ttl, block.call_id, len(block.markers)) == ("1h", "a", 1)


def test_lone_surrogate_escapes_are_kept_in_ids_and_text() -> None:
    """Half a pair is legal as an escape; an id that has one is read as it is."""
    block = {"type": "tool_use", "id": "\ud800", "name": "t", "input": {"x": "\udfff"}}

    assert scan_request(request(messages=[{"role": "assistant", "content": [block]}])).blocks[0].call_id == "\ud800"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "thinking", "thinking": "x", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": ""},
        {"type": "text", "text": " \n\t"},
        {"type": "text"},
        {},
        {"cache_control": None},
    ],
)
def test_blocks_that_take_no_marker(block: dict[str, Any]) -> None:
    """The provider refuses a marker on thinking and on empty text; an object without members has no room for one."""
    body = request(messages=[{"role": "user", "content": [block]}])

    assert scan_request(body).blocks[0].insert_at is None


@pytest.mark.parametrize(
    ("control", "ttl"),
    [(None, None), ({"type": "ephemeral"}, "5m"), ({"type": "ephemeral", "ttl": "5m"}, "5m"), ({"ttl": "1h"}, "1h")],
)
def test_automatic_caching_has_a_ttl(control: Any, ttl: str | None) -> None:
    """A top-level marker is read like any other; null is none."""
    assert scan_request(request(cache_control=control)).automatic_ttl == ttl


def test_truncation_at_every_byte_is_named() -> None:
    """However the body was cut short, it is refused as truncated, or at the very value that was cut."""
    scan_request(SAMPLE)
    for end in range(len(SAMPLE)):
        error = refused(SAMPLE[:end])
        assert "truncated" in error.problem or "is empty" in error.problem or _cut_inside_a_token(error, end), end
        assert error.fix in str(error)


def _cut_inside_a_token(error: BadRequestBody, end: int) -> bool:
    return "UTF-8" in error.problem or (error.offset is not None and end - error.offset <= 6)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"[]", "is not a JSON object"),
        (b'"x"', "is not a JSON object"),
        (b"null", "is not a JSON object"),
        (b"\xef\xbb\xbf" + request(), "is not a JSON object"),
        (request() + b"x", "has something behind its closing brace"),
        (request() + request(), "has something behind its closing brace"),
        (b'{"a":"\xff"}', "is not UTF-8"),
        (b'{"temperature":NaN,' + request()[1:], "holds NaN, which is not JSON"),
        (b'{"x":' + b"[" * 100_000, "is nested too deeply to read"),
        (b'{"messages":' + b"[" * 100_000, "messages.0` that is not an object"),
        (b'{"messages":[{"content":[{"input":' + b'{"a":' * 100_000, "is nested too deeply to read"),
        (request(messages=...), "has no `messages`"),
        (request(messages=[]), "has no message in `messages`"),
        (request(messages=None), "has `messages` that is not an array"),
        (request(messages={}), "has `messages` that is not an array"),
        (request(messages="hi"), "has `messages` that is not an array"),
        (request(messages=["hi"]), "has `messages.0` that is not an object"),
        (request(messages=[{"content": "x"}]), "has messages.0 without a `role`"),
        (request(messages=[{"role": 1, "content": "x"}]), "has messages.0 without a `role`"),
        (request(messages=[{"role": "user"}]), "has messages.0 without `content`"),
        (
            request(messages=[{"role": "user", "content": None}]),
            "`messages.0.content` that is not a string or an array",
        ),
        (request(messages=[{"role": "user", "content": {}}]), "`messages.0.content` that is not a string or an array"),
        (request(messages=[{"role": "user", "content": ["x"]}]), "`messages.0.content.0` that is not an object"),
        (request(system=1), "has `system` that is not a string or an array"),
        (request(system=["x"]), "has `system.0` that is not an object"),
        (request(tools={}), "has `tools` that is not an array"),
        (request(tools=[1]), "has `tools.0` that is not an object"),
        (request(model=...), "has no `model` string"),
        (request(model=""), "has no `model` string"),
        (request(model=["m"]), "has no `model` string"),
        (request(max_tokens=...), "has no whole number as `max_tokens`"),
        (request(max_tokens="1"), "has no whole number as `max_tokens`"),
        (request(max_tokens=1.5), "has no whole number as `max_tokens`"),
        (request(max_tokens=True), "has no whole number as `max_tokens`"),
        (b'{"max_tokens":' + b"9" * 5000 + b"," + request(max_tokens=...)[1:], "has no whole number as `max_tokens`"),
    ],
)
def test_unusable_body_is_refused_with_the_problem_and_what_to_do(body: bytes, said: str) -> None:
    """Each kind of bad input has its own words, and the message ends with what to do."""
    error = refused(body)

    assert said in error.problem
    assert str(error).endswith(error.fix)


def test_what_is_no_block_and_no_known_key_is_walked_over() -> None:
    """A string among a result's blocks and an unknown key of a message are left alone."""
    inner = ["x", {"type": "text", "text": "y", "cache_control": {"type": "ephemeral"}}]
    result = {"type": "tool_result", "tool_use_id": "a", "content": inner}

    layout = scan_request(request(messages=[{"name": "n", "role": "user", "content": [result]}]))

    assert (layout.blocks[0].ttl, len(layout.blocks[0].markers)) == ("5m", 1)


@pytest.mark.parametrize("key", ["cache_control", "max_tokens", "thinking", "x", "role"])
def test_nesting_near_the_limit_is_read_or_refused(key: str) -> None:
    """Whatever the depth, and wherever it stands, the only exception is the named one."""
    problems: set[str] = set()
    for depth in range(880, 1000):
        nested = f'"{key}":{"[" * depth}{"]" * depth}'.encode()
        body = request()[:-1] + b"," + nested + b"}"
        if key == "role":
            body = request().replace(b'"role": "user"', nested)
        try:
            scan_request(body)
        except BadRequestBody as error:
            problems.add(error.problem)

    assert "is nested too deeply to read" in problems
    assert problems <= {
        "is nested too deeply to read",
        "has no whole number as `max_tokens`",
        "has messages.0 without a `role`",
    }


def test_integer_longer_than_python_converts_does_no_harm() -> None:
    """A tool's argument may have ten thousand digits; nobody has to do sums with it."""
    body = b'{"x":' + b"9" * 10_000 + b"," + request()[1:]

    assert scan_request(body).model == "m"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"k":1, "a":2}', '{"a":2}'),
        ('{"a":2 , "k":1 }', '{"a":2 }'),
        ('{ "a":1, "k":2, "b":3}', '{ "a":1, "b":3}'),
        ('{"k":1,"k":2}', "{}"),
        ('{"k":1, "k":2, "a":3, "k":4}', '{"a":3}'),
        ('{"a":1}', '{"a":1}'),
    ],
)
def test_removal_takes_the_comma_along(text: str, left: str) -> None:
    """First, middle, last, alone or twice: what is left is a valid object."""
    wire = text
    for span in sorted(removal_spans(members_of(text, 0), ("k",)), reverse=True):
        wire = wire[: span.start] + wire[span.end :]

    assert wire == left


def test_removal_of_nothing_is_nothing() -> None:
    """An empty object has nothing to take away."""
    assert removal_spans([], ("k",)) == ()
    assert removal_spans(members_of('{"k":1}', 0), ()) == ()
    assert removal_spans(members_of('{"k":1}', 0), ("k",)) == (Span(1, 6),)
