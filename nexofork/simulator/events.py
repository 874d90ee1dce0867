"""Write a reply as server-sent events, cut into deltas the way a model's output arrives.

Splits fall anywhere in a text or in a tool's JSON, chosen by the text itself, so a run can be repeated. A signature is
one delta, because clients take the last one they see. Invariant: joined again, the deltas are the reply.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any, assert_never

from nexofork.simulator.canon import BYTES_PER_TOKEN
from nexofork.simulator.reply import Reply, ReplyBlock, TextBlock, ThinkingBlock, ToolBlock, count_text_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Event", "encode_event", "stop_details", "stream_events"]

SURROGATE_PAIR = re.compile(r"\\ud[89ab][0-9a-f]{2}(?=\\ud[c-f][0-9a-f]{2})")
CHARS_PER_DELTA = 24
MOST_DELTAS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event on the wire."""

    data: bytes
    output_tokens: int
    """What has been said up to and including this event."""
    delta: bool
    """Whether it carries a piece of content."""


def stream_events(
    reply: Reply, *, message: dict[str, Any], usage: dict[str, Any], deltas: int | None, escape: bool
) -> Iterator[Event]:
    """All events of a reply, `message_start` to `message_stop`, with a ping in between.

    Args:
        reply: what is said.
        message: the message without content, for `message_start`.
        usage: the final usage counters.
        deltas: pieces per block; None goes by length.
        escape: write non-ASCII as escapes.
    """
    said = 0
    yield _event({"type": "message_start", "message": message}, said, escape)
    yield _event({"type": "ping"}, said, escape)
    for index, block in enumerate(reply.blocks):
        yield _event({"type": "content_block_start", "index": index, "content_block": _opened(block)}, said, escape)
        size = 0
        for delta, piece in _deltas(block, deltas):
            size += len(piece.encode())
            payload = {"type": "content_block_delta", "index": index, "delta": delta}
            yield _event(payload, said + ceil(size / BYTES_PER_TOKEN), escape)
        said += count_text_tokens(block.text)
        yield _event({"type": "content_block_stop", "index": index}, said, escape)
    ending = {"stop_reason": reply.stop_reason, "stop_sequence": reply.stop_sequence, **stop_details(reply)}
    yield _event({"type": "message_delta", "delta": ending, "usage": usage}, said, escape)
    yield _event({"type": "message_stop"}, said, escape)


def stop_details(reply: Reply) -> dict[str, Any]:
    """The `stop_details` field where a stop reason has one."""
    if reply.stop_reason != "refusal":
        return {}
    return {"stop_details": {"type": "refusal", "category": None, "explanation": None}}


def encode_event(payload: dict[str, Any], *, escape: bool = False) -> bytes:
    """One event in `text/event-stream` form."""
    data = json.dumps(payload, ensure_ascii=escape, separators=(",", ":"))
    return f"event: {payload['type']}\ndata: {data}\n\n".encode()


def _event(payload: dict[str, Any], output_tokens: int, escape: bool) -> Event:
    delta = payload["type"] == "content_block_delta"
    return Event(data=encode_event(payload, escape=escape), output_tokens=output_tokens, delta=delta)


def _opened(block: ReplyBlock) -> dict[str, Any]:
    match block:
        case TextBlock():
            return {"type": "text", "text": ""}
        case ThinkingBlock():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case ToolBlock():
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}
        case _:
            assert_never(block)


def _deltas(block: ReplyBlock, count: int | None) -> Iterator[tuple[dict[str, Any], str]]:
    """Each delta with the text it adds."""
    pieces = _split(block.text, count)
    match block:
        case TextBlock():
            yield from (({"type": "text_delta", "text": piece}, piece) for piece in pieces)
        case ThinkingBlock():
            yield from (({"type": "thinking_delta", "thinking": piece}, piece) for piece in pieces)
            yield {"type": "signature_delta", "signature": block.signature}, ""
        case ToolBlock():
            yield {"type": "input_json_delta", "partial_json": ""}, ""
            yield from (({"type": "input_json_delta", "partial_json": piece}, piece) for piece in pieces)
        case _:
            assert_never(block)


def _split(text: str, count: int | None) -> list[str]:
    """The text in pieces at arbitrary places, always between the halves of an escaped surrogate pair."""
    if not text:
        return []
    wanted = count or min(MOST_DELTAS, max(3, len(text) // CHARS_PER_DELTA))
    chosen = random.Random(zlib.crc32(text.encode()))
    inside = range(1, len(text))
    cuts = set(chosen.sample(inside, min(wanted - 1, len(inside))))
    cuts.update(pair.end() for pair in SURROGATE_PAIR.finditer(text))
    return [text[start:end] for start, end in pairwise([0, *sorted(cuts), len(text)])]
