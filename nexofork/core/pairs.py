"""Answer every open tool call, by one rule wherever it stands.

The API refuses a ``tool_use`` without a ``tool_result`` in the next message. Filtering the call out would change the
prefix (and drop what the model knows it did), so it is answered with the constant placeholder instead: at the end by
the tail of a fork, in the middle of a history by `answer_dangling`. A parent that repairs its own requests with the
same function keeps sharing its cache with its children.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from nexofork.core.boilerplate import PLACEHOLDER_RESULT, json_string
from nexofork.core.layout import Layout, Message, scan_request
from nexofork.core.splice import Edit, splice

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["answer_dangling", "open_calls", "placeholder"]


def placeholder(call_id: str) -> bytes:
    """Return the constant answer to one tool call."""
    return (
        b'{"type":"tool_result","tool_use_id":'
        + json_string(call_id)
        + b',"content":'
        + json_string(PLACEHOLDER_RESULT)
        + b"}"
    )


def open_calls(layout: Layout) -> tuple[str, ...]:
    """Return the calls of the last message that nothing answers yet.

    Empty unless an assistant message ends the body.
    """
    last = layout.messages[-1]
    return tuple(_calls(last)) if last.role == "assistant" else ()


def answer_dangling(body: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Return the body with every unanswered call in mid-history answered, and the ids that were.

    The calls of a closing assistant message stay open: answering them is what a fork's tail does. A body without
    dangling calls comes back unchanged, the very same object.
    """
    layout = scan_request(body)
    edits: list[Edit] = []
    answered: list[str] = []
    for index, message in enumerate(layout.messages[:-1]):
        missing = _missing(message, layout.messages[index + 1 :])
        if missing:
            answered += missing
            edits.append(_insertion(message, layout.messages[index + 1], body, missing))
    return (bytes(splice(body, edits)) if edits else body), tuple(answered)


def _calls(message: Message) -> list[str]:
    return [block.call_id for block in message.blocks if block.kind == "tool_use" and block.call_id]


def _missing(message: Message, rest: Iterable[Message]) -> list[str]:
    """Return the calls without a result; the provider joins the user messages that follow before it looks."""
    if message.role != "assistant":
        return []
    answers = takewhile(lambda following: following.role == "user", rest)
    given = {block.call_id for answer in answers for block in answer.blocks if block.kind == "tool_result"}
    return [call_id for call_id in _calls(message) if call_id not in given]


def _insertion(message: Message, following: Message, body: bytes, missing: Iterable[str]) -> Edit:
    results = b",".join(placeholder(call_id) for call_id in missing)
    start = following.content.start
    if following.role != "user":
        at = message.span.end
        return Edit(at, at, b',{"role":"user","content":[' + results + b"]}")
    if body[start : start + 1] == b'"':
        text = body[start : following.content.end]
        return Edit(start, following.content.end, b"[" + results + b',{"type":"text","text":' + text + b"}]")
    if not following.blocks:
        return Edit(start, following.content.end, b"[" + results + b"]")
    # Results come first in a message, so the new ones go in front of whatever is there.
    at = following.blocks[0].span.start
    return Edit(at, at, results + b",")
