"""Cut what comes from outside to what can be exported: one value that cannot be encoded loses a whole batch."""

from __future__ import annotations

from typing import Any

__all__ = ["exportable", "exportable_count", "exportable_text"]

_CHARS = 1000
_MOST = 2**53


def exportable_text(text: str, *, most_chars: int = _CHARS) -> str:
    """Return a text that is valid UTF-8 and not too long."""
    text = text[:most_chars]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def exportable_count(count: int) -> int:
    """Return a count that fits 64 bits, whatever a server made up."""
    return min(max(count, 0), _MOST)


def exportable(value: Any) -> Any:
    """Return an attribute's value as it can be exported."""
    return exportable_text(value) if isinstance(value, str) else value
