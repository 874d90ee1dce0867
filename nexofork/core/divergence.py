"""Find the first place where a later request stops being the earlier one.

Two bodies are walked side by side in prompt order: tools, system, messages, with each parameter before the part it
invalidates. Markers and whatever else a child may edit are passed over, and messages appended behind the earlier ones
are no difference: that is what a fork is. A difference in values comes before one in spelling alone (white space,
escapes), because only the former is sure to lose anything.

Invariant: offsets count bytes in the bodies as given, and point at the first byte that differs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexofork.core.layout import Section
from nexofork.core.side_by_side import Walk, shared_length
from nexofork.core.spans import Span, members_of, read_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nexofork.core.layout import Block, Layout, Message
    from nexofork.core.side_by_side import Side

__all__ = ["LOSES", "Difference", "differences"]

LOSES = {
    "model": ("tools", "system", "messages"),
    "version": ("tools", "system", "messages"),
    "betas": ("tools", "system", "messages"),
    "mcp_servers": ("tools", "system", "messages"),
    "tools": ("tools", "system", "messages"),
    "speed": ("system", "messages"),
    "output_format": ("system", "messages"),
    "citations": ("system", "messages"),
    "system": ("system", "messages"),
    "tool_choice": ("messages",),
    "thinking": ("messages",),
    "effort": ("messages",),
    "context_management": ("messages",),
    "images": ("messages",),
    "messages": ("messages",),
}
"""What a change loses, in the order in which changes are looked for: each before the part it invalidates."""

_DEFAULTS: dict[str, Any] = {"speed": "standard", "effort": "high", "tool_choice": {"type": "auto"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where two requests part."""

    dimension: str
    path: str
    """Such as ``system[1].text``; a header's name where it is no part of the body."""
    at_a: Span | None
    """From the first byte that differs to the end of the value it is in; None where there is nothing to point at."""
    at_b: Span | None
    leaf_a: Any = None
    """The value that differs, parsed; None where it is missing."""
    leaf_b: Any = None
    position: int = 0
    """The first cache position that is lost, counted in the earlier request."""
    respelt: bool = False
    """Whether both sides are the same JSON, spelt in different bytes."""
    reordered: bool = False
    """Whether both sides hold the same members in another order."""


def differences(a: Side, b: Side) -> Iterator[Difference]:
    """Yield the first difference of every dimension, in the order of `LOSES`; spelling alone comes last."""
    respelt: list[Difference] = []
    for dimension in LOSES:
        found = _difference(dimension, a, b)
        if found is None:
            continue
        if found.respelt:
            respelt.append(found)
        else:
            yield found
    yield from respelt


def _difference(dimension: str, a: Side, b: Side) -> Difference | None:
    match dimension:
        case "version":
            return _header(dimension, "anthropic-version", a, b)
        case "betas":
            return _header(dimension, "anthropic-beta", a, b)
        case "tools":
            return _in_row(a, b, a.layout.tools, b.layout.tools, Section.TOOLS, 0)
        case "system":
            return _in_row(a, b, a.layout.system, b.layout.system, Section.SYSTEM, len(a.layout.tools))
        case "messages":
            return _in_messages(a, b)
        case "images" | "citations":
            return _toggle(dimension, a, b)
    return _parameter(dimension, a, b)


def _first_lost(dimension: str, layout: Layout) -> int:
    """Return the first cache position that a changed parameter loses."""
    return {"tools": 0, "system": len(layout.tools)}.get(LOSES[dimension][0], len(layout.tools) + len(layout.system))


def _header(dimension: str, name: str, a: Side, b: Side) -> Difference | None:
    # A caller that gives the headers of one side only has said nothing about them.
    if not (a.headers and b.headers):
        return None
    values = [side.headers.get(name, "") for side in (a, b)]
    if dimension == "betas":
        values = [",".join(sorted({part.strip() for part in value.split(",") if part.strip()})) for value in values]
    if values[0] == values[1]:
        return None
    return Difference(
        dimension=dimension,
        path=f"header {name}",
        at_a=None,
        at_b=None,
        leaf_a=values[0] or None,
        leaf_b=values[1] or None,
    )


