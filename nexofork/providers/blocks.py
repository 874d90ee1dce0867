"""One content block while it streams in: its start bytes, and what its deltas add.

Invariant: outside the values of the filled fields, the finished block is the start event's bytes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nexofork.core.reply import BLOCK_BYTES, ID_CHARACTERS, CutToolUse, ReplyBlock, check_json, check_size
from nexofork.core.spans import end_of_value, members_of, read_json, readable, skip_space
from nexofork.errors import BadJson

if TYPE_CHECKING:
    from nexofork.core.spans import Span

__all__ = ["OpenBlock"]


class OpenBlock:
    """Collects raw fragments and writes them into the block once, at its end."""

    __slots__ = ("_citations", "_fragments", "_replaced", "_size", "_start")

    def __init__(self, start: bytes) -> None:
        # Only the bytes: parsed, a block can take many times their memory, and thousands may be open.
        self._start = start
        self._fragments: dict[bytes, list[bytes]] = {}
        self._replaced: dict[str, bytes] = {}
        self._citations: list[bytes] = []
        self._size = len(start)

    def append(self, field: bytes, raw: bytes) -> None:
        """Add a fragment: the inside of a JSON string, still escaped.

        Raises:
            OversizedReply: The block is over `BLOCK_BYTES` with it, as for the other ways to add.
        """
        self._grow(raw)
        if field == b"signature":
            # The API sends a signature whole; its SDKs take the last one they see.
            self._replaced["signature"] = b'"' + raw + b'"'
            return
        fragments = self._fragments.get(field)
        if fragments is None:
            self._fragments[field] = [raw]
        else:
            fragments.append(raw)

    def replace(self, field: str, raw: bytes) -> None:
        """Set a field to a JSON value that came whole."""
        self._grow(raw)
        self._replaced[field] = raw

    def add_citation(self, raw: bytes) -> None:
        """Add one citation object."""
        self._grow(raw)
        self._citations.append(raw)

    def finish(self) -> ReplyBlock | CutToolUse:
        """Return the block, or the tool call whose input never became a JSON object.

        Raises:
            BadReply: The bytes do not make a block, or one that is too large.
        """
        text = readable(self._start)
        spans = {member.key: member.value for member in members_of(text, 0)}
        values = dict(self._replaced)
        for field in ("text", "thinking"):
            if fragments := self._fragments.get(field.encode()):
                values[field] = b'"' + self._inside(spans.get(field)) + b"".join(fragments) + b'"'
        if self._citations:
            values["citations"] = self._all_citations(spans.get("citations"))
        if (input_ := self._input()) is not None:
            check_json(input_)
            if not _is_object(input_):
                return self._cut(input_)
            values["input"] = input_
        elif "input" not in spans and read_json(self._start).get("type") == "tool_use":
            values["input"] = b"{}"
        return ReplyBlock.from_wire(self._filled(spans, values))

    def _grow(self, raw: bytes) -> None:
        self._size += len(raw)
        check_size("a content block with a number of bytes", self._size, BLOCK_BYTES)

    def _input(self) -> bytes | None:
        """The model's own JSON text, or None when no delta brought any."""
        raw = b"".join(self._fragments.get(b"partial_json", ()))
        if not raw:
            return None
        try:
            text: str = json.loads(b'"' + raw + b'"')
        except ValueError as exc:
            raise BadJson("of a tool's input holds a broken string", offset=0) from exc
        # Half of a surrogate pair has no UTF-8 form; inside JSON its escape means the same.
        return text.encode("utf-8", "backslashreplace")

    def _cut(self, partial: bytes) -> CutToolUse:
        value: dict[str, Any] = read_json(self._start)
        return CutToolUse(
            id=str(value.get("id", ""))[:ID_CHARACTERS],
            name=str(value.get("name", ""))[:ID_CHARACTERS],
            partial_input=partial.decode(),
        )

    def _inside(self, span: Span | None) -> bytes:
        """What the start event already had between the quotes of a string field."""
        if span is None or self._start[span.start : span.start + 1] != b'"':
            return b""
        return self._start[span.start + 1 : span.end - 1]

    def _all_citations(self, span: Span | None) -> bytes:
        before = b"" if span is None else self._start[span.start : span.end]
        known = [before[1:-1]] if before[:1] == b"[" and before[1:-1].strip() else []
        return b"[" + b",".join(known + self._citations) + b"]"

    def _filled(self, spans: dict[str, Span], values: dict[str, bytes]) -> bytes:
        start, at = self._start, 0
        out: list[bytes] = []
        for span, value in sorted((spans[key], value) for key, value in values.items() if key in spans):
            out += (start[at : span.start], value)
            at = span.end
        out.append(start[at:-1])
        out += (b',"' + key.encode() + b'":' + value for key, value in values.items() if key not in spans)
        out.append(b"}")
        return b"".join(out)


def _is_object(wire: bytes) -> bool:
    try:
        text = readable(wire)
        start = skip_space(text, 0)
        return text[start : start + 1] == "{" and skip_space(text, end_of_value(text, start)) == len(text)
    except BadJson:
        return False
