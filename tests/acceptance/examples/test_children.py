"""How the person at the terminal names an agent: by its number, or by the beginning of its run id."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from examples.parent.children import Children
from nexofork.errors import ForkRefused


@dataclass(frozen=True, slots=True)
class Started:
    """As much of a handle as a name needs."""

    run_id: str
    label: str = "a task"


@pytest.fixture
def children() -> Children:
    """Three agents, two of them with run ids that look like numbers."""
    forks: Any = None  # nothing is started
    made = Children(forks, asyncio.TaskGroup())
    started: list[Any] = [Started("7f3a"), Started("2024b"), Started("c0ffee")]
    made.handles.extend(started)
    return made


@pytest.mark.parametrize(
    ("word", "run_id"), [("1", "7f3a"), ("2", "2024b"), ("03", "c0ffee"), ("c0", "c0ffee"), ("2024", "2024b")]
)
def test_an_agent_is_found_by_number_or_run_id(children: Children, word: str, run_id: str) -> None:
    """Up to three digits are a number; more may begin a run id."""
    assert children.find(word).run_id == run_id


@pytest.mark.parametrize("word", ["7", "0", "4", "202", "20", "\u0667", "", "x"])
def test_a_number_that_no_agent_has_is_no_run_id(children: Children, word: str) -> None:
    """`/merge 7` does not act on a run whose id happens to begin with 7."""
    with pytest.raises(ForkRefused, match="names no agents; agents here are: 1 to 3"):
        children.find(word)
