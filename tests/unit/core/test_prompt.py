from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.core.boilerplate import BOILERPLATE, PLACEHOLDER_RESULT
from nexofork.core.layout import scan_request
from nexofork.core.prompt import ForkBase, ToolAnswer
from nexofork.core.reply import CutToolUse, Reply
from nexofork.core.snapshot import CacheSafeParams
from nexofork.core.splice import without_editable
from nexofork.errors import BadDirective, BadReply
from tests.strategies import Forked, directives, examples, forks, replies, request_bodies
from tests.unit.core.judge import breakpoints, drop_editable, finds, parse, positions, raw_tree, takes_marker

REPLY = Reply.from_response(b'[{"type":"text","text":"Yes."}]')


def base_of(forked: Forked, **options: Any) -> ForkBase:
    """Return the base of a fan-out."""
    return ForkBase(CacheSafeParams(body=forked.body, reply=forked.reply), **options)


def first_body(forked: Forked, directive: str = "do it", *notes: str, boilerplate: bool = True) -> bytes:
    """Return a child's first request."""
    return bytes(base_of(forked, boilerplate=boilerplate).child(directive, notes).body())


def request(*messages: dict[str, Any], **fields: Any) -> bytes:
    """Return a small request with these messages."""
    body = {"model": "claude-opus-5", "max_tokens": 100, "messages": messages, **fields}
    return json.dumps(body, separators=(",", ":")).encode()


def test_golden_child_body() -> None:
    """One small parent, reply and directive give these bytes and no others."""
    parent = (
        b'{"max_tokens":64, "messages":[{"role":"user","content":[{"type":"text","text":"na\xc3\xafve \\u00e9",'
        b'"cache_control":{"type":"ephemeral"}}]} ],"model":"claude-opus-5","system":"be brief"}\n'
    )
    reply = (
        b'[{"signature":"c2ln","thinking":"hm","type":"thinking"}, '
        b'{"id":"toolu_1","input":{"b":1, "a":2},"name":"Agent","type":"tool_use"}]'
    )

    body = first_body(Forked(body=parent, reply=Reply.from_response(reply)), 'Say "hi"', "mind the gap")

    assert body == (
        b'{"max_tokens":64, "messages":[{"role":"user","content":[{"type":"text","text":"na\xc3\xafve \\u00e9",'
        b'"cache_control":{"type":"ephemeral"}}]} '
        b',{"role":"assistant","content":[{"signature":"c2ln","thinking":"hm","type":"thinking"},'
        b'{"id":"toolu_1","input":{"b":1, "a":2},"name":"Agent","type":"tool_use"}]}'
        b',{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"'
        + PLACEHOLDER_RESULT.encode()
        + b'"},{"type":"text","text":"'
        + BOILERPLATE.replace("\n", "\\n").replace('"', '\\"').encode()
        + b'","cache_control":{"type":"ephemeral"}},{"type":"text","text":"Say \\"hi\\""},'
        b'{"type":"text","text":"mind the gap"}]}'
        b'],"model":"claude-opus-5","system":"be brief","stream":true}\n'
    )


@examples(100)
@given(forked=forks(), directive=directives(), boilerplate=st.booleans())
def test_child_spells_every_token_of_the_parent_the_same(forked: Forked, directive: str, boilerplate: bool) -> None:
    """Read with a parser of our own, a child is the parent token for token, with messages added at the end."""
    parent, parent_messages = drop_editable(raw_tree(forked.body))

    child, child_messages = drop_editable(raw_tree(first_body(forked, directive, boilerplate=boilerplate)))

    assert child == parent
    assert child_messages[: len(parent_messages)] == parent_messages
    assert len(child_messages) == len(parent_messages) + (1 if forked.reply is None else 2)


