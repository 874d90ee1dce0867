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

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ChildRefs", "read_refs"]

_OID = re.compile(r"[0-9a-f]{40}")
_KEPT = ("refs/heads/", "refs/tags/", "refs/stash")
_MAX_REFS = 1_000
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRefs:
    """Where a child's repository stands."""

    head: str | None
    """The commit of HEAD; None where there is none."""
    branch: str
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
    branch = said.removeprefix("ref: refs/heads/") if said.startswith("ref: refs/heads/") else ""
    head = refs.get(f"refs/heads/{branch}") if branch else said
    known = head if head and _OID.fullmatch(head) else None
    return ChildRefs(head=known, branch=branch, refs=dict(list(refs.items())[:_MAX_REFS]))


def _packed(git_dir: Path) -> dict[str, str]:
    found = {}
    for line in (_text(git_dir / "packed-refs") or "").splitlines():
        oid, _, name = line.partition(" ")
        if _OID.fullmatch(oid) and name.startswith(_KEPT) and name.isprintable():
            found[name] = oid
    return found


def _loose(git_dir: Path) -> dict[str, str]:
    found = {}
    for folder, _, names in os.walk(git_dir / "refs"):
        for name in names:
            path = os.path.join(folder, name)
            ref = os.path.relpath(path, git_dir)
            oid = _text(path)
            if oid and _OID.fullmatch(oid) and ref.startswith(_KEPT) and ref.isprintable():
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
