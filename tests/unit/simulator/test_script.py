"""What the model says: scripts in the conversation, rules, and the default."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from nexofork.simulator import ScriptError
from tests.unit.simulator.client import assistant, call, joined, post, request, sim, stream, text, user

if TYPE_CHECKING:
    from nexofork.simulator import Simulator

TOOL_TURN: dict[str, Any] = {
    "tools": [{"name": "Bash", "input": {"command": "ls", "a": 1}}, {"name": "Read", "input": {}}]
}


def answered(content: list[Any]) -> list[dict[str, Any]]:
    """The assistant message and a user message that answers its calls."""
    results: list[Any] = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "ok"}
        for block in content
        if block["type"] == "tool_use"
    ]
    return [{"role": "assistant", "content": content}, user(*(results or ["go on"]))]


async def test_without_a_script_the_model_reports(provider: Simulator) -> None:
    """The default is a report in five lines that repeats what was asked."""
    answer = await post(provider, request(user("Count the files in src, please.")))

    assert answer.text.splitlines()[0] == "Scope: Count the files in src, please."
    assert [line.partition(":")[0] for line in answer.text.splitlines()] == [
        "Scope",
        "Result",
        "Key files",
        "Files changed",
        "Issues",
    ]
    assert answer.json["stop_reason"] == "end_turn"


async def test_a_script_is_followed_turn_by_turn(provider: Simulator) -> None:
    """Turns go by the assistant messages since the script; past the end comes the report."""
    messages = [sim(TOOL_TURN, {"text": "second"})]
    said = []
    for _ in range(3):
        answer = await post(provider, request(*messages))
        said.append((answer.json["stop_reason"], answer.text[:6]))
        messages += answered(answer.json["content"])

    assert said == [("tool_use", ""), ("end_turn", "second"), ("end_turn", "Scope:")]


async def test_the_same_conversation_gets_the_same_turn(provider: Simulator) -> None:
    """Scripts in the conversation have no memory; forks and retries follow them alike."""
    body = request(sim({"text": "one"}, {"text": "two"}), assistant("one"), user("next"))

    assert [(await post(provider, body)).text for _ in range(3)] == ["two"] * 3


async def test_the_last_script_counts(provider: Simulator) -> None:
    """A child's script replaces its parent's."""
    answer = await post(provider, request(sim({"text": "parent"}), assistant("ok"), sim({"text": "child"})))

    assert answer.text == "child"


async def test_a_script_may_stand_among_other_text(provider: Simulator) -> None:
    """Only the line matters; a script inside a tool result is somebody's data."""
    other = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": '@sim {"text": "no"}'}
    told = user('Do this.\n@sim {"text": "yes", "delay_s": 0}\nThank you.', "And a notice.")

    answer = await post(provider, request(user("q"), assistant(other), user(result), assistant("ok"), told))

    assert answer.text == "yes"


@pytest.mark.parametrize(
    "script",
    [
        "{",
        '{"txt": 1}',
        '{"text": 1}',
        '{"tools": ["Bash"]}',
        '{"tools": [{"name": "Bash", "input": "{}"}]}',
        '{"repeat": "long"}',
        '{"deltas": 1.5}',
        '{"delay_s": -1}',
        '{"hold": 5}',
        '{"stop_reason": "bored"}',
        '{"fault": {"statsu": 1}}',
        '{"fault": {"status": "529"}}',
        "7",
    ],
)
async def test_a_bad_script_is_refused(provider: Simulator, script: str) -> None:
    """A typing mistake in a script is a 400 that says so, not a silent default."""
    answer = await post(provider, request(user(f"@sim {script}")))

    assert answer.status == 400
    assert answer.error.startswith("@sim: ")


async def test_tool_calls_keep_their_order_keys_and_get_ids(provider: Simulator) -> None:
    """Parallel calls with unique ids and the script's key order."""
    first = await post(provider, request(sim(TOOL_TURN)))
    second = await post(provider, request(sim(TOOL_TURN)))

    blocks = first.json["content"] + second.json["content"]
    assert [block["name"] for block in blocks] == ["Bash", "Read"] * 2
    assert list(blocks[0]["input"].items()) == [("command", "ls"), ("a", 1)]
    assert len({block["id"] for block in blocks}) == 4
    assert all(block["id"].startswith("toolu_") for block in blocks)


async def test_thinking_text_and_tools_come_in_that_order(provider: Simulator) -> None:
    """A turn with all three."""
    answer = await post(provider, request(sim({"text": "so", "thinking": "hm", **TOOL_TURN})))

    assert [block["type"] for block in answer.json["content"]] == ["thinking", "text", "tool_use", "tool_use"]


@pytest.mark.parametrize(
    "reason", ["pause_turn", "refusal", "model_context_window_exceeded", "stop_sequence", "max_tokens", "end_turn"]
)
async def test_any_stop_reason_can_be_scripted(provider: Simulator, reason: str) -> None:
    """Whole and streamed answers both carry it."""
    body = request(sim({"text": "so far", "stop_reason": reason, "stop_sequence": "END"}))

    whole = await post(provider, body)
    ending = (await stream(provider, body))[-2]["delta"]

    assert whole.json["stop_reason"] == ending["stop_reason"] == reason
    assert whole.json["stop_sequence"] == ("END" if reason == "stop_sequence" else None)


async def test_a_truncated_tool_call_is_cut_in_the_middle(provider: Simulator) -> None:
    """With `max_tokens` as the reason the JSON of the last call does not parse."""
    events = await stream(provider, request(sim({**TOOL_TURN, "stop_reason": "max_tokens"})))

    whole, cut = joined(events)
    assert json.loads(whole) == {"command": "ls", "a": 1}
    with pytest.raises(json.JSONDecodeError):
        json.loads(cut)
    assert events[-2]["delta"]["stop_reason"] == "max_tokens"


