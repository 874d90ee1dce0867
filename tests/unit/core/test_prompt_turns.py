"""Markers and later turns of a child, judged by a model of the provider's cache."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.core.prompt import ChildPrompt, ForkBase, ToolAnswer
from nexofork.core.reply import Reply
from nexofork.core.snapshot import CacheSafeParams
from tests.strategies import Forked, Turn, directives, examples, forks, turns
from tests.unit.core.judge import (
    block_ttls,
    breakpoints,
    drop_editable,
    finds,
    marker_ttls,
    parse,
    positions,
    raw_tree,
    takes_marker,
)

FIVE = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


def text(number: int, control: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a text block, marked or not."""
    block: dict[str, Any] = {"type": "text", "text": f"block {number}"}
    return block if control is None else {**block, "cache_control": control}


def request(content: Any, **fields: Any) -> bytes:
    """Return a request with one user message."""
    body = {"model": "claude-opus-5", "max_tokens": 9, "messages": [{"role": "user", "content": content}], **fields}
    return json.dumps(body).encode()


def reply_of(*, calls: int = 0, thinking: int = 0, texts: int = 0, turn: int = 0) -> Reply:
    """Return a reply with so many blocks of each kind."""
    blocks: list[Any] = [{"type": "thinking", "thinking": "", "signature": "c2ln"}] * thinking
    blocks += [{"type": "text", "text": "so"}] * texts
    blocks += [{"type": "tool_use", "id": f"toolu_{turn}_{n}", "name": "Bash", "input": {}} for n in range(calls)]
    return Reply.from_response(blocks)


def child_of(body: bytes, reply: Reply | None = None, *, boilerplate: bool = True) -> ChildPrompt:
    """Return a child of this parent."""
    return ForkBase(CacheSafeParams(body=body, reply=reply), boilerplate=boilerplate).child("do it")


def assert_markers_are_legal(document: dict[str, Any]) -> None:
    """The rules a provider answers with a 400: four at most, 1h before 5m, on blocks that take one, none automatic."""
    ttls = marker_ttls(document)
    assert len(ttls) <= 4
    assert ttls == sorted(ttls), "1h sorts before 5m"
    assert document.get("cache_control") is None
    assert all(takes_marker(block) for block in positions(document) if block_ttls(block))


@examples(100)
@given(
    forked=forks(), directive=directives(), boilerplate=st.booleans(), later=st.tuples(turns(number=1), turns(number=2))
)
def test_no_request_of_a_child_breaks_the_marker_rules(
    forked: Forked, directive: str, boilerplate: bool, later: tuple[Turn, Turn]
) -> None:
    """On every turn there are at most four markers, TTLs in order, none on thinking, empty text or strings."""
    child = ForkBase(CacheSafeParams(body=forked.body, reply=forked.reply), boilerplate=boilerplate).child(directive)

    for turn in later:
        assert_markers_are_legal(parse(bytes(child.body())))
        child.extend(turn.reply, turn.answers, turn.texts)

    assert_markers_are_legal(parse(bytes(child.body())))


@examples(60)
@given(forked=forks(), directive=directives(), later=st.tuples(turns(number=1), turns(number=2)))
def test_later_turns_extend_what_was_sent(forked: Forked, directive: str, later: tuple[Turn, Turn]) -> None:
    """A later body keeps every token of the earlier one, answers each call once, and adds messages at the end."""
    child = ForkBase(CacheSafeParams(body=forked.body, reply=forked.reply)).child(directive)

    for turn in later:
        around, sent = drop_editable(raw_tree(bytes(child.body())))
        child.extend(turn.reply, turn.answers, turn.texts)
        around_now, now = drop_editable(raw_tree(bytes(child.body())))
        assert around_now == around
        assert now[: len(sent)] == sent
        messages = parse(bytes(child.body()))["messages"]
        given_ids = [block["tool_use_id"] for block in messages[-1]["content"] if block["type"] == "tool_result"]
        assert given_ids == [call.id for call in turn.reply.tool_uses]
    assert child.turns == 2


PARENTS = {
    "no marker": request([text(0)]),
    "automatic, string": request("hi", cache_control=FIVE),
    "automatic 1h": request([text(0)], cache_control=HOUR, system="s"),
    "four markers": request([text(0, FIVE), text(1, FIVE)], system=[text(2, HOUR), text(3, HOUR)]),
    "marker far back": request([text(0, FIVE), *(text(n) for n in range(30))]),
}
SIZES = st.integers(0, 3) | st.sampled_from([19, 20, 21, 40])


