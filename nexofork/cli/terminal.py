"""What the terminal, and the environment that describes it, let us do.

A stream that is no terminal gets plain text, unless somebody asks for colours; one that cannot move its cursor gets
line after line. https://no-color.org and https://force-color.org are followed, and the first of them wins.
"""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["can_redraw", "colour_choice", "plain"]


def colour_choice(environment: Mapping[str, str]) -> bool | None:
    """Return whether to colour: always, never, or None where each stream decides by being a terminal or not."""
    if environment.get("NO_COLOR"):
        return False
    forced = environment.get("FORCE_COLOR", "")
    if forced:
        return forced != "0"
    return False if environment.get("TERM") == "dumb" else None


def can_redraw(stream: IO[Any]) -> bool:
    """Whether what was written to a stream can be written over."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def plain(text: str) -> str:
    """Return the text without what a terminal would obey or hide; line ends and tabs are kept."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)
