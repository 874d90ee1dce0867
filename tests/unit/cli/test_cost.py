"""The bars of ``nexofork cost`` and the times it takes."""

from __future__ import annotations

import time

import click
import pytest

from nexofork.cli import run_command
from nexofork.cli.cost import moment
from nexofork.cli.cost_chart import MOST_BARS, chart_lines
from nexofork.economics.ledger import Money, Sums


def a_row(key: str, billed: float, unshared: float) -> Sums:
    """A row of the table."""
    return Sums(key=key, calls=1, money=Money(billed=billed, unshared=unshared))


@pytest.mark.parametrize("width", [20, 80, 200])
def test_bars_are_as_long_as_what_they_stand_for(width: int) -> None:
    """The dearest row fills its room, half of it is half as long, and lines fit the terminal where they can."""
    rows = [a_row("all", 1.0, 2.0), a_row("half", 0.5, 1.0), a_row("next to nothing", 1e-9, 0.01)]

    first, second, third, legend = [click.unstyle(line) for line in chart_lines(rows, width=width)]

    assert first.count("█") == pytest.approx(2 * second.count("█"), abs=1)
    assert first.count("█") == pytest.approx(first.count("░"), abs=1)
    assert third.count("█") == 1
    assert "$1.0000 of $2.0000" in first
    assert "billed" in legend
    assert max(len(first), len(second), len(third)) <= max(width, 60)


def test_there_is_no_bar_without_a_price() -> None:
    """Nothing to draw is no chart; a stranger's name cannot drive the terminal; a long list is cut."""
    assert chart_lines([Sums(key="x", calls=1, unpriced=1), Sums(key="y")], width=80) == []
    assert "\x1b]" not in click.unstyle(chart_lines([a_row("\x1b]0;x", 1, 1)], width=80)[0])
    assert len(chart_lines([a_row(str(number), 1, 2) for number in range(99)], width=80)) == MOST_BARS + 1


def test_times_are_read_as_people_write_them() -> None:
    """How long ago, or a moment; before 1970 is the beginning."""
    assert moment("90m") == pytest.approx(time.time() - 5_400, abs=5)
    assert moment("7d") == pytest.approx(time.time() - 604_800, abs=5)
    assert moment("2026-05-04T10:00:00Z") == 1777888800.0
    assert moment("999999w") == 0.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--since", "yesterday"], "24h or 7d"),
        (["--since", "-1h"], "24h or 7d"),
        (["--by", "colour"], "model"),
        (["--json", "--csv"], "give one of them"),
        (["--since", "1h", "--until", "2h"], "nothing can lie between"),
        (["--run", "a.b"], "subject"),
    ],
)
def test_bad_input_is_named(arguments: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Before anything is asked of NATS; exit code 2."""
    assert run_command(arguments=["cost", *arguments]) == 2
    assert said in capfd.readouterr().err
