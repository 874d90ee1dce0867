"""Look at a work tree once: what differs from the index, and what cannot be captured.

One ``git ls-files`` tells everything: entries with their modes, files that were changed, removed or never added,
unmerged paths, submodules, and what a sparse checkout leaves out. Paths are bytes throughout.
"""

from __future__ import annotations

import asyncio
import os
import stat
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nexofork.workspace.git import GitFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.workspace.git import Git

__all__ = ["Listing", "index_entries", "list_files", "opened_as_it_is", "some", "write_changes", "write_most"]

_MAX_FAILED = 100
_MAX_RAW_BYTES = 64 << 20

_GITLINK = b"160000"
_GONE = b"0 " + 40 * b"0" + b"\t"


@dataclass(slots=True)
class Listing:
    """What a work tree has beside its index."""

    changed: list[bytes] = field(default_factory=list)
    """Files to take as they are: changed ones, and those the index does not know."""
    removed: list[bytes] = field(default_factory=list)
    """Entries without a file."""
    unmerged: list[bytes] = field(default_factory=list)
    submodules: list[bytes] = field(default_factory=list)
    embedded: list[bytes] = field(default_factory=list)
    """Folders with a repository of their own that the index does not know."""
    sparse: bool = False
    """Whether entries have no file because nobody wants one."""
    attributes: list[bytes] = field(default_factory=list)
    """Files that say how others are converted."""
    sizes: dict[bytes, int] = field(default_factory=dict)
    """How long each changed file is."""

    @property
    def clean(self) -> bool:
        """Whether all files are as the index says."""
        return not (self.changed or self.removed)


async def list_files(git: Git, *, ignored: bool) -> Listing:
    """Look at a work tree.

    Raises:
        GitFailed: Git cannot read it.
    """
    standard = () if ignored else ("--exclude-standard",)
    printed = await git.run("ls-files", "-z", "-t", "--stage", "--cached", "--others", "--modified", *standard)
    found = Listing()
    links: set[bytes] = set()
    modified: set[bytes] = set()
    for line in printed.split(b"\0"):
        tag, rest = line[:1], line[2:]
        if tag == b"?":
            (found.embedded if rest.endswith(b"/") else found.changed).append(rest)
            continue
        facts, _, path = rest.partition(b"\t")
        if tag == b"M":
            found.unmerged.append(path)
        elif facts.startswith(_GITLINK):
            links.add(path)
        elif tag == b"C":
            modified.add(path)
        found.sparse = found.sparse or tag == b"S"
        if path.endswith(b".gitattributes"):
            found.attributes.append(path)
    found.submodules, found.unmerged = sorted(links), sorted(set(found.unmerged))
    found.changed += modified - links
    _look(git, found)
    return found


def _look(git: Git, found: Listing) -> None:
    """Tell files that are there from those that are not, and leave out what no tree can hold."""
    there: list[bytes] = []
    root = os.fsencode(git.cwd)
    for path in found.changed:
        try:
            seen = os.lstat(os.path.join(root, path))
        except (FileNotFoundError, NotADirectoryError):
            found.removed.append(path)
            continue
        except PermissionError:
            there.append(path)  # git says what is wrong with it
            continue
        if stat.S_ISDIR(seen.st_mode):
            found.removed.append(path)
        elif stat.S_ISREG(seen.st_mode) or stat.S_ISLNK(seen.st_mode):
            there.append(path)
            found.sizes[path] = seen.st_size
    found.changed = there


async def write_changes(git: Git, listing: Listing) -> None:
    """Bring the index up to the files.

    Raises:
        GitFailed: A file cannot be read, or there is no room for it.
    """
    if listing.removed:
        gone = b"".join(_GONE + path + b"\0" for path in listing.removed)
        await git.run("update-index", "-z", "--index-info", stdin=gone)
    if listing.changed:
        paths = b"".join(path + b"\0" for path in listing.changed)
        await git.run("update-index", "--add", "--remove", "--replace", "-z", "--stdin", stdin=paths)


async def write_most(git: Git, listing: Listing) -> list[bytes]:
    """Bring the index up to the files, and return those that cannot be read: they stay as the index had them.

    One file must not cost all others. What git cannot convert as the attributes say is taken as it is.

    Raises:
        GitFailed: There is no room, it took too long, or hardly anything can be read.
    """
    await write_changes(git, replace(listing, changed=[]))
    return await _add(git, listing.changed, [])


async def _add(git: Git, paths: list[bytes], failed: list[bytes]) -> list[bytes]:
    try:
        await write_changes(git, Listing(changed=paths))
    except GitFailed as exc:
        if exc.full or exc.code < 0 or len(failed) >= _MAX_FAILED:
            raise
        if len(paths) > 1:
            half = len(paths) // 2
            return await _add(git, paths[half:], await _add(git, paths[:half], failed))
        if not await _add_as_it_is(git, paths[0]):
            failed = [*failed, paths[0]]
    return failed


async def _add_as_it_is(git: Git, path: bytes) -> bool:
    found = await asyncio.to_thread(_read, os.path.join(os.fsencode(git.cwd), path))
    if found is None:
        return False
    mode, data = found
    oid = (await git.run("hash-object", "-w", "--stdin", stdin=data)).strip()
    line = b"%b %b\t%b\0" % (mode, oid, path)
    await git.run("update-index", "--add", "--replace", "-z", "--index-info", stdin=line)
    return True


def _read(path: bytes) -> tuple[bytes, bytes] | None:
    """Return the mode and the content of a regular file that is not too long; a link is not followed."""
    try:
        with open(path, "rb", opener=opened_as_it_is) as file:
            seen = os.fstat(file.fileno())
            if not stat.S_ISREG(seen.st_mode) or seen.st_size > _MAX_RAW_BYTES:
                return None
            return (b"100755" if seen.st_mode & 0o100 else b"100644"), file.read()
    except OSError:
        return None


def opened_as_it_is(path: str | bytes, flags: int) -> int:
    """An opener for files of a child: a link is not followed, and a pipe does not hold it up."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def some(paths: Sequence[bytes]) -> str:
    """Return the first of some paths in words."""
    names = [path.decode("utf-8", "backslashreplace").rstrip("/") for path in sorted(paths)[:5]]
    return ", ".join(names) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")


async def index_entries(git: Git) -> list[tuple[bytes, bytes, bytes]]:
    """Return mode, object name and path of everything in the index, in its order.

    Raises:
        GitFailed: Git cannot read it.
    """
    printed = await git.run("ls-files", "-z", "--stage")
    entries = []
    for line in printed.split(b"\0")[:-1]:
        facts, _, path = line.partition(b"\t")
        mode, oid, _ = facts.split(b" ")
        entries.append((mode, oid, path))
    return entries
