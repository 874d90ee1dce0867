from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given

from nexofork.core.boilerplate import PLACEHOLDER_RESULT
from nexofork.core.layout import scan_request
from nexofork.core.pairs import answer_dangling, open_calls, placeholder
from tests.strategies import examples, request_bodies
from tests.unit.core.judge import parse


def request(*messages: tuple[str, Any]) -> bytes:
    """Return a request with these messages."""
    rows = [{"role": role, "content": content} for role, content in messages]
    return json.dumps({"model": "m", "max_tokens": 1, "messages": rows}, separators=(",", ":")).encode()


def call(call_id: str) -> dict[str, Any]:
    """Return a tool call."""
    return {"type": "tool_use", "id": call_id, "name": "Bash", "input": {}}


def result(call_id: str, content: str = PLACEHOLDER_RESULT) -> dict[str, Any]:
    """Return a tool result, the placeholder by default."""
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def text(words: str) -> dict[str, Any]:
    """Return a text block."""
    return {"type": "text", "text": words}


ASKED = ("assistant", [text("let me see"), call("a"), call("b")])


def test_placeholder_bytes() -> None:
    """The answer is constant but for the id."""
    assert placeholder("toolu_1") == (
        b'{"type":"tool_result","tool_use_id":"toolu_1","content":"A fork is working on this in the background."}'
    )


@pytest.mark.parametrize(
    ("following", "expected"),
    [
        ([("user", "go on")], [("user", [result("a"), result("b"), text("go on")])]),
        ([("user", [text("go on")])], [("user", [result("a"), result("b"), text("go on")])]),
        ([("user", [])], [("user", [result("a"), result("b")])]),
        ([("user", [result("a", "ok")])], [("user", [result("b"), result("a", "ok")])]),
        ([("user", [result("b", "ok"), text("x")])], [("user", [result("a"), result("b", "ok"), text("x")])]),
        ([("assistant", "well")], [("user", [result("a"), result("b")]), ("assistant", "well")]),
        ([("system", "mind")], [("user", [result("a"), result("b")]), ("system", "mind")]),
    ],
)
def test_one_rule_for_every_shape_of_what_follows(
    following: list[tuple[str, Any]], expected: list[tuple[str, Any]]
) -> None:
    """Text, blocks, nothing, half the answers or no user message: the missing results come first and in order."""
    body, answered = answer_dangling(request(("user", "hi"), ASKED, *following, ("user", "end")))

    assert parse(body) == parse(request(("user", "hi"), ASKED, *expected, ("user", "end")))
    missing = [block["tool_use_id"] for block in expected[0][1] if block.get("content") == PLACEHOLDER_RESULT]
    assert list(answered) == missing


def test_results_split_over_neighbouring_messages_are_answers() -> None:
    """The provider joins the user's messages before it looks, so nothing is answered twice."""
    body = request(("user", "hi"), ASKED, ("user", [result("a", "ok")]), ("user", [result("b", "ok")]))

    assert answer_dangling(body) == (body, ())


def test_calls_of_the_last_message_stay_open() -> None:
    """Answering them is what a fork's tail does."""
    body = request(("user", "hi"), ASKED)

    assert answer_dangling(body) == (body, ())
    assert open_calls(scan_request(body)) == ("a", "b")


def test_nothing_is_open_behind_a_user_message() -> None:
    """A body that ends with the user has no open calls at its end."""
    assert open_calls(scan_request(request(ASKED, ("user", "hi")))) == ()


@examples(100)
@given(body=request_bodies())
def test_body_without_dangling_calls_comes_back_as_the_same_object(body: bytes) -> None:
    """Nothing to answer: not a copy, the very bytes."""
    answered, ids = answer_dangling(body)

    assert answered is body
    assert ids == ()


@examples(120)
@given(body=request_bodies(dangling=True))
def test_every_dangling_call_is_answered_once_and_for_all(body: bytes) -> None:
    """After one pass every call in mid-history has one result in the next message; a second pass changes nothing."""
    answered, ids = answer_dangling(body)

    messages = parse(answered)["messages"]
    for message, following in pairwise(messages):
        calls = [block["id"] for block in _blocks(message) if block["type"] == "tool_use"]
        kinds = [block["type"] for block in _blocks(following)]
        given_ids = [block["tool_use_id"] for block in _blocks(following) if block["type"] == "tool_result"]
        assert sorted(given_ids) == sorted(calls)
        assert kinds[: len(given_ids)] == ["tool_result"] * len(given_ids)
    assert answer_dangling(answered) == (answered, ())
    assert (answered is body) == (not ids)


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [block for block in message["content"] if isinstance(block, dict)]


@examples(80)
@given(body=request_bodies(dangling=True))
def test_answering_only_inserts(body: bytes) -> None:
    """Every text and every block that was there is still there, in its order."""
    before = [_texts(message) for message in parse(body)["messages"]]

    after = [_texts(message) for message in parse(answer_dangling(body)[0])["messages"]]

    assert after == before


def _texts(message: dict[str, Any]) -> list[Any]:
    content = message["content"]
    if isinstance(content, str):
        return [content]
    return [
        block["text"] if block["type"] == "text" and "cache_control" not in block else block
        for block in content
        if block.get("content") != PLACEHOLDER_RESULT
    ]


def test_markers_and_spelling_around_an_insertion_are_kept() -> None:
    """The string that becomes a text block keeps its own bytes."""
    body = (
        b'{"model":"m","max_tokens":1,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"\\u0061",'
        b'"name":"t","input":{}}]} , {"role":"user","content" : "caf\\u00e9 \xc3\xa9" }]}'
    )

    assert answer_dangling(body)[0] == body.replace(
        b'"caf\\u00e9 \xc3\xa9"', b"[" + placeholder("a") + b',{"type":"text","text":"caf\\u00e9 \xc3\xa9"}]'
    )


def test_id_with_half_a_pair_is_answered() -> None:
    """An id that UTF-8 cannot hold is answered with its escape."""
    body, answered = answer_dangling(request(("assistant", [call("\ud800")]), ("user", "x")))

    assert answered == ("\ud800",)
    assert parse(body)["messages"][1]["content"][0]["tool_use_id"] == "\ud800"
