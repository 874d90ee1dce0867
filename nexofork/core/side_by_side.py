"""Walk two JSON values side by side, to the first byte by which they differ.

Bytes are compared first, values only where bytes differ: the same text in other escapes is the same value. A marker on
a block is passed over; a key of that name deeper down is somebody's data and is not.

Invariant: what is returned are offsets into the bodies as given.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from nexofork.core.layout import Layout, scan_request
from nexofork.core.spans import Span, items_of, members_of, read_json, readable
from nexofork.core.splice import drop, splice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexofork.core.layout import Block

__all__ = ["Found", "Side", "Walk", "shared_length"]

_TOKEN = re.compile(r"[^\\]+|\\u[dD][89abAB]..(?:\\u[dD][c-fC-F]..)?|\\u....|\\.", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two requests, mapped."""

    body: bytes
    text: str
    """The body in Latin-1: an index into it is a byte offset."""
    layout: Layout
    value: dict[str, Any]
    """The body parsed, for looking."""
    headers: Mapping[str, str]

    @classmethod
    def of(cls, body: bytes, headers: Mapping[str, str] | None = None) -> Side:
        """Map a body.

        Raises:
            BadRequestBody: It is not a Messages request.
        """
        layout = scan_request(body)
        lower = {name.lower(): value for name, value in (headers or {}).items()}
        return cls(body=body, text=readable(body), layout=layout, value=read_json(body), headers=lower)

    def raw(self, span: Span) -> bytes:
        """Return the bytes of a span."""
        return self.body[span.start : span.end]

    def bare(self, block: Block) -> bytes:
        """Return a block's bytes without its markers."""
        return _without(self.body, block.span, block.markers) if block.markers else self.raw(block.span)


class Found(NamedTuple):
    """A place where two values part: its path, and where it is on each side."""

    path: str
    at_a: Span
    at_b: Span


def shared_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return how long the common beginning of two strings is."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


class Walk:
    """Descends into two values side by side until it meets what differs."""

    def __init__(self, a: Side, b: Side) -> None:
        self._a = a
        self._b = b

    def block(self, one: Span, other: Span, path: str, *, nested: bool = False) -> Found | None:
        """Compare two blocks; a marker on them, or on a block inside a tool result, does not count."""
        if not (self._a.text[one.start] == self._b.text[other.start] == "{"):
            return self.value(one, other, path)
        return self._object(one, other, path, markers=True, nested=nested)

    def value(self, one: Span, other: Span, path: str) -> Found | None:
        """Compare two values; None where they are the same JSON with members in the same order."""
        if self._a.raw(one) == self._b.raw(other):
            return None
        signs = self._a.text[one.start], self._b.text[other.start]
        if signs == ("{", "{"):
            return self._object(one, other, path)
        if signs == ("[", "["):
            return self._array(one, other, path, self.value)
        if signs == ('"', '"'):
            return self._string(one, other, path)
        if (
            read_json(self._a.raw(one)) == read_json(self._b.raw(other))
            and signs[0] not in "tf"
            and signs[1] not in "tf"
        ):
            return None  # one number in two spellings
        shared = shared_length(self._a.raw(one), self._b.raw(other))
        return Found(path, Span(one.start + shared, one.end), Span(other.start + shared, other.end))

    def _object(
        self, one: Span, other: Span, path: str, *, markers: bool = False, nested: bool = False
    ) -> Found | None:
        ours, theirs = (
            [member for member in members_of(side.text, span.start) if not (markers and member.key == "cache_control")]
            for side, span in ((self._a, one), (self._b, other))
        )
        for mine, yours in zip(ours, theirs, strict=False):
            if mine.key != yours.key:
                return Found(path, Span(mine.key_start, one.end), Span(yours.key_start, other.end))
            name = f"{path}.{mine.key.encode('latin-1', 'replace').decode('utf-8', 'replace')}"
            inside = markers and not nested and mine.key == "content"
            if inside and self._a.text[mine.value.start] == self._b.text[yours.value.start] == "[":
                found = self._array(mine.value, yours.value, name, self._nested)
            else:
                found = self.value(mine.value, yours.value, name)
            if found is not None:
                return found
        if len(ours) == len(theirs):
            return None
        shared = min(len(ours), len(theirs))
        more, ends = (ours if len(ours) > shared else theirs), (one.end - 1, other.end - 1)
        name = f"{path}.{more[shared].key}"
        starts = [
            row[shared].key_start if len(row) > shared else end for row, end in zip((ours, theirs), ends, strict=True)
        ]
        return Found(name, Span(starts[0], one.end), Span(starts[1], other.end))

    def _nested(self, one: Span, other: Span, path: str) -> Found | None:
        return self.block(one, other, path, nested=True)

    def _array(self, one: Span, other: Span, path: str, compare: Any) -> Found | None:
        ours, theirs = items_of(self._a.text, one.start), items_of(self._b.text, other.start)
        for index, (mine, yours) in enumerate(zip(ours, theirs, strict=False)):
            found: Found | None = compare(mine, yours, f"{path}[{index}]")
            if found is not None:
                return found
        if len(ours) == len(theirs):
            return None
        shared = min(len(ours), len(theirs))
        starts = [
            row[shared].start if len(row) > shared else span.end - 1 for row, span in ((ours, one), (theirs, other))
        ]
        return Found(f"{path}[{shared}]", Span(starts[0], one.end), Span(starts[1], other.end))

    def _string(self, one: Span, other: Span, path: str) -> Found | None:
        raw = [side.raw(span)[1:-1].decode() for side, span in ((self._a, one), (self._b, other))]
        words = [json.loads(f'"{text}"', strict=False) for text in raw]
        if words[0] == words[1]:
            return None
        shared = shared_length(*words)
        at = [1 + _offset_of(text, shared) for text in raw]
        ours, theirs = self._a.raw(one)[at[0] :], self._b.raw(other)[at[1] :]
        more = shared_length(ours, theirs)  # inside one character or escape
        return Found(path, Span(one.start + at[0] + more, one.end), Span(other.start + at[1] + more, other.end))


def _offset_of(raw: str, count: int) -> int:
    """Return at which byte of a JSON string's inside the character number `count` starts."""
    at = 0
    for token in _TOKEN.finditer(raw):
        if count <= 0:
            break
        length = 1 if token[0].startswith("\\") else len(token[0])
        taken = min(length, count)
        count -= taken
        at = token.end() if taken == length else token.start() + taken
    return len(raw[:at].encode())


def _without(body: bytes, span: Span, removed: Sequence[Span]) -> bytes:
    edits = drop(Span(gap.start - span.start, gap.end - span.start) for gap in removed)
    return bytes(splice(body[span.start : span.end], edits))