@examples(100)
@given(forked=forks(), directive=directives())
def test_child_equals_the_parent_byte_for_byte_around_the_insertion(forked: Forked, directive: str) -> None:
    """With the editable spans stripped, white space and all, only the tail is new."""
    parent = without_editable(forked.body)

    child = without_editable(first_body(forked, directive))

    cut = _first_difference(parent, child)
    assert parent[cut:].startswith(b"]")
    assert child[cut:].startswith(b',{"role":')
    assert child[len(child) - len(parent) + cut :] == parent[cut:]


@examples(80)
@given(body=request_bodies(ends_with="user"), reply=replies(), directive=directives())
def test_child_of_an_unmarked_streaming_parent_has_its_literal_bytes(body: bytes, reply: Reply, directive: str) -> None:
    """Where nothing needs editing, nothing is edited: the raw bytes on both sides of the cut are the parent's."""
    bare = b'{"stream":true,"max_tokens":9,' + without_editable(body).strip()[1:]
    cut = scan_request(bare).cut

    child = first_body(Forked(body=bare, reply=reply), directive)

    assert child[:cut] == bare[:cut]
    assert child[len(child) - len(bare) + cut :] == bare[cut:]


@examples(80)
@given(body=request_bodies(ends_with="user", wild=False), directive=directives())
def test_child_of_a_compact_parent_differs_only_where_a_regex_says_it_may(body: bytes, directive: str) -> None:
    """In the SDK's own compact form the editable spans can be cut out with a plain regular expression."""
    spans = re.compile(
        rb'(?:"cache_control":(?:null|\{[^{}]*\})|"stream":(?:true|false)|"max_tokens":\d+|"diagnostics":\{[^{}]*\})'
    )

    def stripped(wire: bytes) -> bytes:
        return re.sub(rb"(?<=[{\[]),|,(?=[}\]])", b"", re.sub(rb",+", b",", spans.sub(b"", wire)))

    parent = stripped(body)
    child = stripped(first_body(Forked(body=body, reply=None), directive))
    cut = _first_difference(parent, child)

    assert parent[cut:].startswith(b"]")
    assert child[len(child) - len(parent) + cut :] == parent[cut:]


def _first_difference(one: bytes, other: bytes) -> int:
    return next(at for at, (ours, theirs) in enumerate(zip(one, other, strict=False)) if ours != theirs)


@examples(100)
@given(forked=forks(), one=directives(), other=directives(), boilerplate=st.booleans())
def test_siblings_are_identical_up_to_the_directive(forked: Forked, one: str, other: str, boilerplate: bool) -> None:
    """Everything in front of the directive's own text is the same bytes for all siblings."""
    base = base_of(forked, boilerplate=boilerplate)

    first, second = bytes(base.child(one, ["a note"]).body()), bytes(base.child(other).body())

    directive_at = _directive_offset(first, one, notes=1)
    assert first[:directive_at] == second[:directive_at]
    assert directive_at == _directive_offset(second, other, notes=0)


def _directive_offset(body: bytes, directive: str, *, notes: int) -> int:
    """Return where the directive's block starts: it stands `notes` blocks before the end of the messages."""
    layout = scan_request(body)
    block = layout.messages[-1].blocks[-1 - notes]
    assert json.loads(body[block.span.start : block.span.end])["text"] == directive
    return block.span.start


@examples(100)
@given(forked=forks(), directive=directives())
def test_every_open_call_is_answered_once_results_first_and_in_order(forked: Forked, directive: str) -> None:
    """The child's user message begins with one placeholder per open call, then boilerplate, then the directive."""
    messages = parse(first_body(forked, directive))["messages"]

    asked = messages[-2]["content"] if messages[-2]["role"] == "assistant" else []
    calls = [block["id"] for block in asked if isinstance(block, dict) and block["type"] == "tool_use"]
    content = messages[-1]["content"]
    assert [block["type"] for block in content] == ["tool_result"] * len(calls) + ["text", "text"]
    assert [block["tool_use_id"] for block in content[: len(calls)]] == calls
    assert {block["content"] for block in content[: len(calls)]} <= {PLACEHOLDER_RESULT}
    assert [block["text"] for block in content[len(calls) :]] == [BOILERPLATE, directive]


