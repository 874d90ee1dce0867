"""An assistant message as the bytes it came in.

Echoing a parsed reply back reorders its keys, and a thinking block is bound to its exact bytes, so a reply is kept as
wire bytes, block by block; the parsed view next to them is for looking only.

A reply comes from a server that may be broken or hostile, so its size has limits. They are far above what a model can
write in one answer, and keep one answer from taking a host's memory.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nexofork.core.spans import end_of_value, items_of, members_of, read_json, readable, skip_space
from nexofork.core.usage import SUM_TOKENS, BadUsage, Usage
from nexofork.errors import BadJson, BadReply

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "BLOCKS",
    "BLOCK_BYTES",
    "EVENT_VALUES",
    "ID_CHARACTERS",
    "JSON_DEPTH",
    "JSON_VALUES",
    "REPLY_BYTES",
    "CutToolUse",
    "OversizedReply",
    "Reply",
    "ReplyBlock",
    "ToolUse",
    "check_json",
    "check_size",
    "short_text",
]

REPLY_BYTES = 64 * 2**20
"""The largest body of one answer, decoded. 128,000 tokens, one event each, need about 20 MB."""
BLOCK_BYTES = 16 * 2**20
"""The largest line and event of a stream, and the largest content block."""
BLOCKS = 10_000
"""The most content blocks of one answer."""
JSON_DEPTH = 200
"""How deep one JSON value may be nested."""
JSON_VALUES = 250_000
"""How many JSON keys and values the blocks of one answer may hold; parsed, each takes up to 250 bytes."""
EVENT_VALUES = 16 * JSON_VALUES
"""How many JSON keys and values the events of one answer may hold together; 128,000 tokens need 2 million at most."""
ID_CHARACTERS = 256
"""The longest id, model name or stop reason."""

# What a message adds to the depth and the number of values of its blocks.
_ENVELOPE = 100
_MARKS = re.compile(rb'[\[\]{},]|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)


class OversizedReply(BadReply):
    """A reply that is larger than any model writes."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, fix=_PASS_WHOLE)


def check_size(what: str, size: int, most: int) -> None:
    """Refuse a part of a reply that is too large.

    Raises:
        OversizedReply: `size` is over `most`.
    """
    if size > most:
        raise OversizedReply(f"has {what} over the limit of {most:,}")


def check_json(wire: bytes, *, part: str = "", depth: int = JSON_DEPTH, values: int = JSON_VALUES) -> int:
    """Refuse JSON that is nested too deeply or would take far more memory parsed than as bytes.

    Args:
        wire: The JSON.
        part: How an error names it: ``has a content block that``, or nothing for the whole reply.
        depth: How deep it may be nested.
        values: How many values it may hold.

    Returns:
        About how many values it holds.

    Raises:
        OversizedReply: It is deeper than `depth` or holds more than `values`.
    """
    count = level = 0
    for found in _MARKS.finditer(wire):
        mark = wire[found.start()]
        if mark in b"]}":
            level -= 1
            continue
        count += 1
        level += mark in b"[{"
        if level > depth:
            raise OversizedReply(f"{part}is nested too deeply to read: over {depth} levels")
        if count > values:
            raise OversizedReply(f"{part}holds over {values:,} JSON values")
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """A tool call the model made."""

    id: str
    name: str
    input: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutToolUse:
    """A tool call whose input ended before it was a JSON object; it cannot be run and must not be sent again."""

    id: str
    name: str
    partial_input: str
    """The input as far as it came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyBlock:
    """One content block of a reply."""

    wire: bytes
    """The block's JSON as received or assembled; this is what is sent again."""
    value: dict[str, Any] = field(repr=False)
    """The same, parsed for looking."""

    @property
    def kind(self) -> str:
        """The block's ``type``."""
        kind = self.value.get("type")
        return kind if isinstance(kind, str) else ""

    @classmethod
    def from_wire(cls, wire: bytes) -> ReplyBlock:
        """Read one block.

        Raises:
            BadReply: The bytes are not a JSON object with a ``type``.
        """
        check_json(wire, part="has a content block that ")
        try:
            value = read_json(wire)
        except (ValueError, RecursionError) as exc:
            raise BadReply("has a content block that is not JSON", fix=_PASS_WHOLE) from exc
        if not isinstance(value, dict) or not isinstance(value.get("type"), str):
            raise BadReply("has a content block without a `type`", fix=_PASS_WHOLE)
        if value["type"] == "tool_use":
            short_text(value.get("id"))
        return cls(wire=wire.strip(b" \t\r\n"), value=value)


