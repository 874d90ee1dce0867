"""Draw what calls cost beside what they would have cost without sharing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nexofork.cli.output import brief

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.economics.ledger import Sums

__all__ = ["MOST_BARS", "chart_lines"]

MOST_BARS = 30
_BILLED, _UNSHARED = "█", "░"
_NARROWEST = 10
_KEY = 36


def chart_lines(rows: Sequence[Sums], *, width: int) -> list[str]:
    """Return one bar per row that has a price: what was billed, and behind it what sharing saved.

    Args:
        rows: What to draw; only the first `MOST_BARS` are.
        width: Of the terminal; a bar has at least ten characters however narrow it is.
    """
    shown = [row for row in rows if row.priced and row.money.unshared > 0][:MOST_BARS]
    if not shown:
        return []
    most = max(max(row.money.unshared, row.money.billed) for row in shown)
    keys = [brief(row.key, _KEY) for row in shown]
    words = [f"${row.money.billed:.4f} of ${row.money.unshared:.4f}" for row in shown]
    key_width = max(map(len, keys))
    room = max(_NARROWEST, width - key_width - max(map(len, words)) - 4)
    lines = []
    for row, key, word in zip(shown, keys, words, strict=True):
        billed = _length(row.money.billed, most, room)
        saved = max(_length(row.money.unshared, most, room) - billed, 0)
        bar = click.style(_BILLED * billed, fg="green") + _UNSHARED * saved
        lines.append(f"{key:<{key_width}}  {bar}{' ' * (room - billed - saved)}  {word}")
    lines.append(f"{_BILLED} billed  {_UNSHARED} what it would have cost more without sharing")
    return lines


def _length(amount: float, most: float, room: int) -> int:
    """Return a bar's length; whatever cost something can be seen."""
    return max(round(amount / most * room), 1) if amount > 0 else 0
