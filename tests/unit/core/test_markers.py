from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.core.layout import Block, Section, scan_request
from nexofork.core.markers import Marked, Markings, plan_markers, read_markings
from nexofork.core.spans import Span
from tests.strategies import examples, request_bodies
from tests.unit.core.judge import breakpoints, finds, parse


def block(section: Section = Section.MESSAGES, *, ttl: str | None = None, takes: bool = True) -> Block:
    """Return a block as the planner sees it."""
    return Block(
        section=section,
        span=Span(0, 0),
        kind="text" if takes else "thinking",
        message=0,
        ttl=ttl,
        markers=(Span(0, 0),) if ttl else (),
        insert_at=0 if takes else None,
    )


def markings(blocks: list[Block], write: Marked | None = None) -> Markings:
    """Return what a parent with these blocks marked."""
    held = {position: item.ttl for position, item in enumerate(blocks) if item.ttl}
    if write is None and held:
        write = Marked(position=max(held), ttl=held[max(held)])
    return Markings(blocks=tuple(blocks), held=held, write=write)


@examples(100)
@given(body=request_bodies())
def test_newest_entry_is_where_the_provider_wrote_last(body: bytes) -> None:
    """Explicit markers and automatic caching give the same last breakpoint as the provider's rules do."""
    expected = breakpoints(parse(body))

    write = read_markings(scan_request(body)).write

    assert (write.position if write else None) == (expected[-1] if expected else None)


BLOCKS = st.lists(st.booleans(), min_size=1, max_size=45)


@examples(200)
@given(data=st.data(), takes=BLOCKS, tail=BLOCKS, growing=st.booleans())
def test_plan_keeps_the_rules_for_any_row_of_blocks(
    data: st.DataObject, takes: list[bool], tail: list[bool], growing: bool
) -> None:
    """At most four markers, only where one can go, 1h before 5m, and the parent's entry found where it can be."""
    can = [position for position, fits in enumerate(takes) if fits]
    held = sorted(data.draw(st.lists(st.sampled_from(can), max_size=4, unique=True))) if can else []
    hours = data.draw(st.integers(0, len(held)))
    blocks = [block(takes=fits) for fits in takes]
    for order, position in enumerate(held):
        blocks[position] = block(ttl="1h" if order < hours else "5m")
    automatic = data.draw(st.none() | st.integers(max(held, default=0), len(takes) - 1))
    ttl = "5m" if hours < len(held) else "1h"
    parent = markings(blocks, None if automatic is None else Marked(position=automatic, ttl=ttl))
    count = len(takes)
    shareable = [count + index for index, fits in enumerate(tail) if fits]
    shared_end = data.draw(st.none() | st.sampled_from(shareable)) if shareable else None
    own_write = data.draw(st.none() | st.sampled_from(shareable)) if shareable and growing else None

    plan = plan_markers(parent, tail=tail, shared_end=shared_end, own_write=own_write, growing=growing)

    row = takes + tail
    assert len(plan.markers) <= 4
    assert all(row[position] for position in plan.markers)
    assert [plan.markers[position] for position in sorted(plan.markers)] == sorted(plan.markers.values())
    if parent.write is not None and not growing:
        at = parent.write.position
        assert plan.reads_parent == any(row[at : at + 20])
        assert plan.reads_parent == finds(at, list(plan.markers))
    if shared_end is not None:
        assert shared_end in plan.markers
    if growing and shareable:
        assert shareable[-1] in plan.markers
    if own_write is not None:
        assert own_write in plan.markers


def test_marker_stays_at_the_parents_write_however_far_the_tail_goes() -> None:
    """Twenty positions behind the write a marker at the end alone would not see it any more."""
    plan = plan_markers(markings([block(), block(ttl="5m")]), tail=[True] * 50, shared_end=51)

    assert plan.markers == {1: "5m", 51: "5m"}
    assert plan.reads_parent


@pytest.mark.parametrize(("distance", "expected"), [(19, {19: "1h"}), (20, {20: "1h", 19: "1h"})])
def test_lookback_counts_the_marker_as_the_first_of_twenty(distance: int, expected: dict[int, str]) -> None:
    """The shared end finds an unmarkable write 19 positions back; at 20 another marker has to be within reach."""
    parent = markings([block(takes=False)], Marked(position=0, ttl="1h"))

    plan = plan_markers(parent, tail=[True] * 30, shared_end=distance)

    assert plan.markers == expected
    assert plan.reads_parent


def test_unreachable_write_is_said_to_be_unread() -> None:
    """Nothing but thinking within reach: the plan does not pretend."""
    parent = markings([block(takes=False)], Marked(position=0, ttl="5m"))

    plan = plan_markers(parent, tail=[False] * 19 + [True], shared_end=20)

    assert plan.markers == {20: "5m"}
    assert not plan.reads_parent


def test_parent_without_markers_has_nothing_to_read() -> None:
    """The shared end is written with the default TTL."""
    plan = plan_markers(markings([block()]), tail=[True, True], shared_end=1)

    assert plan.markers == {1: "5m"}
    assert not plan.reads_parent


def test_spare_slots_go_to_what_lives_longest_then_to_system_tools_and_length() -> None:
    """With two slots left of five candidates, the one-hour entry and the system prompt stay."""
    parent = markings(
        [
            block(Section.TOOLS, ttl="1h"),
            block(Section.TOOLS, ttl="5m"),
            block(Section.SYSTEM, ttl="5m"),
            block(ttl="5m"),
            block(ttl="5m"),
        ]
    )

    plan = plan_markers(parent, tail=[True], shared_end=5)

    assert sorted(plan.markers) == [0, 2, 4, 5]


def test_growing_child_marks_its_end_and_its_last_write_first() -> None:
    """On later turns the moving tail, the own entry, the shared end and the parent's entry use the four slots."""
    parent = markings([block(Section.SYSTEM, ttl="1h"), block(ttl="5m")])

    plan = plan_markers(parent, tail=[True] * 10, shared_end=3, own_write=7, growing=True)

    assert plan.markers == {11: "5m", 7: "5m", 3: "5m", 1: "5m"}


def test_growing_child_whose_end_takes_no_marker_marks_the_block_before() -> None:
    """The last block of the tail that can be marked is."""
    plan = plan_markers(markings([block()]), tail=[True, True, False], shared_end=1, own_write=1, growing=True)

    assert plan.markers == {2: "5m", 1: "5m"}


@pytest.mark.parametrize(
    ("content", "control", "expected"),
    [
        ("hi", {"type": "ephemeral"}, Marked(position=0, ttl="5m")),
        ("hi", {"type": "ephemeral", "ttl": "1h"}, Marked(position=0, ttl="1h")),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": " "}], {}, Marked(position=0, ttl="5m")),
        ([{"type": "text", "text": "a"}, {"type": "thinking", "thinking": ""}], {}, Marked(position=0, ttl="5m")),
        ([{"type": "text", "text": "a"}], None, None),
    ],
)
def test_automatic_caching_marks_the_last_block_that_can_be_cached(
    content: Any, control: Any, expected: Marked | None
) -> None:
    """A string counts, thinking and empty text do not, and null is no marker."""
    tree = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": content}], "cache_control": control}

    assert read_markings(scan_request(json.dumps(tree).encode())).write == expected