@examples(100)
@given(forked=forks(), directive=directives(), boilerplate=st.booleans())
def test_first_request_finds_the_parents_newest_entry(forked: Forked, directive: str, boilerplate: bool) -> None:
    """Whenever a block within reach of it can be marked, the provider comes across what the parent wrote last."""
    written = breakpoints(parse(forked.body))
    base = base_of(forked, boilerplate=boilerplate)
    child = base.child(directive)

    document = parse(bytes(child.body()))

    row = positions(document)
    found = bool(written) and finds(written[-1], breakpoints(document))
    reachable = bool(written) and any(takes_marker(block) for block in row[written[-1] : written[-1] + 20])
    assert found == reachable
    assert child.plan.reads_parent == found


def test_sidecar_without_a_reply_adds_one_user_message() -> None:
    """A parent between turns is forked with one further user message, and nothing is answered."""
    body = first_body(Forked(body=request({"role": "user", "content": "hi"}), reply=None), "sum up", boilerplate=False)

    assert parse(body)["messages"][1:] == [{"role": "user", "content": [{"type": "text", "text": "sum up"}]}]


def test_open_calls_at_the_end_of_the_body_are_answered_too() -> None:
    """A body that already ends with the assistant's calls gets their placeholders without a reply beside it."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "Agent", "input": {}}
    parent = request({"role": "user", "content": "hi"}, {"role": "assistant", "content": [call]})

    messages = parse(first_body(Forked(body=parent, reply=None)))["messages"]

    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[2]["content"][0]["tool_use_id"] == "toolu_1"


def test_notes_stand_behind_the_directive() -> None:
    """A worktree notice or reminder comes after the directive, in the order given."""
    forked = Forked(body=request({"role": "user", "content": "hi"}), reply=REPLY)

    content = parse(first_body(forked, "the directive", "one", "two"))["messages"][-1]["content"]

    assert [block["text"] for block in content] == [BOILERPLATE, "the directive", "one", "two"]


def test_a_path_that_is_not_utf8_does_not_stop_a_note() -> None:
    """A note with an undecodable file name (a lone surrogate in Python) is sent as an escape, not refused."""
    forked = Forked(body=request({"role": "user", "content": "hi"}), reply=None)

    content = parse(first_body(forked, "go", "look in /tmp/\udcff"))["messages"][-1]["content"]

    assert content[-1]["text"] == "look in /tmp/\udcff"


def test_call_id_with_half_a_pair_is_answered() -> None:
    """Even an id no API would make is answered with itself."""
    reply = Reply.from_response(b'[{"type":"tool_use","id":"\\ud800","name":"X","input":{}}]')
    forked = Forked(body=request({"role": "user", "content": "hi"}), reply=reply)

    assert parse(first_body(forked))["messages"][-1]["content"][0]["tool_use_id"] == "\ud800"


@pytest.mark.parametrize("note", ["", " \n"])
def test_blank_note_is_left_out(note: str) -> None:
    """The API refuses empty text, so a note that says nothing is not sent."""
    forked = Forked(body=request({"role": "user", "content": "hi"}), reply=None)

    content = parse(first_body(forked, "go", note))["messages"][-1]["content"]

    assert [block["text"] for block in content] == [BOILERPLATE, "go"]


def test_reply_beside_a_body_that_ends_with_one_is_refused() -> None:
    """Two assistant messages in a row can only be a mistake."""
    parent = request({"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"})

    with pytest.raises(BadReply, match="already ends with an assistant message"):
        base_of(Forked(body=parent, reply=REPLY))


def test_empty_reply_is_refused() -> None:
    """A reply without blocks cannot be continued."""
    with pytest.raises(BadReply, match="is empty"):
        base_of(Forked(body=request({"role": "user", "content": "hi"}), reply=Reply(blocks=())))


def test_reply_cut_off_inside_a_call_is_refused_by_its_name() -> None:
    """A call whose input never ended must not be sent again."""
    cut = Reply(blocks=REPLY.blocks, truncated_tool_use=CutToolUse(id="toolu_1", name="Bash", partial_input='{"a'))

    with pytest.raises(BadReply, match="cut off inside the tool call 'Bash'"):
        base_of(Forked(body=request({"role": "user", "content": "hi"}), reply=cut))


@pytest.mark.parametrize("directive", ["", "  \n", "<fork-boilerplate>", "half \ud800"])
def test_bad_directive_is_refused_before_anything_is_built(directive: str) -> None:
    """No child is made from a directive that cannot be given."""
    base = base_of(Forked(body=request({"role": "user", "content": "hi"}), reply=None))

    with pytest.raises(BadDirective):
        base.child(directive)


@examples(50)
@given(forked=forks())
def test_digest_names_the_shared_prefix(forked: Forked) -> None:
    """Two bases of the same parent agree; another reply, no boilerplate or an override gives another name."""
    base = base_of(forked)

    assert base.digest == base_of(forked).digest
    assert base.digest != base_of(forked, boilerplate=False).digest
    assert base.digest != base_of(forked, overrides={"temperature": 1}).digest


def test_overrides_replace_top_level_fields_and_leave_the_rest() -> None:
    """Whoever accepts the bill gets exactly the fields named, present before or not."""
    parent = request({"role": "user", "content": "hi"}, thinking={"type": "adaptive"})
    base = base_of(Forked(body=parent, reply=None), overrides={"model": "claude-haiku-5", "top_k": 3, "max_tokens": 0})

    document = parse(bytes(base.child("go").body()))

    assert (document["model"], document["top_k"], document["max_tokens"]) == ("claude-haiku-5", 3, 0)
    assert document["thinking"] == {"type": "adaptive"}
    assert document["messages"][0] == {"role": "user", "content": "hi"}


@pytest.mark.parametrize("section", ["system", "tools"])
def test_override_replaces_a_section_that_carries_markers(section: str) -> None:
    """An overridden section takes its markers with it, however many there were."""
    mark = {"cache_control": {"type": "ephemeral"}}
    blocks = [
        {"type": "text", "text": f"part {number}", "name": "t", "input_schema": {}, **mark} for number in range(3)
    ]
    content = [{"type": "text", "text": "hi", **mark}]
    parent = request({"role": "user", "content": content}, **{section: blocks})
    base = base_of(Forked(body=parent, reply=None), overrides={section: []})

    document = parse(bytes(base.child("go").body()))

    assert document[section] == []
    assert breakpoints(document) == [0, 1]


def test_tool_answer_keeps_a_lone_surrogate_as_an_escape() -> None:
    """A tool's undecodable output is sent in a form that is still JSON and UTF-8."""
    wire = ToolAnswer(call_id="toolu_1", content="x\\\ud800é", is_error=True).to_wire()

    assert json.loads(wire.decode()) == {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": "x\\\ud800é",
        "is_error": True,
    }


def test_override_of_the_only_marked_section_leaves_nothing_to_read() -> None:
    """What the parent wrote there is gone, and the plan knows it."""
    marked = [{"type": "text", "text": "old", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    parent = request({"role": "user", "content": "hi"}, system=marked)
    child = base_of(Forked(body=parent, reply=None), overrides={"system": "new"}).child("go")

    assert parse(bytes(child.body()))["system"] == "new"
    assert not child.plan.reads_parent


def test_recorded_tool_answer_is_sent_as_it_was() -> None:
    """What was sent once goes out again byte for byte, whatever the fields say now."""
    assert ToolAnswer(call_id="t", content="new", recorded=b'{"old" : 1}').to_wire() == b'{"old" : 1}'


def test_tool_answer_without_error_does_not_mention_one() -> None:
    """A success has no `is_error`."""
    answer = ToolAnswer(call_id="t", content=[{"type": "text", "text": "x"}])

    assert answer.to_wire() == b'{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"x"}]}'