def _parameter(dimension: str, a: Side, b: Side) -> Difference | None:
    keys = {"effort": ("output_config", "effort"), "output_format": ("output_config", "format")}.get(
        dimension, (dimension,)
    )
    spans = [_member(side, keys) for side in (a, b)]
    leaves = [None if span is None else read_json(side.raw(span)) for side, span in zip((a, b), spans, strict=True)]
    if _effective(dimension, leaves[0]) == _effective(dimension, leaves[1]):
        return None
    path, at_a, at_b = ".".join(keys), spans[0], spans[1]
    if at_a is not None and at_b is not None and (found := Walk(a, b).value(at_a, at_b, path)):
        path, at_a, at_b = found
    return Difference(
        dimension=dimension,
        path=path,
        at_a=at_a,
        at_b=at_b,
        leaf_a=leaves[0],
        leaf_b=leaves[1],
        position=_first_lost(dimension, a.layout),
    )


def _effective(dimension: str, value: Any) -> Any:
    """Return a parameter's meaning: a default that is spelt out is the same as none."""
    if dimension == "thinking" and value == {"type": "disabled"}:
        return None
    return None if value == _DEFAULTS.get(dimension) or value in ([], {}) else value


def _member(side: Side, keys: Sequence[str]) -> Span | None:
    member = side.layout.member(keys[0])
    span = None if member is None else member.value
    for key in keys[1:]:
        if span is None or side.text[span.start] != "{":
            return None
        found = [inner.value for inner in members_of(side.text, span.start) if inner.key == key]
        span = found[-1] if found else None
    return span


def _toggle(dimension: str, a: Side, b: Side) -> Difference | None:
    """Compare whether there are any images, or any citations: the first one anywhere loses what came before it."""
    found = [next(_switched_on(dimension, side), None) for side in (a, b)]
    if (found[0] is None) == (found[1] is None):
        return None
    path, _ = next(place for place in found if place is not None)
    spans = [None if place is None else place[1] for place in found]
    return Difference(
        dimension=dimension,
        path=path,
        at_a=spans[0],
        at_b=spans[1],
        leaf_a=None if spans[0] is None else dimension,
        leaf_b=None if spans[1] is None else dimension,
        position=_first_lost(dimension, a.layout),
    )


def _switched_on(dimension: str, side: Side) -> Iterator[tuple[str, Span]]:
    word = '"image"' if dimension == "images" else '"citations"'
    if word not in side.text and "\\u00" not in side.text:
        return
    for index, message in enumerate(side.layout.messages):
        for number, block in enumerate(message.blocks):
            if block.kind == "string" or word not in side.text[block.span.start : block.span.end]:
                continue
            value = read_json(side.raw(block.span))
            inner = value.get("content")
            shown = [value, *(inner if isinstance(inner, list) else [])]
            if any(isinstance(one, dict) and _is_on(dimension, one) for one in shown):
                yield f"messages[{index}].content[{number}]", block.span


def _is_on(dimension: str, block: dict[str, Any]) -> bool:
    if dimension == "images":
        return block.get("type") == "image"
    config = block.get("citations")
    return (
        block.get("type") in ("document", "search_result") and isinstance(config, dict) and bool(config.get("enabled"))
    )


def _in_row(
    a: Side, b: Side, ours: Sequence[Block], theirs: Sequence[Block], section: Section, start: int
) -> Difference | None:
    """Compare tools or system blocks; one more at the end is a difference too, as messages follow."""
    respelt: Difference | None = None
    for index in range(max(len(ours), len(theirs))):
        one, other = _at(ours, index), _at(theirs, index)
        kinds = {block.kind for block in (one, other) if block}
        name = f"{section}[{index}]" if kinds != {"string"} else section.value
        found = _block(a, b, one, other, dimension=section.value, path=name, position=start + index)
        if found is not None and not found.respelt:
            return found
        respelt = respelt or found
    return respelt


def _in_messages(a: Side, b: Side) -> Difference | None:
    position = len(a.layout.tools) + len(a.layout.system)
    respelt: Difference | None = None
    theirs = b.layout.messages
    for index, message in enumerate(a.layout.messages):
        last = index == len(a.layout.messages) - 1
        other = theirs[index] if index < len(theirs) else None
        found = _message(a, b, message, other, index=index, position=position, last=last)
        if found is not None and not found.respelt:
            return found
        respelt = respelt or found
        position += len(message.blocks)
    return respelt