async def test_output_stops_at_max_tokens(provider: Simulator) -> None:
    """A longer text is cut, counted up to the limit, and says why."""
    answer = await post(provider, request(sim({"text": "word ", "repeat": 500}), max_tokens=100))

    assert answer.json["stop_reason"] == "max_tokens"
    assert answer.json["usage"]["output_tokens"] == 100


async def test_repeat_makes_a_text_of_so_many_tokens(provider: Simulator) -> None:
    """Long output without a long script."""
    answer = await post(provider, request(sim({"text": "word ", "repeat": 500})))

    assert answer.json["usage"]["output_tokens"] == 500


async def test_rules_answer_by_text_and_model(provider: Simulator) -> None:
    """The first rule that matches the last user text and the model speaks."""
    provider.script(
        {"match": "apples", "model": "claude-opus", "turns": ["red"]},
        {"match": "apples", "turns": ["green"]},
        {"turns": ["no fruit"]},
    )

    opus = await post(provider, request(user("apples?")))
    haiku = await post(provider, request(user("apples?"), model="claude-haiku-5-5"))
    other = await post(provider, request(user("apples?"), assistant("red"), user("pears?")))

    assert (opus.text, haiku.text, other.text) == ("red", "green", "no fruit")


async def test_rule_turns_advance_with_the_conversation(provider: Simulator) -> None:
    """Tool results do not count as something the user said."""
    provider.script({"match": "list", "turns": [TOOL_TURN, "done"]})
    first = await post(provider, request(user("list them")))

    second = await post(provider, request(user("list them"), *answered(first.json["content"])))

    assert second.text == "done"


async def test_a_rule_can_be_used_up(provider: Simulator) -> None:
    """With `times` a rule answers so often and then gives way; a pre-warm uses nothing up."""
    provider.script({"turns": ["once"], "times": 1}, {"turns": ["after"]})
    await post(provider, request(max_tokens=0))

    assert [(await post(provider, request())).text for _ in range(2)] == ["once", "after"]


async def test_a_bad_rule_is_refused_in_process(provider: Simulator) -> None:
    """The mistake is raised where it was made."""
    with pytest.raises(ScriptError, match="unknown fields matches"):
        provider.script({"matches": "x"})


async def test_a_held_response_waits_for_its_gate(provider: Simulator) -> None:
    """Nothing is sent before the gate opens, and everything after."""
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(post(provider, request(sim({"text": "held", "hold": "gate"}))))
        await provider.received(1)
        assert provider.log[0].first_byte_at is None
        provider.release("gate")

    assert waiting.result().text == "held"


async def test_a_response_can_be_held_in_the_middle(provider: Simulator) -> None:
    """The first events are there while the rest waits."""
    turn = {"text": "abc", "deltas": 3, "hold": {"gate": "gate", "after_events": 4}}
    async with call(provider, request(sim(turn), stream=True)) as under_way:
        await under_way.head()
        events = under_way.events()
        seen = [await anext(events) for _ in range(4)]
        provider.release("gate")
        rest = [event async for event in events]

    assert [event["type"] for event in seen] == ["message_start", "ping", "content_block_start", "content_block_delta"]
    assert joined([*seen, *rest]) == ["abc"]


async def test_delays_are_kept(provider: Simulator) -> None:
    """A delayed answer takes at least its delay, before the first byte and between deltas."""
    turn = {"text": "abcd", "deltas": 4, "delay_s": 0.05, "delta_delay_s": 0.02}
    await stream(provider, request(sim(turn)))

    record = provider.log[0]
    assert record.first_byte_at is not None
    assert record.finished_at is not None
    assert record.first_byte_at - record.received_at >= 0.05
    assert record.finished_at - record.first_byte_at >= 0.08


async def test_long_context_does_not_reach_the_report(provider: Simulator) -> None:
    """The report repeats a few words only."""
    answer = await post(provider, request(user(text(2000))))

    assert answer.json["usage"]["output_tokens"] < 3000


@pytest.mark.parametrize(
    "script",
    [
        r'{"text": "\ud83d"}',
        r'"\ude00 alone"',
        r'{"thinking": "\ud83d"}',
        r'{"tools": [{"name": "Bash", "input": {"command": ["\ud83d"]}}]}',
        r'[{"text": "fine"}, {"text": "\ud83d"}]',
        r'{"\ud83d": 1}',
        r'{"text": "x", "stop_sequence": "\ud83d"}',
        "[" * 100_000,
    ],
)
async def test_a_script_that_cannot_be_sent_is_a_400(provider: Simulator, script: str) -> None:
    """Half of a surrogate pair has no UTF-8; the answer says so, and the connection is not dropped."""
    answer = await post(provider, request(user(f"@sim {script}")))

    assert answer.status == 400
    assert answer.json["error"]["type"] == "invalid_request_error"
    assert "@sim" in answer.json["error"]["message"]


async def test_a_whole_surrogate_pair_is_said(provider: Simulator) -> None:
    """Both escapes together are one character."""
    assert (await post(provider, request(user(r'@sim {"text": "\ud83d\ude00"}')))).text == "😀"


def test_a_rule_that_cannot_be_sent_is_refused_when_it_is_set(provider: Simulator) -> None:
    """Before any request meets it."""
    with pytest.raises(ScriptError, match="half of a surrogate pair"):
        provider.script({"match": "x", "turns": ["\ud83d"]})
