from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nexofork.core.replacement import ContentReplacementState
from tests.strategies import examples

RESULTS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 400)), max_size=12)


def small(**fields: Any) -> ContentReplacementState:
    """Return a state with limits small enough for a test."""
    return ContentReplacementState(**{"max_chars": 100, "keep_chars": 10, **fields})


def test_long_result_keeps_its_start_and_end() -> None:
    """What is left out is said, with how much it was."""
    text = "a" * 10 + "b" * 100 + "c" * 10

    assert small().apply("1", text) == "a" * 10 + "\n[100 characters left out]\n" + "c" * 10


def test_result_of_just_the_limit_is_sent_whole() -> None:
    """The limit is what may still be sent."""
    assert small().apply("1", "x" * 100) == "x" * 100
    assert small().apply("1", "x" * 101) != "x" * 101


def test_replacement_is_never_longer_than_what_it_replaces() -> None:
    """Leaving out a few characters to say so at greater length helps nobody."""
    for length in range(101, 160):
        state = ContentReplacementState(max_chars=100, keep_chars=50)
        assert len(state.apply("1", "x" * length)) <= length


def test_beyond_the_budget_further_results_are_replaced() -> None:
    """The budget is for all results together; one that would pass it is shortened, a short one never."""
    state = small(budget_chars=150)

    assert state.apply("1", "x" * 90) == "x" * 90
    assert "left out" in state.apply("2", "y" * 90)
    assert state.apply("3", "z" * 20) == "z" * 20
    assert state.spent_chars == 90 + len(state.apply("2", "y" * 90)) + 20


def test_nothing_kept_leaves_only_the_note() -> None:
    """With nothing to keep, the note stands alone."""
    assert small(keep_chars=0).apply("1", "x" * 101) == "\n[101 characters left out]\n"


@examples(100)
@given(results=RESULTS, budget=st.none() | st.integers(0, 600))
def test_first_decision_is_final(results: list[tuple[str, int]], budget: int | None) -> None:
    """Whatever happens in between, a result sent once is sent in the same form ever after, at no further cost."""
    state = ContentReplacementState(max_chars=100, keep_chars=10, budget_chars=budget)
    sent: dict[str, tuple[str, str]] = {}

    for call_id, length in results:
        text, shown = sent.get(call_id, ("x" * length, ""))
        now = state.apply(call_id, text)
        assert now == (shown or now)
        sent[call_id] = (text, now)

    assert state.spent_chars == sum(len(shown) for _, shown in sent.values())


@examples(100)
@given(before=RESULTS, after=RESULTS)
def test_clone_decides_alike_and_leaves_the_original_alone(
    before: list[tuple[str, int]], after: list[tuple[str, int]]
) -> None:
    """Parent and child show the same bytes for the same results; what the child does changes nothing for the parent."""
    parent = small(budget_chars=500)
    for call_id, length in before:
        parent.apply(call_id, "x" * length)
    frozen = json.dumps(parent.to_wire())
    child, other = parent.clone(), parent.clone()

    shown = [child.apply(call_id, "x" * length) for call_id, length in after]

    assert shown == [other.apply(call_id, "x" * length) for call_id, length in after]
    assert json.dumps(parent.to_wire()) == frozen


@examples(60)
@given(results=RESULTS)
def test_state_survives_the_wire(results: list[tuple[str, int]]) -> None:
    """As JSON and back, limits, spending and every decision are the same."""
    state = small(budget_chars=300)
    for call_id, length in results:
        state.apply(call_id, "x" * length)

    again = ContentReplacementState.from_wire(json.loads(json.dumps(state.to_wire())))

    assert again == state


def test_unknown_and_missing_keys_are_tolerated_on_the_wire() -> None:
    """A newer sender may say more, an older one less."""
    assert ContentReplacementState.from_wire({"keep_chars": 7, "news": 1}) == ContentReplacementState(keep_chars=7)


def test_a_clone_keeps_decisions_that_a_fresh_state_would_make_otherwise() -> None:
    """What was sent whole while there was room stays whole in a clone, though by now there is none."""
    state = ContentReplacementState(keep_chars=5, budget_chars=60)
    whole, cut = state.apply("first", "x" * 50), state.apply("second", "y" * 50)
    clone = state.clone()
    fresh = ContentReplacementState(keep_chars=5, budget_chars=60, spent_chars=state.spent_chars)

    assert (whole == "x" * 50, cut == "y" * 50) == (True, False)
    assert [clone.apply("first", "x" * 50), clone.apply("second", "y" * 50)] == [whole, cut]
    assert fresh.apply("first", "x" * 50) != whole