@examples(100)
@given(
    parent=st.sampled_from(sorted(PARENTS)),
    boilerplate=st.booleans(),
    first=st.none() | st.tuples(SIZES, SIZES),
    later=st.lists(st.tuples(SIZES, SIZES, st.booleans()), min_size=10, max_size=10),
)
def test_ten_turns_always_find_the_entry_written_the_turn_before(
    parent: str, boilerplate: bool, first: tuple[int, int] | None, later: list[tuple[int, int, bool]]
) -> None:
    """However many blocks a turn adds, the provider finds the child's own newest entry, or the parent's at first."""
    reply = None if first is None else reply_of(calls=first[0], thinking=first[1], texts=1)
    child = child_of(PARENTS[parent], reply, boilerplate=boilerplate)
    entries = breakpoints(parse(PARENTS[parent]))

    for number, (calls, thinking, paused) in enumerate(later, start=1):
        document = parse(bytes(child.body()))
        marked, reach = breakpoints(document), positions(document)
        assert_markers_are_legal(document)
        if entries and any(takes_marker(block) for block in reach[entries[-1] : entries[-1] + 20]):
            assert finds(entries[-1], marked)
        entries = marked or entries
        answered = reply_of(calls=calls, thinking=thinking, texts=1, turn=number)
        answers = [ToolAnswer(call_id=call.id, content="ok") for call in answered.tool_uses]
        child.extend(answered, answers, () if paused else ("go on",))


def test_each_later_turn_writes_its_own_end() -> None:
    """From the second request on the last block is marked, so the next turn reads everything before it."""
    child = child_of(PARENTS["no marker"])
    child.extend(reply_of(calls=3, turn=1), [ToolAnswer(call_id=f"toolu_1_{n}", content="ok") for n in range(3)])

    document = parse(bytes(child.body()))

    assert breakpoints(document)[-1] == len(positions(document)) - 1


def test_directive_is_unmarked_on_the_first_turn() -> None:
    """Until a second turn is sure, nothing behind the shared part is written."""
    document = parse(bytes(child_of(PARENTS["four markers"], reply_of(calls=2)).body()))

    assert breakpoints(document)[-1] == len(positions(document)) - 2


def test_thirty_five_blocks_with_writes_at_ten_and_fifteen() -> None:
    """The provider's own vector: a lone marker at 35 would miss the entry at 15; a marker stays at 15 and hits."""
    content = [text(n, FIVE if n in (10, 15) else None) for n in range(1, 36)]
    document = parse(bytes(child_of(request(content)).body()))

    marked = breakpoints(document)

    assert not finds(14, [marked[-1]])
    assert marked == [9, 14, 35]


def test_forty_parallel_calls_still_find_the_parent() -> None:
    """80 blocks behind the parent's last marker do not push its entry out of sight."""
    child = child_of(request([text(0), text(1, FIVE)]), reply_of(calls=40))

    document = parse(bytes(child.body()))

    assert breakpoints(document) == [1, 2 + 40 + 40]
    assert child.plan.reads_parent


def test_forty_calls_behind_an_automatic_marker_on_a_string() -> None:
    """A string takes no marker of its own, so the furthest block within reach of it is marked instead."""
    child = child_of(request("hi", cache_control=FIVE), reply_of(calls=40, thinking=1))

    document = parse(bytes(child.body()))

    assert breakpoints(document) == [19, 82]
    assert finds(0, [19])
    assert child.plan.reads_parent


def test_thinking_as_far_as_lookback_reaches_is_reported() -> None:
    """Where nothing within reach takes a marker, the plan says that the parent's entry will not be found."""
    child = child_of(request("hi", cache_control=FIVE), reply_of(thinking=30, texts=1))

    assert not child.plan.reads_parent
    assert breakpoints(parse(bytes(child.body()))) == [32]


def test_parent_with_four_markers_keeps_the_write_and_what_is_shared_most() -> None:
    """The boilerplate takes a slot; the older message marker goes, the write and the system's stay."""
    content = [text(0, FIVE), text(1), text(2, FIVE)]
    parent = request(content, system=[text(3, FIVE)], tools=[{"name": "t", "input_schema": {}, "cache_control": FIVE}])

    document = parse(bytes(child_of(parent).body()))

    assert breakpoints(document) == [0, 1, 4, 5]


