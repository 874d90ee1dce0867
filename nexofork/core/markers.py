"""Decide where a child's cache markers go.

A marker does two things: the request writes an entry there, and the provider looks for older entries at that position
and at the 19 before it. So a child wants a marker where the parent last wrote (else a long reply pushes that entry out
of sight), one at the last block all siblings share, and, once it is sure to have another turn, one at its own tail and
one where it wrote the turn before. There are four markers at most. The parent's others are kept as far as there is
room: they are what can still be read when the newest entry has expired.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.core.layout import Block, Layout, Section

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["LOOKBACK", "MAX_MARKERS", "TTL_S", "Marked", "MarkerPlan", "Markings", "plan_markers", "read_markings"]

MAX_MARKERS = 4
TTL_S = {"5m": 300.0, "1h": 3600.0}
"""How long an entry lives, from the start of the request that last wrote or read it."""
LOOKBACK = 20
"""Positions tried per marker, the marker's own included.

Runs of tool blocks may count as one; this is the strict count.
"""

_WORTH = {Section.SYSTEM: 2, Section.TOOLS: 1, Section.MESSAGES: 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """A marker at a cache position, counted over tools, system and messages."""

    position: int
    ttl: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Markings:
    """What the parent marked."""

    blocks: tuple[Block, ...]
    """All of the parent's cache positions."""
    held: dict[int, str]
    """TTL by position of every marker in the body."""
    write: Marked | None
    """The newest entry the parent's request wrote; None where it marked nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerPlan:
    """Where the markers of one request go."""

    markers: dict[int, str]
    """TTL by position; positions behind the parent's blocks are in the child's tail."""
    reads_parent: bool
    """Whether a marker lets the provider find the parent's newest entry.

    False where there is none, or where nothing within reach of it takes a marker.
    """


def read_markings(layout: Layout) -> Markings:
    """Return what a body marks; automatic caching counts as a marker on the last block that can be cached."""
    blocks = layout.blocks
    held = {position: block.ttl for position, block in enumerate(blocks) if block.ttl}
    write = None
    if held:
        last = max(held)
        write = Marked(position=last, ttl=held[last])
    if layout.automatic_ttl is not None:
        for position in range(len(blocks) - 1, -1, -1):
            block = blocks[position]
            if block.kind == "string" or block.insert_at is not None:
                write = Marked(position=position, ttl=block.ttl or layout.automatic_ttl)
                break
    return Markings(blocks=blocks, held=held, write=write)


def plan_markers(
    parent: Markings,
    *,
    tail: Sequence[bool],
    shared_end: int | None,
    own_write: int | None = None,
    growing: bool = False,
) -> MarkerPlan:
    """Plan the markers of one request.

    Args:
        parent: What the parent marked.
        tail: For every block behind the parent's, whether it takes a marker.
        shared_end: Position of the last block all siblings share, where it lies in the tail.
        own_write: Position of this child's newest own entry.
        growing: Whether the tail's end should be written, that is, whether another turn is to be expected.
    """
    blocks, write, count = parent.blocks, parent.write, len(parent.blocks)

    def takes_marker(position: int) -> bool:
        return tail[position - count] if position >= count else blocks[position].insert_at is not None

    wanted: list[int | None] = []
    if growing:
        ends = (position for position in range(count + len(tail) - 1, count - 1, -1) if takes_marker(position))
        wanted += [next(ends, None), own_write]
    reading = None if write is None else _reading_point(write.position, shared_end, count + len(tail), takes_marker)
    wanted += [shared_end, reading]
    spare = sorted(
        filter(takes_marker, parent.held), key=lambda position: _worth(blocks[position], position), reverse=True
    )
    markers: dict[int, str] = {}
    for position in (*wanted, *spare):
        if position is not None and len(markers) < MAX_MARKERS:
            markers.setdefault(position, parent.held.get(position) or (write.ttl if write else "5m"))
    reads = write is not None and any(0 <= position - write.position < LOOKBACK for position in markers)
    return MarkerPlan(markers=markers, reads_parent=reads)


def _reading_point(write: int, shared_end: int | None, end: int, takes_marker: Callable[[int], bool]) -> int | None:
    """Return a position whose marker finds the entry at `write`: itself, else the furthest one within reach."""
    if takes_marker(write):
        return write
    if shared_end is not None and shared_end - write < LOOKBACK:
        return shared_end
    reach = range(min(write + LOOKBACK, end) - 1, write, -1)
    return next((position for position in reach if takes_marker(position)), None)


def _worth(block: Block, position: int) -> tuple[bool, int, int]:
    """Rank the parent's other markers.

    What lives longer, then what more conversations keep warm, then what is longer.
    """
    return block.ttl == "1h", _WORTH[block.section], position
