"""Assemble a streamed message into the bytes its blocks would have had in one piece.

A child echoes its parent's reply, and the prompt cache and the signature of a thinking block are bound to bytes. So
nothing here decodes content and encodes it again: a block is the JSON of its ``content_block_start`` with the
accumulated fields filled in, text and thinking are joined as the escaped bytes they came in, and a tool's input is the
model's own JSON text. Fragments are collected and joined once, so time is linear in the stream.

Invariant: a block's wire bytes differ from those of its start event only in the values of the filled fields.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexofork.core.reply import (
    BLOCKS,
    EVENT_VALUES,
    JSON_DEPTH,
    JSON_VALUES,
    CutToolUse,
    Reply,
    check_json,
    check_size,
    short_text,
)
from nexofork.core.spans import members_of, readable
from nexofork.core.usage import BadUsage, Usage
from nexofork.errors import BadJson, BadReply
from nexofork.providers.blocks import OpenBlock
from nexofork.providers.diagnosis import failure_of_event, printable
from nexofork.providers.provider import BlockFinished, MessageFinished, MessageStarted, TextDelta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.core.reply import ReplyBlock
    from nexofork.core.spans import Span
    from nexofork.providers.provider import ProviderEvent

__all__ = ["Assembly", "ResponseIds"]

# Possessive, because a repeat that can be taken back remembers every escape of a long text.
_STRING = rb'"([^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+)"'
# Nearly all events of a stream have this shape, and one match is several times cheaper than parsing them.
_USUAL_DELTA = re.compile(
    rb'\{"type": ?"content_block_delta", ?"index": ?(\d{1,9}), ?"delta": ?'
    rb'\{"type": ?"(?:text|thinking|signature|input_json)_delta", ?'
    rb'"(text|thinking|signature|partial_json)": ?' + _STRING + rb" ?\} *\}\s*"
)
_HALF_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseIds:
    """Who answered, as the response headers say; other servers may say nothing."""

    request_id: str | None = None
    workspace_id: str | None = None
    organization_id: str | None = None


class Assembly:
    """One message in the making: feed it every event's data in order.

    Args:
        ids: Who answers.
        secrets: What an error must not repeat.
        billed: Whether impossible token counts are an error; else the bill is left out.
    """

    def __init__(self, ids: ResponseIds | None = None, *, secrets: Sequence[str] = (), billed: bool = False) -> None:
        self._ids = ids or ResponseIds()
        self._secrets = secrets
        self._billed = billed
        self._message_id: str | None = None
        self._model: str | None = None
        self._usage = Usage()
        self._stop_reason: str | None = None
        self._open: dict[int, OpenBlock] = {}
        self._done: dict[int, ReplyBlock] = {}
        self._cut: CutToolUse | None = None
        self._half_pair = b""
        self._stopped = False
        self._values = 0
        self._read_values = 0

    @property
    def reply(self) -> Reply | None:
        """The message, once it is whole.

        It is whole at ``message_stop``; also when only that last event is missing, because then everything that was
        paid for has arrived.
        """
        if not self._stopped and (self._stop_reason is None or self._open):
            return None
        return Reply(
            blocks=tuple(self._done[index] for index in sorted(self._done)),
            stop_reason=self._stop_reason,
            message_id=self._message_id,
            model=self._model,
            usage=self._usage,
            truncated_tool_use=self._cut,
        )

    def feed(self, data: bytes) -> ProviderEvent | None:
        """Take one event and return what a watcher should know of it, if anything.

        Pings and unknown events and deltas are ignored, as the API asks its clients to.

        Raises:
            ProviderError: The event is an ``error``.
            BadJson: The event is not JSON.
            BadReply: A block came out malformed.
            OversizedReply: The answer is larger than any model's.
            BadUsage: The token counts cannot be true.
        """
        if usual := _USUAL_DELTA.fullmatch(data):
            return self._append(int(usual[1]), usual[2], usual[3])
        event = self._parsed(data)
        match event.get("type"):
            case "content_block_delta":
                return self._unusual_delta(event, data)
            case "content_block_start":
                self._start_block(event, data)
            case "content_block_stop":
                return self._finish_block(event.get("index"))
            case "message_start":
                return self._start_message(event)
            case "message_delta":
                self._end_of_message(event)
            case "message_stop":
                return self._finish_message()
            case "error":
                raise failure_of_event(event, request_id=self._ids.request_id, secrets=self._secrets)
        return None

    def _parsed(self, data: bytes) -> dict[str, Any]:
        # Counted over all events: reading them is what costs time.
        self._read_values += check_json(data, depth=JSON_DEPTH + 2)
        check_size("events with a number of JSON values", self._read_values, EVENT_VALUES)
        try:
            return _dict(json.loads(data.decode()))
        except (ValueError, RecursionError) as exc:
            raise BadJson("of a streamed event cannot be read", offset=getattr(exc, "pos", 0)) from exc

    def _start_message(self, event: dict[str, Any]) -> MessageStarted:
        message = _dict(event.get("message"))
        self._message_id = _plain_text(message.get("id"))
        self._model = _plain_text(message.get("model"))
        self._usage = self._read_usage(message.get("usage"))
        return MessageStarted(
            message_id=self._message_id or "",
            model=self._model or "",
            usage=self._usage,
            workspace_id=self._ids.workspace_id,
            organization_id=self._ids.organization_id,
            request_id=self._ids.request_id,
            diagnostics=_dict(message["diagnostics"]) if "diagnostics" in message else None,
        )

    def _start_block(self, event: dict[str, Any], data: bytes) -> None:
        index = event.get("index")
        if isinstance(index, int) and isinstance(event.get("content_block"), dict):
            span = _spans(data)["content_block"]
            self._open[index] = OpenBlock(data[span.start : span.end])
            check_size("a number of content blocks", len(self._open) + len(self._done), BLOCKS)
            self._half_pair = b""

    def _append(self, index: int, field: bytes, raw: bytes) -> TextDelta | None:
        block = self._open.get(index)
        if block is None:
            return None
        block.append(field, raw)
        return self._visible(raw) if field == b"text" else None

    def _visible(self, raw: bytes) -> TextDelta | None:
        """Decode for the eye; half of a surrogate pair waits for its other half in the next delta."""
        raw = self._half_pair + raw
        self._half_pair = b""
        if raw[-6:-4] == b"\\u" and _HALF_PAIR.fullmatch(raw, len(raw) - 6) and not _ends_escaped(raw[:-6]):
            self._half_pair = raw[-6:]
            raw = raw[:-6]
        text = _unescaped(raw)
        return TextDelta(text=text) if text else None

    def _unusual_delta(self, event: dict[str, Any], data: bytes) -> TextDelta | None:
        index, delta = event.get("index"), _dict(event.get("delta"))
        block = self._open.get(index) if isinstance(index, int) else None
        if block is None or not isinstance(index, int):
            return None
        spans = _spans(data, "delta")
        raw = {key: data[span.start : span.end] for key, span in spans.items()}
        match delta:
            case {"type": "text_delta", "text": str()}:
                return self._append(index, b"text", raw["text"][1:-1])
            case {"type": "thinking_delta", "thinking": str()}:
                block.append(b"thinking", raw["thinking"][1:-1])
            case {"type": "input_json_delta", "partial_json": str()}:
                block.append(b"partial_json", raw["partial_json"][1:-1])
            case {"type": "signature_delta", "signature": str()}:
                block.replace("signature", raw["signature"])
            case {"type": "citations_delta", "citation": dict()}:
                block.add_citation(raw["citation"])
            case {"type": "compaction_delta"}:
                for key in ("content", "encrypted_content"):
                    if key in raw:
                        block.replace(key, raw[key])
        return None

    def _finish_block(self, index: object) -> BlockFinished | None:
        if not isinstance(index, int) or index not in self._open:
            return None
        finished = self._open.pop(index).finish()
        if isinstance(finished, CutToolUse):
            self._cut = self._cut or finished
            return None
        if finished.kind == "tool_use" and not str(finished.value.get("id")).isprintable():
            # It is sent back as it came, so it cannot be mended; half a surrogate pair fits no message.
            raise BadReply("has a tool call with an id that cannot be printed", fix="Check the server.")
        self._done[index] = finished
        self._values += check_json(finished.wire)
        check_size("a number of JSON values", self._values, JSON_VALUES)
        return BlockFinished(index=index, block=finished)

    def _end_of_message(self, event: dict[str, Any]) -> None:
        self._stop_reason = _plain_text(_dict(event.get("delta")).get("stop_reason")) or self._stop_reason
        self._usage = self._read_usage(event.get("usage"))

    def _read_usage(self, usage: object) -> Usage:
        try:
            return Usage.billed(usage, base=self._usage)
        except BadUsage:
            if self._billed:
                raise
            return Usage()

    def _finish_message(self) -> MessageFinished:
        for index in tuple(self._open):
            self._finish_block(index)
        self._stopped = True
        reply = self.reply
        assert reply is not None
        return MessageFinished(reply=reply)


def _ends_escaped(raw: bytes) -> bool:
    """Whether the next character is escaped by a backslash at the end."""
    return (len(raw) - len(raw.rstrip(b"\\"))) % 2 == 1


def _unescaped(raw: bytes) -> str:
    try:
        text = raw.decode()
        if "\\" not in text:
            return text
        text = str(json.loads(f'"{text}"'))
    except ValueError as exc:
        raise BadJson("of a streamed event holds a broken string", offset=0) from exc
    # A lone surrogate cannot be shown or published; the wire bytes keep it.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _spans(data: bytes, *path: str) -> dict[str, Span]:
    """Where the members of the object at `path` are in `data`."""
    text = readable(data)
    start = text.index("{")
    for step in path:
        start = next(member.value.start for member in reversed(members_of(text, start)) if member.key == step)
    return {member.key: member.value for member in members_of(text, start)}


def _plain_text(value: object) -> str | None:
    """Return an id, model or stop reason as ledgers, logs and terminals can take it."""
    text = short_text(value)
    return text and printable(text)


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