def _message(
    a: Side, b: Side, one: Message, other: Message | None, *, index: int, position: int, last: bool
) -> Difference | None:
    path = f"messages[{index}]"
    if other is None:
        end = b.layout.messages[-1].span.end
        return Difference(
            dimension="messages",
            path=path,
            at_a=one.span,
            at_b=Span(end, end),
            leaf_a=read_json(a.raw(one.span)),
            position=position,
        )
    if one.role != other.role:
        spans = [_member_of(side, message, "role") for side, message in ((a, one), (b, other))]
        found = Walk(a, b).value(spans[0], spans[1], f"{path}.role")
        assert found is not None, "roles differ"
        return Difference(
            dimension="messages",
            path=found.path,
            at_a=found.at_a,
            at_b=found.at_b,
            leaf_a=one.role,
            leaf_b=other.role,
            position=position,
        )
    respelt: Difference | None = None
    # The earlier request's last message may go on in the later one; every other one has to end where it did.
    count = len(one.blocks) if last else max(len(one.blocks), len(other.blocks))
    for number in range(count):
        ours, theirs = _at(one.blocks, number), _at(other.blocks, number)
        kinds = {block.kind for block in (ours, theirs) if block}
        name = f"{path}.content" + ("" if kinds == {"string"} else f"[{number}]")
        found_block = _block(a, b, ours, theirs, dimension="messages", path=name, position=position + number)
        if found_block is not None and not found_block.respelt:
            return found_block
        respelt = respelt or found_block
    return respelt


def _member_of(side: Side, message: Message, key: str) -> Span:
    return [member.value for member in members_of(side.text, message.span.start) if member.key == key][-1]


def _at(blocks: Sequence[Block], index: int) -> Block | None:
    return blocks[index] if index < len(blocks) else None


def _block(
    a: Side, b: Side, one: Block | None, other: Block | None, *, dimension: str, path: str, position: int
) -> Difference | None:
    if one is None or other is None:
        present, side = (other, b) if one is None else (one, a)
        assert present is not None, "one of the two is there"
        leaf = read_json(side.raw(present.span))
        return Difference(
            dimension=dimension,
            path=path,
            at_a=None if one is None else one.span,
            at_b=None if other is None else other.span,
            leaf_a=None if one is None else leaf,
            leaf_b=None if other is None else leaf,
            position=position,
        )
    if a.bare(one) == b.bare(other):
        return None
    found = Walk(a, b).block(one.span, other.span, path)
    if found is None:
        at_a, at_b = _first_byte(a, b, one, other)
        return Difference(dimension=dimension, path=path, at_a=at_a, at_b=at_b, position=position, respelt=True)
    at_a, at_b = found.at_a, found.at_b
    return Difference(
        dimension=dimension,
        path=found.path,
        at_a=at_a,
        at_b=at_b,
        leaf_a=_leaf(a, one, found.path, path),
        leaf_b=_leaf(b, other, found.path, path),
        position=position,
        reordered=_plain(a, one) == _plain(b, other),
    )


def _plain(side: Side, block: Block) -> Any:
    """Return a block parsed, without its markers."""
    return read_json(side.bare(block))


def _leaf(side: Side, block: Block, path: str, root: str) -> Any:
    """Return the value at a path inside a block; None where the path leads nowhere."""
    value = _plain(side, block)
    for name, index in re.findall(r"\.([^.\[\]]+)|\[(\d+)\]", path[len(root) :]):
        try:
            value = value[name] if name else value[int(index)]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _first_byte(a: Side, b: Side, one: Block, other: Block) -> tuple[Span, Span]:
    """Locate the first byte by which two spellings of one block differ."""
    bare = a.bare(one), b.bare(other)
    at = shared_length(*bare)
    return tuple(  # type: ignore[return-value]
        Span(_with_gaps(at, block), block.span.end) for block in (one, other)
    )


def _with_gaps(at: int, block: Block) -> int:
    """Return the offset in the body of a byte of the block without its markers."""
    offset = block.span.start + at
    for gap in sorted(block.markers):
        if gap.start <= offset:
            offset += gap.end - gap.start
    return min(offset, block.span.end)
