"""A request body in pieces, so that many children share one copy of the long part.

Joining a 450 KB prefix into every child's body would cost 450 KB per running child for as long as its request lives.
A rope keeps views into the parent's bytes and each child's own few kilobytes; whoever sends it, sends the pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Rope"]

_SMALL = 16 * 1024
"""Pieces below this are joined with their neighbours: a copy costs less than another write to the socket."""


class Rope:
    """An immutable sequence of buffers that reads as one run of bytes."""

    __slots__ = ("_length", "_pieces")

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        self._pieces = tuple(_coalesce(pieces))
        self._length = sum(len(piece) for piece in self._pieces)

    def __len__(self) -> int:
        return self._length

    def __bytes__(self) -> bytes:
        return b"".join(self._pieces)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        return iter(self._pieces)

    def __repr__(self) -> str:
        return f"<Rope of {self._length} bytes in {len(self._pieces)} pieces>"


def _coalesce(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    small: list[bytes | memoryview] = []
    for piece in pieces:
        if len(piece) < _SMALL:
            small.append(piece)
            continue
        if joined := b"".join(small):
            yield joined
        small.clear()
        yield piece
    if joined := b"".join(small):
        yield joined
