"""Build the tree objects of an index without ``git write-tree``.

Git writes what it does not find and marks what it finds as just used, by its time. A parent's repository may not be
touched at all, so it cannot be shown to git while trees are written, and without it git would write every tree anew.
The trees are made here, and only those that nobody has are stored.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Trees", "build_trees", "store_tree"]

Trees = dict[str, bytes]
"""Object name to content."""


def build_trees(entries: Iterable[tuple[bytes, bytes, bytes]]) -> tuple[str, Trees]:
    """Return the name of the root tree, and all trees.

    Args:
        entries: Mode, object name in hex, and path of every file, in the index's order, which is that of trees too.
    """
    trees: Trees = {}
    open_: list[tuple[bytes, list[bytes]]] = [(b"", [])]
    """The folders from the root to where we are: name, and what they hold so far."""

    def close() -> str:
        name, lines = open_.pop()
        data = b"".join(lines)
        oid = hashlib.sha1(b"tree %d\0" % len(data) + data, usedforsecurity=False)
        trees[oid.hexdigest()] = data
        if open_:
            open_[-1][1].append(b"40000 " + name + b"\0" + oid.digest())
        return oid.hexdigest()

    for mode, hexed, path in entries:
        *folders, name = path.split(b"/")
        shared = 0
        while shared < min(len(folders), len(open_) - 1) and open_[shared + 1][0] == folders[shared]:
            shared += 1
        while len(open_) - 1 > shared:
            close()
        open_ += [(folder, []) for folder in folders[shared:]]
        open_[-1][1].append(mode + b" " + name + b"\0" + bytes.fromhex(hexed.decode()))
    while len(open_) > 1:
        close()
    return close(), trees


def store_tree(objects: Path, oid: str, data: bytes) -> None:
    """Write a tree into a folder of objects that nobody else uses."""
    folder = objects / oid[:2]
    folder.mkdir(exist_ok=True)
    (folder / oid[2:]).write_bytes(zlib.compress(b"tree %d\0" % len(data) + data, 1))
