"""Read where a child's repository stands, without running git in it.

A child may write anything into its ``.git``, settings that name programs among it. So its references are read as files,
nothing is followed out of the folder, and git runs elsewhere, on a repository that only borrows its objects.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.engine.filters.paths import walk_tree
from nexofork.wire.ref_names import is_ref_name

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ChildRefs", "read_refs"]

_OID = re.compile(r"[0-9a-f]{40}")
_HEADS = "refs/heads/"
_KEPT = (_HEADS, "refs/tags/", "refs/stash")
_MAX_REFS = 1_000
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRefs:
    """Where a child's repository stands."""

    head: str | None
    """The commit of HEAD; None where there is none."""
    branch: str
    """The branch HEAD is on; empty where it is detached, or where no message could carry the name."""
    refs: dict[str, str]


def read_refs(git_dir: Path) -> ChildRefs | None:
    """Return where a repository stands; None where it is none any more."""
    for part in ("", "objects", "refs"):
        try:
            if not stat.S_ISDIR(os.lstat(git_dir / part).st_mode):
                return None
        except OSError:
            return None
    refs = _packed(git_dir) | _loose(git_dir)
    said = _text(git_dir / "HEAD")
    if said is None:
        return None
    name = said.removeprefix("ref: ")
    head = refs.get(name) if name != said else said
    kept = {ref: oid for ref, oid in refs.items() if is_ref_name(ref)}
    return ChildRefs(
        head=head if head and _OID.fullmatch(head) else None,
        # On a branch whose name cannot travel, its commits count all the same.
        branch=name.removeprefix(_HEADS) if name.startswith(_HEADS) and is_ref_name(name) else "",
        refs=dict(list(kept.items())[:_MAX_REFS]),
    )


def _packed(git_dir: Path) -> dict[str, str]:
    found = {}
    for line in (_text(git_dir / "packed-refs") or "").split("\n"):
        oid, _, name = line.partition(" ")
        if _OID.fullmatch(oid) and name.startswith(_KEPT):
            found[name] = oid
    return found


def _loose(git_dir: Path) -> dict[str, str]:
    found = {}
    for folder, _, names in walk_tree(git_dir / "refs"):
        for name in names:
            path = os.path.join(folder, name)
            ref = os.path.relpath(path, git_dir)
            oid = _text(path)
            if oid and _OID.fullmatch(oid) and ref.startswith(_KEPT):
                found[ref] = oid
    return found


def _text(path: str | Path) -> str | None:
    """Return a short regular file's text; a link, a pipe or a long file is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return os.read(descriptor, _MAX_BYTES).decode("utf-8", "surrogateescape").strip()
    finally:
        os.close(descriptor)
