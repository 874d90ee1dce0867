from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.providers.sse import SseSplitter
from tests.unit.providers.streams import chunkings

LINE_ENDS = [b"\n", b"\r\n", b"\r"]


def events_of(chunks: list[bytes]) -> list[bytes]:
    """Feed the chunks and return all events."""
    splitter = SseSplitter()
    return [data for chunk in chunks for data in splitter.feed(chunk)]


@pytest.mark.parametrize("end", LINE_ENDS)
def test_every_line_end_of_the_standard_ends_a_line(end: bytes) -> None:
    """LF, CRLF and CR streams give the same events."""
    stream = end.join([b"event: a", b"data: 1", b"", b"data:2", b"", b""])

    assert events_of([stream]) == [b"1", b"2"]


def test_data_lines_of_one_event_are_joined() -> None:
    """Several data lines are one value, joined by line feeds, and a bare `data` line is an empty one."""
    assert events_of([b"data: a\ndata\ndata:  b\n\n"]) == [b"a\n\n b"]


def test_what_is_not_data_is_ignored() -> None:
    """Comments, ids, retry times, unknown fields and events without data produce nothing."""
    stream = b": comment\nid: 7\nretry: 10\nfoo: bar\ndataset: no\nevent: ping\n\ndata: x\n\n"

    assert events_of([stream]) == [b"x"]


def test_an_unfinished_event_is_not_handed_out() -> None:
    """An event the stream broke off in is no event."""
    assert events_of([b"data: whole\n\ndata: hal", b"f\n"]) == [b"whole"]


def test_an_event_is_handed_out_with_the_chunk_that_ends_it() -> None:
    """Nobody waits for the next event to see this one, with any line end."""
    for end in LINE_ENDS:
        assert SseSplitter().feed(b"data: now" + end + end) == [b"now"]


def test_a_byte_order_mark_is_dropped() -> None:
    """A byte order mark in front of the stream does not hide its first line."""
    assert events_of([b"\xef\xbb", b"\xbfdata: x\n\n"]) == [b"x"]


lines = st.sampled_from(
    [b"data: {}", b"data:x", b"data: \xc3\xa9", b"event: e", b": c", b"", b"", b"data", b"data: a\x0bb\xe2\x80\xa8c"]
)


@given(data=st.data(), parts=st.lists(st.tuples(lines, st.sampled_from(LINE_ENDS)), max_size=12))
def test_events_do_not_depend_on_the_chunks(data: st.DataObject, parts: list[tuple[bytes, bytes]]) -> None:
    """However a stream is cut, CRLF in two included, it holds the same events."""
    stream = b"".join(line + end for line, end in parts)

    assert events_of(data.draw(chunkings(stream))) == events_of([stream])


def test_one_long_line_in_tiny_chunks_takes_linear_time() -> None:
    """A megabyte that arrives byte by byte is joined once, not once per byte."""
    splitter = SseSplitter()
    started = time.process_time()
    for _ in range(1_000_000):
        splitter.feed(b"x")

    assert splitter.feed(b"\ndata: y\n\n") == [b"y"]
    assert time.process_time() - started < 10
