from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.core.spans import (
    Span,
    end_of_value,
    items_of,
    members_of,
    read_json,
    readable,
    skip_space,
    value_at,
)
from nexofork.errors import BadJson
from tests.strategies import Obj, examples, json_values, render


def problem_of(wire: bytes) -> str:
    """Return what is said about these bytes."""
    with pytest.raises(BadJson) as caught:
        end_of_value(readable(wire), 0)
    return caught.value.problem


@examples(100)
@given(value=json_values(), seed=st.none() | st.integers(0, 2**32), behind=st.sampled_from(["", " ", ",", "]", '"x"']))
def test_value_ends_where_its_last_byte_is(value: Any, seed: int | None, behind: str) -> None:
    """Whatever the spelling and whatever stands behind it, the span is exactly the value's own bytes."""
    wire = render([value], None if seed is None else Random(seed))

    text = readable(wire + behind.encode())

    assert end_of_value(text, 0) == len(wire)


@examples(100)
@given(members=st.lists(st.tuples(st.text(max_size=4), json_values()), max_size=4), seed=st.integers(0, 2**32))
def test_members_of_an_object_cover_its_keys_and_values(members: list[tuple[str, Any]], seed: int) -> None:
    """Every member is found in order, duplicates included; key and value offsets point at their own bytes."""
    wire = render(Obj(members), Random(seed))

    found = members_of(readable(wire), 0)

    pairs = json.loads(wire, object_pairs_hook=Obj)
    assert [_key_at(wire, member.key_start) for member in found] == [key for key, _ in pairs]
    values = [json.loads(wire[member.value.start : member.value.end], object_pairs_hook=Obj) for member in found]
    assert values == [value for _, value in pairs]


def _key_at(wire: bytes, start: int) -> str:
    key, _ = json.JSONDecoder().raw_decode(wire[start:].decode())
    return str(key)


@examples(100)
@given(items=st.lists(json_values(), max_size=4), seed=st.integers(0, 2**32))
def test_items_of_an_array_are_its_values(items: list[Any], seed: int) -> None:
    """Every item's span holds that item and nothing around it."""
    wire = render(items, Random(seed))

    spans = items_of(readable(wire), 0)

    found = [json.loads(wire[span.start : span.end], object_pairs_hook=Obj) for span in spans]
    assert found == json.loads(wire, object_pairs_hook=Obj)
    assert all(wire[span.start : span.end].strip() == wire[span.start : span.end] for span in spans)


def test_offsets_count_bytes_not_characters() -> None:
    """Characters of several bytes do not shift what comes after them."""
    wire = '{"é":"日本😀","b":[1]}'.encode()

    first, second = members_of(readable(wire), 0)

    assert wire[first.value.start : first.value.end] == '"日本😀"'.encode()
    assert wire[second.value.start : second.value.end] == b"[1]"


def test_key_spelt_with_escapes_is_the_same_key() -> None:
    r"""`m\u0065ssages` is `messages` to every JSON reader, so it is here."""
    assert members_of('{"m\\u0065ssages":1}', 0)[0].key == "messages"


def test_brackets_and_quotes_inside_strings_do_not_count() -> None:
    """A string may hold anything that looks like JSON."""
    text = r'["]}\"[{", "\\"]'

    assert items_of(text, 0) == [Span(1, 9), Span(11, 15)]


def test_skip_space_stops_at_what_json_does_not_call_space() -> None:
    """Only blank, tab, line feed and carriage return are white space in JSON."""
    assert skip_space(" \t\r\n\x0b", 0) == 4
    assert skip_space("\u00a0", 0) == 0
    assert skip_space("  ", 2) == 2


@pytest.mark.parametrize(
    "wire", [b"", b"[", b"[1", b"[1,", b'{"a', b'{"a"', b'{"a":', b'{"a":1', b'"abc', b'["a\\', b"[tru", b"[n", b"[-"]
)
def test_truncation_is_called_truncation(wire: bytes) -> None:
    """Whatever the place, JSON that ends too early is said to be truncated."""
    with pytest.raises(BadJson, match="truncated"):
        members_of(readable(wire), 0) if wire.startswith(b"{") else end_of_value(readable(wire), 0)


@pytest.mark.parametrize(
    ("wire", "offset", "said"),
    [
        (b"[1 2]", 3, "has '2'"),
        (b'{"a" 1}', 5, "has '1'"),
        (b"{1:2}", 1, "has '1'"),
        (b"[[[x]]]", 3, "has 'x'"),
        (b'["\x01"]', 2, "has '\\x01'"),
        (b'["\\x"]', 2, "has '\\\\'"),
        (b"[1,]", 3, "has ']'"),
        (b"[01]", 2, "has '1'"),
        (b"[+1]", 1, "has '+'"),
        (b"['a']", 1, 'has "\'"'),
    ],
)
def test_bad_json_names_the_sign_and_its_byte(wire: bytes, offset: int, said: str) -> None:
    """The error points at the byte that is wrong, not at the value around it."""
    with pytest.raises(BadJson) as caught:
        end_of_value(readable(wire), 0)

    assert caught.value.offset == offset
    assert said in caught.value.problem


@pytest.mark.parametrize("wire", [b'{"a":1 "b":2}', b'{"a":1,}', b"{,}", b'{"a"}', b'{"a":1]', b'{"a\x02":1}', b"[]"])
def test_walking_a_malformed_object_is_bad_json(wire: bytes) -> None:
    """A walk refuses what a reader would refuse."""
    with pytest.raises(BadJson):
        members_of(readable(wire), 0)


@pytest.mark.parametrize("wire", [b"[1 2]", b"[1,]", b"[,]", b"[1}", b"{}"])
def test_walking_a_malformed_array_is_bad_json(wire: bytes) -> None:
    """A walk refuses what a reader would refuse."""
    with pytest.raises(BadJson):
        items_of(readable(wire), 0)


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_constants_that_are_not_json_are_refused_by_name(name: str) -> None:
    """Python reads them; no server has to."""
    assert problem_of(f"[{name}]".encode()) == f"holds {name}, which is not JSON"


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deep_nesting_is_an_error_not_a_crash(opening: bytes) -> None:
    """A hundred thousand brackets are refused in plain words."""
    assert problem_of(opening * 100_000) == "is nested too deeply to read"


def test_bytes_that_are_not_utf8_are_refused_at_their_offset() -> None:
    """JSON on the wire is UTF-8."""
    with pytest.raises(BadJson, match="not UTF-8") as caught:
        readable(b'{"a":"\xff"}')

    assert caught.value.offset == 6


def test_encoded_surrogates_are_not_utf8() -> None:
    """The three bytes of half a pair are refused; its escape is not."""
    with pytest.raises(BadJson, match="not UTF-8"):
        readable(b'"\xed\xa0\x80"')

    assert value_at('"\\ud800"', 0) == ("\ud800", 8)


def test_number_of_any_length_is_walked_over() -> None:
    """An integer longer than Python would convert is only skipped."""
    assert end_of_value("9" * 10_000, 0) == 10_000


def test_read_json_takes_a_number_too_long_for_python() -> None:
    """Looking at a value never fails for the length of an integer in it."""
    assert read_json(b'{"n":' + b"9" * 5000 + b',"m":7}') == {"n": float("inf"), "m": 7}


@pytest.mark.parametrize("wire", [b"", b"{", b"[NaN]", b"\xff", b"1 2"])
def test_read_json_refuses_what_is_not_json(wire: bytes) -> None:
    """Everything that is not JSON is one kind of error."""
    with pytest.raises(ValueError, match=r".+"):
        read_json(wire)
