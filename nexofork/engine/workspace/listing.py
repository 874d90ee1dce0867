"""Look at a work tree once: what differs from the index, and what cannot be captured.

One ``git ls-files`` tells everything: entries with their modes, files that were changed, removed or never added,
unmerged paths, submodules, and what a sparse checkout leaves out. Paths are bytes throughout.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nexofork.engine.workspace.git import Git

__all__ = ["Listing", "index_entries", "list_files", "write_changes"]

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
