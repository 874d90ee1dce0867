"""What two contents share at their ends: a parent's next request body grows near its end and keeps the rest.

Cuts fall between characters of UTF-8, so that the part in the middle of a text is text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["common_ends"]


def common_ends(base: bytes, data: bytes) -> tuple[int, int]:
    """Return how many bytes the two have in common at the start and, beyond those, at the end.

    >>> common_ends(b"[1,2]", b"[1,2,3]")
    (4, 1)
    >>> common_ends("é]".encode(), "è]".encode())
    (0, 1)
    """
    shorter = min(len(base), len(data))
    prefix = _grow(shorter, lambda size: base[:size] == data[:size])
    while prefix and (_inside(base, prefix) or _inside(data, prefix)):
        prefix -= 1
    suffix = _grow(shorter - prefix, lambda size: size == 0 or base[-size:] == data[-size:])
    while suffix and (_inside(base, len(base) - suffix) or _inside(data, len(data) - suffix)):
        suffix -= 1
    return prefix, suffix


def _grow(limit: int, same: Callable[[int], bool]) -> int:
    """Return the largest size up to the limit that is the same; comparing slices is one memcmp each."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if same(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _inside(data: bytes, at: int) -> bool:
    """Whether a cut there would split a character."""
    return at < len(data) and data[at] & 0xC0 == 0x80
