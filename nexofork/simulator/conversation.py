"""Check what only the whole conversation shows: who speaks when, empty text, and tool calls with their answers.

Every open `tool_use` is answered in the very next message, results first, nothing before them. The provider joins
neighbouring messages of one role before it looks; this module does not, which is the stricter reading.
Invariant: after `check_conversation`, tool calls and results pair one to one in adjacent messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexofork.simulator.errors import invalid
from nexofork.simulator.prompt import content_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nexofork.simulator.catalog import Model

__all__ = ["check_conversation"]


def check_conversation(
    request: dict[str, Any], model: Model, *, is_paused: Callable[[dict[str, Any]], bool] = lambda _: False
) -> None:
    """Refuse a conversation the model would not take.

    Args:
        request: the request's body.
        model: the model it names.
        is_paused: whether an assistant message is a reply that stopped with `pause_turn`; such a one may end a request.

    Raises:
        ApiError: roles out of order, empty content, or tool calls and results that do not pair.
    """
    messages = request["messages"]
    _check_roles(messages, model)
    _check_filled(messages)
    _check_text(request)
    _check_unique_calls(messages)
    for index in range(len(messages)):
        _check_answers(messages, index)
        _check_results(messages, index)
    if not is_paused(messages[-1]):
        _check_ending(messages, model)


def _check_roles(messages: Sequence[dict[str, Any]], model: Model) -> None:
    roles = [message["role"] for message in messages]
    if "system" in roles and not model.system_messages:
        raise invalid(
            'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, '
            'not "system" as an input message role.'
        )
    if roles[0] != "user":
        raise invalid('messages: first message must use the "user" role')
    for index, role in enumerate(roles):
        after = roles[index + 1] if index + 1 < len(roles) else "assistant"
        if role == "system" and (roles[index - 1] != "user" or after != "assistant"):
            raise invalid(
                f"messages.{index}: a `system` message must follow a `user` message and must be the last message "
                "or be followed by an `assistant` message"
            )


def _check_filled(messages: Sequence[dict[str, Any]]) -> None:
    for index, message in enumerate(messages):
        last_assistant = index == len(messages) - 1 and message["role"] == "assistant"
        if not message["content"] and not last_assistant:
            raise invalid(
                f"messages.{index}: all messages must have non-empty content except for the optional final "
                "assistant message"
            )


def _check_text(request: dict[str, Any]) -> None:
    for path, block in _texts(request):
        text = block if isinstance(block, str) else block["text"]
        if text.strip():
            continue
        if isinstance(block, dict) and block.get("cache_control") is not None:
            raise invalid(f"{path}.text: cache_control cannot be set for empty text blocks")
        field = path.partition(".")[0]
        if text:
            raise invalid(f"{field}: text content blocks must contain non-whitespace text")
        raise invalid(f"{field}: text content blocks must be non-empty")


def _texts(request: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every text of system and messages with its path, those inside tool results included."""
    yield from _texts_of(request.get("system") or [], "system")
    for index, message in enumerate(request["messages"]):
        yield from _texts_of(message["content"], f"messages.{index}.content")


def _texts_of(content: str | Sequence[Any], path: str) -> Iterator[tuple[str, Any]]:
    for index, block in enumerate(content_blocks(content)):
        if isinstance(block, str):
            yield path, block
        elif block["type"] == "text":
            yield f"{path}.{index}", block
        elif block["type"] == "tool_result" and isinstance(block.get("content"), list):
            yield from _texts_of(block["content"], f"{path}.{index}.tool_result.content")


def _check_unique_calls(messages: Sequence[dict[str, Any]]) -> None:
    calls = [call for message in messages for call in _ids(message, "tool_use", "id")]
    if len(set(calls)) != len(calls):
        raise invalid("messages: `tool_use` ids must be unique")


def _check_answers(messages: Sequence[dict[str, Any]], index: int) -> None:
    calls = _ids(messages[index], "tool_use", "id")
    if not calls:
        return
    following = messages[index + 1] if index + 1 < len(messages) else None
    answered = _leading_results(following) if following is not None else []
    missing = [call for call in calls if call not in answered]
    if missing:
        raise invalid(
            f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the next "
            "message."
        )


def _check_results(messages: Sequence[dict[str, Any]], index: int) -> None:
    before = messages[index - 1] if index else None
    calls = _ids(before, "tool_use", "id") if before is not None else []
    seen: set[str] = set()
    for number, block in enumerate(content_blocks(messages[index]["content"])):
        if not isinstance(block, dict) or block["type"] != "tool_result":
            continue
        call = block["tool_use_id"]
        if call not in calls:
            raise invalid(
                f"messages.{index}.content.{number}: unexpected `tool_use_id` found in `tool_result` blocks: {call}. "
                "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        if call in seen:
            raise invalid(
                f"messages.{index}.content.{number}: each tool_use must have a single result. Found multiple "
                f"`tool_result` blocks with id: {call}"
            )
        seen.add(call)


def _check_ending(messages: Sequence[dict[str, Any]], model: Model) -> None:
    last = messages[-1]
    if last["role"] != "assistant":
        return
    if not model.prefill:
        raise invalid(
            "This model does not support assistant message prefill. The conversation must end with a user message."
        )
    blocks = content_blocks(last["content"])
    tail = blocks[-1] if blocks else ""
    text = tail if isinstance(tail, str) else tail.get("text", "")
    if text != text.rstrip():
        raise invalid("messages: final assistant content cannot end with trailing whitespace")


def _ids(message: dict[str, Any], kind: str, name: str) -> list[str]:
    blocks = content_blocks(message["content"])
    return [block[name] for block in blocks if isinstance(block, dict) and block["type"] == kind]


def _leading_results(message: dict[str, Any]) -> list[str]:
    """The ids answered before anything else is said."""
    answered: list[str] = []
    for block in content_blocks(message["content"]):
        if not isinstance(block, dict) or block["type"] != "tool_result":
            break
        answered.append(block["tool_use_id"])
    return answered
