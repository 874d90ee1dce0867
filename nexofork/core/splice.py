"""Grow a recorded request body without touching the bytes that were there.

A child's body is the parent's body with new messages inserted before the bracket that closes ``messages``. Besides
that only four things may be edited: ``cache_control`` markers, ``stream``, ``max_tokens`` (for a pre-warm) and
``diagnostics``; none of them is part of the cached prompt. With these stripped, parent and child are equal byte for
byte on both sides of the insertion; `without_editable` is that comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nexofork.core.layout import Layout, removal_spans, scan_request
from nexofork.core.rope import Rope

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nexofork.core.spans import Span

__all__ = ["EDITABLE", "Edit", "drop", "marker", "set_member", "splice", "without_editable"]

EDITABLE = ("cache_control", "stream", "max_tokens", "diagnostics")
"""The top-level members that a child may change; on blocks it is ``cache_control`` alone."""


class Edit(NamedTuple):
    """Replace ``body[start:end]`` by `new`."""

    start: int
    end: int
    new: bytes


def drop(spans: Iterable[Span]) -> list[Edit]:
    """Return edits that delete the spans."""
    return [Edit(span.start, span.end, b"") for span in spans]


def marker(ttl: str) -> bytes:
    """Return a ``cache_control`` member to insert behind an object's last value."""
    if ttl == "1h":
        return b',"cache_control":{"type":"ephemeral","ttl":"1h"}'
    return b',"cache_control":{"type":"ephemeral"}'


def set_member(layout: Layout, key: str, value: bytes) -> list[Edit]:
    """Return edits that give a top-level member this value, adding it behind the last one where it is missing."""
    present = [member for member in layout.members if member.key == key]
    if present:
        return [Edit(*member.value, value) for member in present]
    at = layout.members[-1].value.end
    return [Edit(at, at, b',"' + key.encode() + b'":' + value)]


def splice(body: bytes, edits: Iterable[Edit]) -> Rope:
    """Return the body with the edits applied, as views into the unchanged bytes.

    Edits may touch but not overlap; two at the same place are applied in the order given.
    """
    view = memoryview(body)
    pieces: list[bytes | memoryview] = []
    at = 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        assert edit.start >= at, "edits overlap"
        pieces += [view[at : edit.start], edit.new]
        at = edit.end
    pieces.append(view[at:])
    return Rope(pieces)


def without_editable(body: bytes) -> bytes:
    """Return the body without anything a child may edit: what parent and child have to share."""
    layout = scan_request(body)
    spans = [span for block in layout.blocks for span in block.markers]
    spans += removal_spans(layout.members, EDITABLE)
    return bytes(splice(body, drop(spans)))
