"""When there are colours, and how text fits a terminal."""

from __future__ import annotations

import pytest
from click import style
from hypothesis import given
from hypothesis import strategies as st

from nexofork.cli.columns import clipped, table_lines, width_of
from nexofork.cli.terminal import colour_choice

PIECES = ("a", "ä", "分", "e\u0301", "\u200d", " ", "✓", style("red", fg="red"))
LINES = st.lists(st.sampled_from(PIECES), max_size=80).map("".join)


@pytest.mark.parametrize(
    ("environment", "choice"),
    [
        ({}, None),
        ({"TERM": "xterm"}, None),
        ({"TERM": "dumb"}, False),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, None),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True),
        ({"FORCE_COLOR": "0"}, False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
    ],
)
def test_colours_are_the_users_choice(environment: dict[str, str], choice: bool | None) -> None:
    """NO_COLOR before FORCE_COLOR before what the terminal can do; else each stream decides."""
    assert colour_choice(environment) is choice


@given(line=LINES, width=st.integers(0, 60))
def test_a_clipped_line_fits(line: str, width: int) -> None:
    """Whatever it holds; a line that fits is left as it is, and a cut one leaves no colour behind."""
    cut = clipped(line, width)

    assert width_of(cut) <= width
    assert (cut == line) == (width_of(line) <= width) or cut == ""
    assert cut.count("\x1b[31m") == cut.count("\x1b[0m")


def test_columns_line_up_with_wide_characters_and_colours() -> None:
    """A directive in Chinese takes two places a character, a colour none."""
    lines = table_lines(("a", "b"), [("分支", "1"), (style("x", fg="red"), "2")], right=frozenset({1}))
    assert lines == ["a     b", "分支  1", f"{style('x', fg='red')}     2"]
