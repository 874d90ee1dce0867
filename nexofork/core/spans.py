"""Find where things are inside JSON bytes, without ever writing JSON.

A prompt cache is keyed by the bytes that were sent, so the parent's bytes must be resent as they are. What this
module answers is only *where* a value starts and ends. It reads the bytes as Latin-1: JSON's own characters are all
ASCII, UTF-8 never uses ASCII bytes inside a longer character, and so an index into the text is an index into the bytes
while CPython's C scanner does the walking.

Invariant: for every span returned, ``body[span.start : span.end]`` is one complete JSON value.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

from nexofork.errors import BadJson

if TYPE_CHECKING:
    from collections.abc import Callable

    VisitMember: TypeAlias = Callable[[str, int, int], int]
    VisitItem: TypeAlias = Callable[[int], int]

__all__ = [
    "Member",
    "Span",
    "end_of_value",
    "items_of",
    "members_of",
    "read_json",
    "readable",
    "skip_space",
    "value_at",
    "walk_array",
    "walk_object",
]

_TRUNCATED = "ends too early (truncated JSON)"
_BLANKS = re.compile(r"[ \t\n\r]*").match
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*").match
_SIGN = re.compile(r"[ \t\n\r]*([,}\]])[ \t\n\r]*").match


class Span(NamedTuple):
    """A half-open range of byte offsets."""

    start: int
    end: int


class Member(NamedTuple):
    """One ``"key": value`` of an object."""

    key: str
    """The key with its escapes resolved; only ASCII keys are meaningful, others come as Latin-1."""
    key_start: int
    """Offset of the key's opening quote."""
    value: Span


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"holds {name}, which is not JSON")


# Numbers are only skipped, so a long integer need not (and beyond 4,300 digits cannot) become an int.
_decoder = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=_refuse_constant)
_reader = json.JSONDecoder(parse_constant=_refuse_constant)
_long_reader = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=float)
_scan = _decoder.scan_once  # type: ignore[attr-defined]


def readable(body: bytes) -> str:
    """Return the bytes as text in which a character's index is its byte offset.

    Raises:
        BadJson: The bytes are not UTF-8, which JSON on the wire has to be.
    """
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise BadJson("is not UTF-8", offset=exc.start) from exc
    return body.decode("latin-1")


def read_json(wire: bytes) -> Any:
    """Return one JSON value parsed, for looking; an integer too long for Python comes as a float.

    Raises:
        ValueError: The bytes are not JSON.
        RecursionError: They are nested too deeply.
    """
    text = wire.decode()
    try:
        return _reader.decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer beyond sys.get_int_max_str_digits(), or not JSON after all
        return _long_reader.decode(text)


def skip_space(text: str, at: int) -> int:
    """Return the offset of the first character at or after `at` that is not JSON white space."""
    match = _BLANKS(text, at)
    assert match is not None
    return match.end()


def value_at(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value that starts at `start`, for looking, and the offset just behind it.

    Strings in it are Latin-1 readings of the bytes, and numbers are replaced by something of no meaning: it is good for
    comparing with ASCII words and for telling types apart, not for more.

    Raises:
        BadJson: No complete JSON value starts there.
    """
    try:
        value, end = _scan(text, start)
    except StopIteration as exc:
        raise BadJson(_what_is_at(text, exc.value), offset=exc.value) from exc
    except json.JSONDecodeError as exc:
        raise _bad_json(text, exc) from exc
    except RecursionError as exc:
        raise BadJson("is nested too deeply to read", offset=start) from exc
    except ValueError as exc:
        raise BadJson(str(exc), offset=start) from exc
    return value, end


def end_of_value(text: str, start: int) -> int:
    """Return the offset just behind the JSON value that starts at `start`; raises like `value_at`."""
    end: int = value_at(text, start)[1]
    return end


def walk_object(text: str, start: int, visit: VisitMember) -> int:
    """Walk the object that starts at `start` and return the offset behind its closing brace.

    `visit(key, key_start, value_start)` is called for every member in order, duplicates included, and returns the
    offset behind the value: `end_of_value` to pass over it, or its own walk to look inside. So every byte is read once.
    The key has its escapes resolved; keys beyond ASCII come as Latin-1.

    Raises:
        BadJson: The bytes are not a complete object.
    """
    at = _expect(text, start, "{")
    if text.startswith("}", at):
        return at + 1
    while True:
        key_start = at
        key, at = _key(text, at)
        colon = _COLON(text, at)
        if colon is None:
            raise BadJson(_what_is_at(text, at, "where ':' should be"), offset=at)
        at, done = _next(text, visit(key, key_start, colon.end()), "}")
        if done:
            return at


def walk_array(text: str, start: int, visit: VisitItem) -> int:
    """Walk the array that starts at `start` and return the offset behind its closing bracket.

    `visit(item_start)` is called for every item and returns the offset behind it.

    Raises:
        BadJson: The bytes are not a complete array.
    """
    at = _expect(text, start, "[")
    if text.startswith("]", at):
        return at + 1
    while True:
        at, done = _next(text, visit(at), "]")
        if done:
            return at


def members_of(text: str, start: int) -> list[Member]:
    """Return the members of the object that starts at `start`, in order, duplicates included."""
    found: list[Member] = []

    def visit(key: str, key_start: int, value_start: int) -> int:
        end = end_of_value(text, value_start)
        found.append(Member(key, key_start, Span(value_start, end)))
        return end

    walk_object(text, start, visit)
    return found


def items_of(text: str, start: int) -> list[Span]:
    """Return the spans of the items of the array that starts at `start`."""
    found: list[Span] = []

    def visit(item_start: int) -> int:
        end = end_of_value(text, item_start)
        found.append(Span(item_start, end))
        return end

    walk_array(text, start, visit)
    return found


def _next(text: str, at: int, closing: str) -> tuple[int, bool]:
    """Step over what follows an item: a comma (and the space behind it), or the closing sign."""
    sign = _SIGN(text, at)
    if sign is not None and (comma := sign[1] == ",") | (sign[1] == closing):
        return (sign.end() if comma else sign.end(1)), not comma
    at = skip_space(text, at)
    raise BadJson(_what_is_at(text, at, f"where ',' or {closing!r} should be"), offset=at)


def _key(text: str, at: int) -> tuple[str, int]:
    if not text.startswith('"', at):
        raise BadJson(_what_is_at(text, at, "where a key should be"), offset=at)
    try:
        key, end = scanstring(text, at + 1, True)
    except json.JSONDecodeError as exc:
        raise _bad_json(text, exc) from exc
    return key, end


def _expect(text: str, at: int, sign: str) -> int:
    if text[at : at + 1] != sign:
        raise BadJson(_what_is_at(text, at, f"where {sign!r} should be"), offset=at)
    return skip_space(text, at + 1)


def _bad_json(text: str, exc: json.JSONDecodeError) -> BadJson:
    if exc.msg.startswith("Unterminated string"):  # its position is where the string begins
        return BadJson(_TRUNCATED, offset=len(text))
    return BadJson(_what_is_at(text, exc.pos), offset=exc.pos)


def _what_is_at(text: str, at: int, note: str = "where a JSON value should be") -> str:
    rest = text[at : at + 5]
    if at + len(rest) >= len(text) and any(word.startswith(rest) for word in ("true", "false", "null", "-")):
        return _TRUNCATED
    return f"has {text[at]!r} {note}"