_PASS_WHOLE = "Pass the API's response, or its `content` array, as it was received."


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A complete assistant message."""

    blocks: tuple[ReplyBlock, ...]
    stop_reason: str | None = None
    message_id: str | None = None
    model: str | None = None
    usage: Usage = field(default_factory=Usage)
    truncated_tool_use: CutToolUse | None = None
    """The tool call that was cut off, usually by ``max_tokens``; it is not among the blocks."""

    @property
    def content(self) -> bytes:
        """The content array to send again."""
        return b"[" + b",".join(block.wire for block in self.blocks) + b"]"

    def to_wire(self) -> bytes:
        """Return the message in the API's form, its content as the bytes it came in; `from_response` reads it."""
        meta = {
            "id": self.message_id,
            "model": self.model,
            "role": "assistant",
            "stop_reason": self.stop_reason,
            "usage": self.usage.to_compact_wire(),
        }
        meta = {key: value for key, value in meta.items() if value}
        return json.dumps(meta, separators=(",", ":")).encode()[:-1] + b',"content":' + self.content + b"}"

    @property
    def text(self) -> str:
        """The text blocks, joined."""
        return "".join(str(block.value.get("text", "")) for block in self.blocks if block.kind == "text")

    @property
    def tool_uses(self) -> tuple[ToolUse, ...]:
        """The client tool calls, in order.

        Raises:
            BadReply: A ``tool_use`` lacks its id, name or input.
        """
        return tuple(_tool_use(block.value) for block in self.blocks if block.kind == "tool_use")

    @classmethod
    def from_response(
        cls, response: bytes | str | dict[str, Any] | list[Any], *, usage_of: Callable[[Any], Usage] | None = None
    ) -> Reply:
        """Read an API response or a bare content array; bytes keep their exact form.

        Args:
            response: What was received.
            usage_of: Reads its ``usage``; by default a bill that cannot be true is left out.

        Raises:
            BadReply: It is neither, or a block is malformed, or it is too large.
        """
        try:
            if isinstance(response, (dict, list)):
                response = json.dumps(response, ensure_ascii=False, separators=(",", ":"))
            wire = response.encode("utf-8", "backslashreplace") if isinstance(response, str) else response
        except (TypeError, ValueError, RecursionError) as exc:
            raise BadReply(f"cannot be serialised: {exc}", fix=_PASS_WHOLE) from exc
        try:
            return cls._from_wire(wire, usage_of or _lenient_usage)
        except BadJson as exc:
            raise BadReply(f"{exc.problem} at byte {exc.offset}", fix=_PASS_WHOLE) from exc

    @classmethod
    def _from_wire(cls, wire: bytes, usage_of: Callable[[Any], Usage]) -> Reply:
        check_size("a number of bytes", len(wire), REPLY_BYTES)
        check_json(wire, depth=JSON_DEPTH + _ENVELOPE, values=JSON_VALUES + BLOCKS + _ENVELOPE)
        text = readable(wire)
        start = skip_space(text, 0)
        end = end_of_value(text, start)
        if skip_space(text, end) != len(text):
            raise BadReply(f"has something behind its JSON at byte {end}", fix=_PASS_WHOLE)
        if text[start] == "[":
            return cls(blocks=_blocks(wire, text, start))
        if text[start] != "{":
            raise BadReply("is neither an API response nor a content array", fix=_PASS_WHOLE)
        spans = {member.key: member.value for member in members_of(text, start)}
        content = spans.get("content")
        if content is None or text[content.start] != "[":
            raise BadReply("has no `content` array", fix=_PASS_WHOLE)
        meta = {key: read_json(wire[span.start : span.end]) for key, span in spans.items() if key in _META}
        if meta.get("role", "assistant") != "assistant":
            raise BadReply(f"has the role {str(meta['role'])[:40]!r}", fix="Pass the assistant's message.")
        return cls(
            blocks=_blocks(wire, text, content.start),
            stop_reason=short_text(meta.get("stop_reason")),
            message_id=short_text(meta.get("id")),
            model=short_text(meta.get("model")),
            usage=usage_of(meta.get("usage")),
        )


_META = frozenset({"id", "model", "role", "stop_reason", "usage"})


def _lenient_usage(usage: object) -> Usage:
    """Return a bill; one that cannot be true is as good as none."""
    try:
        return Usage.billed(usage, most=SUM_TOKENS)
    except BadUsage:
        return Usage()


def _blocks(wire: bytes, text: str, start: int) -> tuple[ReplyBlock, ...]:
    spans = items_of(text, start)
    check_size("a number of content blocks", len(spans), BLOCKS)
    return tuple(ReplyBlock.from_wire(wire[span.start : span.end]) for span in spans)


def short_text(value: object) -> str | None:
    """Return an id, model name or stop reason; None for anything but text.

    Raises:
        OversizedReply: It is over `ID_CHARACTERS`.
    """
    if not isinstance(value, str):
        return None
    check_size("an id, model or stop reason with a number of characters", len(value), ID_CHARACTERS)
    return value


def _tool_use(value: dict[str, Any]) -> ToolUse:
    match value:
        case {"id": str(id_), "name": str(name), "input": dict(input_)} if id_:
            return ToolUse(id=id_, name=name, input=input_)
    raise BadReply("has a tool_use without id, name or input object", fix=_PASS_WHOLE)
