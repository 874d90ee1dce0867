"""Paths into JSON: whatever is there is found by its path, and what is not is said to be missing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.agents.evaluation.json_path import NotThere, find, parse_answer, parse_path

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = st.text(st.characters(exclude_characters=".[]", exclude_categories=["Cs"]), min_size=1, max_size=5).filter(
    lambda key: key != "$"
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


def places(value: Any, path: str = "$") -> Iterator[tuple[str, Any]]:
    """Every path into a value, and what is there."""
    yield path, value
    if isinstance(value, list):
        for number, inner in enumerate(value):
            yield from places(inner, f"{path}[{number}]")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, f"{path}.{key}")


@given(VALUES)
def test_whatever_is_there_is_found_by_its_path(value: Any) -> None:
    """Also through the JSON that an answer is, bare or fenced."""
    for text in (json.dumps(value), f"Here:\n```json\n{json.dumps(value)}\n```\nThat is all."):
        answer = parse_answer(text)
        assert all(find(answer, path) == found for path, found in places(value))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("a.x", "a.x"),
        ("a.b[2]", r"a.b\[2\]"),
        ("a[0]", r"a\[0\]"),
        ("a.b.c", "a.b.c"),
        ("n.m", "n.m"),
        ("s[0]", r"s\[0\]"),
    ],
)
def test_what_is_not_there_is_named(path: str, words: str) -> None:
    """Up to the step that fails; a text is no list."""
    with pytest.raises(NotThere, match=f"there is no {words}"):
        find({"a": {"b": [1, 2]}, "n": None, "s": "text"}, path)


@pytest.mark.parametrize("path", ["", "a..b", "a[x]", "a[0", "a]", "a[0]b", "."])
def test_what_is_no_path_is_refused(path: str) -> None:
    """Before anything is looked for."""
    with pytest.raises(ValueError, match="path"):
        parse_path(path)


@pytest.mark.parametrize("text", ["", "no JSON", "```\nneither\n```"])
def test_an_answer_without_json_is_told(text: str) -> None:
    """Whatever else it says."""
    with pytest.raises(ValueError, match=r"Expecting|value"):
        parse_answer(text)
