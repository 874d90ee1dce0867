"""Read a child's repository, in which the child may have written anything.

Git follows links among objects, and reads whatever further folders ``info/alternates`` names: with either a child could
make the daemon hand out objects of any repository of the host. A pipe would hold git up for as long as it may take. So
objects are checked to be the child's own, and pipes are removed, before git reads them. Settings in ``.git`` can name
programs. So references are read as files, nothing is followed out of the folder, and git runs elsewhere, on a
repository that only borrows the objects.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.policy.paths import walk_tree
from nexofork.wire.ref_names import is_ref_name

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ChildRefs", "own_objects", "read_refs", "remove_traps"]

_OID = re.compile(r"[0-9a-f]{40}")
_HEADS = "refs/heads/"
_KEPT = (_HEADS, "refs/tags/", "refs/stash")
_MAX_REFS = 1_000
_MAX_BYTES = 1 << 20
_READ = (".gitignore", ".gitattributes", ".gitmodules")
_REPOSITORY = ".git"


def own_objects(git_dir: Path, borrowed: bytes) -> bool:
    """Remove what leads out of a repository's objects, and let it borrow what it was given alone.

    Args:
        git_dir: The repository.
        borrowed: What its ``info/alternates`` has to say.

    Returns:
        Whether there are objects that may be read now.
    """
    objects = git_dir / "objects"
    if not all(_is_folder(folder) for folder in (git_dir, objects)):
        return False
    try:
        _remove_specials(objects)
        alternates = objects / "info/alternates"
        if _is_folder(alternates.parent) and (not alternates.is_file() or alternates.read_bytes() != borrowed):
            alternates.unlink(missing_ok=True)
            alternates.write_bytes(borrowed)
    except OSError:
        return False
    return True


def _remove_specials(folder: Path | str) -> None:
    """Remove links, pipes and the like; git puts none there."""
    for place, _, names in walk_tree(folder, strict=True):
        for path in (os.path.join(place, name) for name in names):
            if not stat.S_ISREG(os.lstat(path).st_mode):
                os.unlink(path)


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


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


def remove_traps(root: Path) -> None:
    """Remove what is neither file, folder nor link in a checkout and has a name that git opens.

    Those are its own files in every folder, and all in repositories inside the checkout. No tree can hold them, so the
    child's work is none the less for it. The checkout's own repository is left alone; git is not run in it.
    """
    folders = [(os.fspath(root), False)]
    while folders:
        folder, inside = folders.pop()
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                repository = inside or entry.name == _REPOSITORY
                if entry.is_dir(follow_symlinks=False):
                    if folder != os.fspath(root) or entry.name != _REPOSITORY:
                        folders.append((entry.path, repository))
                elif (repository or entry.name in _READ) and not (entry.is_symlink() or entry.is_file()):
                    os.unlink(entry.path)
