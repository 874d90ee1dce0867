"""Refusals that need the whole conversation: roles, empty text, tool calls without answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.simulator.client import assistant, post, request, user

if TYPE_CHECKING:
    from nexofork.simulator import Simulator


def calls(*ids: str) -> dict[str, Any]:
    """An assistant message with these tool calls."""
    return assistant(*({"type": "tool_use", "id": name, "name": "Bash", "input": {}} for name in ids))


def results(*ids: str) -> list[dict[str, Any]]:
    """One tool result for each id."""
    return [{"type": "tool_result", "tool_use_id": name, "content": "ok"} for name in ids]


async def test_unanswered_calls_are_named(provider: Simulator) -> None:
    """Every open call is listed, with the index of its message."""
    messages = [
        user("q"),
        assistant("a"),
        user("q"),
        assistant("a"),
        user("q"),
        calls("toolu_A", "toolu_B"),
        user("go on"),
    ]

    answer = await post(provider, request(*messages))

    assert answer.status == 400
    assert answer.error == (
        "messages.5: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_A, toolu_B. "
        "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    )


async def test_one_missing_answer_is_enough(provider: Simulator) -> None:
    """Only the call without a result is named."""
    answer = await post(provider, request(user("q"), calls("toolu_A", "toolu_B"), user(*results("toolu_A"))))

    assert "immediately after: toolu_B." in answer.error


async def test_results_come_first(provider: Simulator) -> None:
    """Text before the results leaves the calls unanswered."""
    answer = await post(provider, request(user("q"), calls("toolu_A"), user("first", *results("toolu_A"))))

    assert "without `tool_result` blocks immediately after: toolu_A" in answer.error


async def test_text_may_follow_the_results(provider: Simulator) -> None:
    """Results, then text, in any order of the results."""
    answer = await post(
        provider, request(user("q"), calls("toolu_A", "toolu_B"), user(*results("toolu_B", "toolu_A"), "go on"))
    )

    assert answer.status == 200


async def test_a_result_nobody_asked_for_is_refused(provider: Simulator) -> None:
    """The mirror error names the block."""
    answer = await post(provider, request(user("q"), calls("toolu_A"), user(*results("toolu_A", "toolu_X"))))

    assert answer.error.startswith(
        "messages.2.content.1: unexpected `tool_use_id` found in `tool_result` blocks: toolu_X."
    )


async def test_a_late_answer_is_both_missing_and_unexpected(provider: Simulator) -> None:
    """A result one exchange later does not count."""
    answer = await post(
        provider, request(user("q"), calls("toolu_A"), user("wait"), assistant("yes"), user(*results("toolu_A")))
    )

    assert "messages.1: `tool_use` ids were found" in answer.error


async def test_a_call_is_answered_once(provider: Simulator) -> None:
    """Two results for one call are refused."""
    answer = await post(provider, request(user("q"), calls("toolu_A"), user(*results("toolu_A", "toolu_A"))))

    assert "single result" in answer.error


async def test_call_ids_are_unique(provider: Simulator) -> None:
    """The same id cannot be used in two calls."""
    turn = [calls("toolu_A"), user(*results("toolu_A"))]

    answer = await post(provider, request(user("q"), *turn, *turn))

    assert answer.error == "messages: `tool_use` ids must be unique"


@pytest.mark.parametrize("blank", ["", " \n\t"])
@pytest.mark.parametrize("place", ["system", "content", "tool result"])
async def test_blank_text_is_refused_everywhere(provider: Simulator, blank: str, place: str) -> None:
    """In the system prompt, in a message and inside a tool result."""
    block = {"type": "text", "text": blank}
    result = {**results("toolu_A")[0], "content": [block]}
    bodies = {
        "system": request(system=[block]),
        "content": request(user("q", block)),
        "tool result": request(user("q"), calls("toolu_A"), user(result)),
    }

    answer = await post(provider, bodies[place])

    assert answer.status == 400
    assert "text content blocks must" in answer.error


async def test_an_empty_message_is_refused(provider: Simulator) -> None:
    """A message in the middle must say something."""
    answer = await post(provider, request(user("q"), {"role": "assistant", "content": []}, user("q")))

    assert answer.error.startswith("messages.1: all messages must have non-empty content")


@pytest.mark.parametrize(
    ("model", "status"),
    [("claude-opus-4-5", 200), ("claude-sonnet-4-6", 400), ("claude-opus-4-6", 400), ("claude-opus-5-5", 400)],
)
async def test_prefill_is_refused_from_4_6_on(provider: Simulator, model: str, status: int) -> None:
    """A request ends with a user message."""
    answer = await post(provider, request(user("q"), assistant("The answer is"), model=model))

    assert answer.status == status
    if status == 400:
        assert answer.error.startswith("This model does not support assistant message prefill.")


async def test_a_conversation_begins_with_the_user(provider: Simulator) -> None:
    """An assistant message cannot be the first."""
    answer = await post(provider, request(assistant("a"), user("q")))

    assert answer.error == 'messages: first message must use the "user" role'


@pytest.mark.parametrize(
    ("model", "status"), [("claude-opus-5", 200), ("claude-fable-5-1", 200), ("claude-opus-4-7", 400)]
)
async def test_system_messages_after_a_user_turn(provider: Simulator, model: str, status: int) -> None:
    """Recent models take an instruction in the middle, older ones name the role."""
    instruction = {"role": "system", "content": "Be brief."}

    answer = await post(provider, request(user("q"), instruction, assistant("a"), user("q"), model=model))

    assert answer.status == status


@pytest.mark.parametrize(
    "roles",
    [("user", "assistant", "system", "assistant", "user"), ("user", "system", "user"), ("user", "system", "system")],
)
async def test_system_messages_have_their_place(provider: Simulator, roles: tuple[str, ...]) -> None:
    """After a user message, and last or before an assistant message."""
    answer = await post(provider, request(*({"role": role, "content": "text"} for role in roles)))

    assert answer.status == 400
    assert "`system` message must follow a `user` message" in answer.error


async def test_a_system_message_may_be_last(provider: Simulator) -> None:
    """The cache-safe way to add an instruction."""
    answer = await post(provider, request(user("q"), {"role": "system", "content": "Be brief."}))

    assert answer.status == 200


async def test_a_paused_turn_may_be_sent_back_as_the_last_message(provider: Simulator) -> None:
    """Only a reply that really stopped with `pause_turn` may end a request on models without prefill."""
    asked = user("@sim " + json.dumps([{"text": "Wait.", "stop_reason": "pause_turn"}, {"text": "Done."}]))
    first = await post(provider, request(asked))

    resumed = await post(provider, request(asked, assistant(*first.json["content"])))
    other = await post(provider, request(asked, assistant("Hm.")))

    assert (first.json["stop_reason"], resumed.text) == ("pause_turn", "Done.")
    assert other.status == 400
