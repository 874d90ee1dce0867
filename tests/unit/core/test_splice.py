from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.core.layout import scan_request
from nexofork.core.spans import Span
from nexofork.core.splice import EDITABLE, Edit, drop, marker, set_member, splice, without_editable
from tests.strategies import examples, request_bodies
from tests.unit.core.judge import drop_editable, marker_ttls, parse, raw_tree

BODY = b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"hi"}] }'


@examples(100)
@given(body=st.binary(min_size=1, max_size=60), data=st.data())
def test_splice_changes_what_the_edits_say_and_nothing_else(body: bytes, data: st.DataObject) -> None:
    """Every byte outside the edits is the body's own, in its order."""
    bounds = sorted(data.draw(st.lists(st.integers(0, len(body)), min_size=2, max_size=6)))
    pairs = list(zip(bounds[::2], bounds[1::2], strict=False))
    edits = [Edit(start, end, data.draw(st.binary(max_size=3))) for start, end in dict(pairs).items()]

    result = bytes(splice(body, data.draw(st.permutations(edits))))

    expected, at = b"", 0
    for edit in sorted(edits):
        expected, at = expected + body[at : edit.start] + edit.new, edit.end
    assert result == expected + body[at:]


def test_edits_at_one_place_keep_their_order() -> None:
    """Two insertions at the same offset come out as they were given."""
    assert bytes(splice(b"ad", [Edit(1, 1, b"b"), Edit(1, 1, b"c")])) == b"abcd"


def test_insertion_behind_a_deletion_that_ends_there() -> None:
    """A marker may be put where another was just taken away."""
    assert bytes(splice(b"abcd", [Edit(3, 3, b"X"), Edit(1, 3, b"")])) == b"aXd"


def test_overlapping_edits_are_a_programming_error() -> None:
    """They are never applied half."""
    with pytest.raises(AssertionError, match="overlap"):
        splice(b"abcd", [Edit(0, 3, b""), Edit(2, 4, b"")])


def test_splice_of_nothing_is_the_body() -> None:
    """No edits, no change."""
    assert bytes(splice(BODY, [])) == BODY
    assert drop([Span(1, 2)]) == [Edit(1, 2, b"")]


@pytest.mark.parametrize(
    ("ttl", "wire"),
    [
        ("5m", b',"cache_control":{"type":"ephemeral"}'),
        ("1h", b',"cache_control":{"type":"ephemeral","ttl":"1h"}'),
    ],
)
def test_marker_bytes(ttl: str, wire: bytes) -> None:
    """The two markers, byte for byte."""
    assert marker(ttl) == wire


def test_missing_member_is_added_behind_the_last_one() -> None:
    """Nothing in front of it moves."""
    edits = set_member(scan_request(BODY), "stream", b"true")

    assert bytes(splice(BODY, edits)) == BODY[:-2] + b',"stream":true }'


def test_present_member_is_replaced_in_place_each_time_it_occurs() -> None:
    """A reader that took the first of two would see the new value too."""
    body = b'{"stream" : false,' + BODY[1:-2] + b', "stre\\u0061m":null}'

    edits = set_member(scan_request(body), "stream", b"true")

    assert bytes(splice(body, edits)) == b'{"stream" : true,' + BODY[1:-2] + b', "stre\\u0061m":true}'


@examples(100)
@given(body=request_bodies())
def test_stripping_takes_away_exactly_what_is_editable(body: bytes) -> None:
    """A parser of our own, dropping the same members, gets the same tree; no marker is left."""
    bare = without_editable(body)

    assert drop_editable(raw_tree(bare)) == drop_editable(raw_tree(body))
    document = parse(bare)
    assert not set(EDITABLE) & document.keys()
    assert marker_ttls(document) == []


@examples(80)
@given(body=request_bodies())
def test_adding_what_is_editable_changes_nothing_once_it_is_stripped(body: bytes) -> None:
    """Stream, limit, diagnostics and markers may come and go without a trace."""
    layout = scan_request(body)
    edits = set_member(layout, "stream", b"true") + set_member(layout, "max_tokens", b"0")
    edits += set_member(layout, "diagnostics", b"null")
    for block in layout.blocks:
        if block.insert_at is not None and not block.markers:
            edits.append(Edit(block.insert_at, block.insert_at, marker("5m")))

    edited = bytes(splice(body, edits))

    assert edited != body
    assert without_editable(edited) == without_editable(body)


def test_nested_member_of_an_editable_name_is_not_editable() -> None:
    """`stream` in metadata or `cache_control` in a tool's arguments are content."""
    body = b'{"metadata":{"stream":1},"tools":[{"name":"t","input_schema":{"cache_control":{}}}],' + BODY[1:]

    assert without_editable(body) == body.replace(b'"max_tokens":1,', b"")
