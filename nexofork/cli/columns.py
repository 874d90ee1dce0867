"""Text in columns on a terminal: how wide it is there, and cut to what fits.

Widths count what a terminal shows: colours take no room, characters of East Asia take two places.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["clipped", "table_lines", "width_of"]

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_RESET = "\x1b[0m"


def width_of(text: str) -> int:
    """Return how many places a line takes."""
    return sum(map(_width, _STYLE.sub("", text)))


def clipped(text: str, width: int) -> str:
    """Return as much of a line as fits; where something is missing the last place says so."""
    if width_of(text) <= width:
        return text
    if width < 1:
        return ""
    kept, used, at, coloured = [], 0, 0, False
    while at < len(text):
        if style := _STYLE.match(text, at):
            kept.append(style[0])
            coloured, at = style[0] != _RESET, style.end()
            continue
        used += _width(text[at])
        if used > width - 1:
            break
        kept.append(text[at])
        at += 1
    return "".join((*kept, "…", _RESET if coloured else ""))


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int]) -> list[str]:
    """Return the lines of a table whose columns are as wide as they need to be.

    Args:
        header: The columns' names.
        rows: Cells; they may be coloured.
        right: Which columns are numbers.
    """
    widths = [max(width_of(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = []
    for row in (header, *rows):
        cells = []
        for column, cell in enumerate(row):
            pad = " " * (widths[column] - width_of(cell))
            cells.append(pad + cell if column in right else cell + pad)
        lines.append("  ".join(cells).rstrip())
    return lines


def _width(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1