def test_one_hour_parent_gives_one_hour_children() -> None:
    """The child's own markers live as long as the parent's newest."""
    child = child_of(request([text(0, HOUR)], system=[text(1, HOUR)]))
    child.extend(reply_of(texts=1, turn=1), texts=["go on"])

    assert marker_ttls(parse(bytes(child.body()))) == ["1h", "1h", "1h", "1h"]


def test_mixed_parent_continues_with_the_shorter_ttl() -> None:
    """Behind a 5m marker there may be no 1h one."""
    document = parse(bytes(child_of(request([text(0, FIVE)], system=[text(1, HOUR)])).body()))

    assert marker_ttls(document) == ["1h", "5m", "5m"]


def test_parent_without_markers_shares_the_boilerplate_only() -> None:
    """There is no entry to read, and the shared end is written for the siblings."""
    child = child_of(PARENTS["no marker"])

    assert breakpoints(parse(bytes(child.body()))) == [1]
    assert not child.plan.reads_parent


@pytest.mark.parametrize("last", [[text(0)], "hi"])
def test_automatic_caching_is_spelt_out(last: Any) -> None:
    """The top-level marker would move with the child's last block, so it becomes a marker where it was."""
    child = child_of(request(last, cache_control=HOUR))

    document = parse(bytes(child.body()))

    assert "cache_control" not in document
    assert finds(0, breakpoints(document))
    assert set(marker_ttls(document)) == {"1h"}


def test_several_markers_on_one_block_become_one() -> None:
    """Markers inside a tool result count as the result's, so two of them there would waste a slot."""
    result = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [text(0, FIVE), text(1, FIVE)],
        "cache_control": FIVE,
    }
    call = {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}
    body = {
        "model": "m",
        "max_tokens": 1,
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ],
    }

    document = parse(bytes(child_of(json.dumps(body).encode()).body()))

    assert marker_ttls(document) == ["5m", "5m"]
    assert breakpoints(document) == [2, 3]


@pytest.mark.parametrize("blank", ["", " \n"])
def test_blank_text_of_a_reply_carries_no_marker(blank: str) -> None:
    """The API refuses a marker on empty text, so the block before it is the shared end."""
    reply = Reply.from_response([{"type": "text", "text": "so"}, {"type": "text", "text": blank}])

    document = parse(bytes(child_of(PARENTS["no marker"], reply, boilerplate=False).body()))

    assert breakpoints(document) == [1]


def test_blank_text_of_a_later_turn_is_not_sent() -> None:
    """A reminder that says nothing does not make a request the API refuses."""
    child = child_of(PARENTS["no marker"])
    child.extend(reply_of(calls=1, turn=1), [ToolAnswer(call_id="toolu_1_0", content="ok")], texts=[" ", "mind"])

    content = parse(bytes(child.body()))["messages"][-1]["content"]

    assert [block.get("text") for block in content] == [None, "mind"]


def test_paused_turn_is_resumed_with_the_reply_alone() -> None:
    """Without answers or texts the reply ends the body, as a paused turn wants it."""
    child = child_of(PARENTS["no marker"])
    child.extend(reply_of(texts=1))

    assert parse(bytes(child.body()))["messages"][-1]["role"] == "assistant"


def test_marker_the_api_would_refuse_does_not_stop_a_fork() -> None:
    """Markers on thinking or empty text are taken away, doubled or not; they never reach the wire again."""
    thinking = (
        '{"cache_control":{"type":"ephemeral"},"type":"thinking","thinking":"","cache_control":{"type":"ephemeral"}}'
    )
    parent = f'{{"model":"m","max_tokens":1,"messages":[{{"role":"assistant","content":[{thinking}]}}]}}'

    assert_markers_are_legal(parse(bytes(child_of(parent.encode()).body())))


def test_object_with_nothing_but_a_marker_stays_valid_json() -> None:
    """A block without any other member is no place for a marker."""
    parent = request([{"cache_control": None}], cache_control=FIVE)

    assert parse(bytes(child_of(parent).body()))["messages"][0]["content"] == [{"cache_control": None}]
