from __future__ import annotations

import doctest

from hypothesis import given
from hypothesis import strategies as st

from nexofork.bus import common_ends as module
from nexofork.bus.common_ends import common_ends

texts = st.text(alphabet="aé€\U0001f600", max_size=12)


@given(texts, texts, texts, texts)
def test_ends_and_middle_make_the_whole(start: str, old: str, new: str, end: str) -> None:
    """What is common, and what is new between it, give the new content; the ends never overlap in either."""
    base, data = (start + old + end).encode(), (start + new + end).encode()

    prefix, suffix = common_ends(base, data)

    assert prefix + suffix <= min(len(base), len(data))
    assert base[:prefix] + data[prefix : len(data) - suffix] + base[len(base) - suffix :] == data


@given(texts, texts, texts, texts)
def test_the_middle_of_a_text_is_text(start: str, old: str, new: str, end: str) -> None:
    """No cut splits a character."""
    base, data = (start + old + end).encode(), (start + new + end).encode()

    prefix, suffix = common_ends(base, data)

    data[prefix : len(data) - suffix].decode()


@given(st.binary(max_size=30), st.binary(max_size=30), st.binary(max_size=30))
def test_any_bytes_will_do(start: bytes, new: bytes, end: bytes) -> None:
    """Contents that are no text are joined as exactly."""
    base, data = start + end, start + new + end

    prefix, suffix = common_ends(base, data)

    assert base[:prefix] + data[prefix : len(data) - suffix] + base[len(base) - suffix :] == data


def test_a_turn_appended_to_a_conversation_is_all_that_is_new() -> None:
    """A body that grew before its closing brackets shares everything else."""
    base = b'{"messages":[{"role":"user"}],"max_tokens":10}'
    data = b'{"messages":[{"role":"user"},{"role":"assistant"}],"max_tokens":10}'

    prefix, suffix = common_ends(base, data)

    assert prefix + suffix == len(base)


def test_the_examples_hold() -> None:
    """The doctests are true."""
    assert doctest.testmod(module).failed == 0
