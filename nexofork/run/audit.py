"""Compare what a run touched with what its filter allowed.

A filter judges calls; this judges their effect. What is found here is a hole in a filter, or somebody else's change.
A listing goes by what the file system says of each file, without opening it. Only a file that had been written to
moments before the listing could be written to again and look the same; such a one is read.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from nexofork.policy.filters import may_change
from nexofork.policy.paths import walk_tree
from nexofork.telemetry.spans import changed_despite_filter
from nexofork.tools.arguments import Unable
from nexofork.tools.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nexofork.policy.filters import ToolFilter
    from nexofork.run.result import ForkResult
    from nexofork.tools.threads import Stop

__all__ = ["Audit", "Change", "Listing", "begin_audit", "changes", "list_tree", "violations"]

log = logging.getLogger(__name__)

MAX_FILES = 50_000
_MAX_BYTES = 32 * 1024 * 1024
_RACY_NS = 2_000_000_000
_LIMIT_S = 10.0
_REPORTED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One path that is not as it was."""

    path: str
    what: Literal["added", "changed", "removed"]


@dataclass(slots=True, kw_only=True)
class Listing:
    """Every file and link below some folders, by its path, and what can be seen of it without opening it."""

    files: dict[str, tuple[int, ...]] = field(default_factory=dict)
    racy: dict[str, str] = field(default_factory=dict)
    """What was in files that a later change might not show in their times, as far as there was time to read."""
    links: dict[str, str] = field(default_factory=dict)
    complete: bool = True
    """Whether nothing was left out for being too much."""


class _Enough(Exception):
    """The listing has its full length."""


def list_tree(roots: Sequence[Path], stop: Stop | None = None, *, max_files: int = MAX_FILES) -> Listing:
    """List what is below some folders. What cannot be looked at is not listed.

    Raises:
        Unable: Nobody waits for it any more.
    """
    listing, left = Listing(), _MAX_BYTES
    young = time.time_ns() - _RACY_NS
    try:
        for root in roots:
            for folder, _, names in walk_tree(root):
                if stop is not None:
                    stop.check()
                for name in names:
                    left -= _list(listing, os.path.join(folder, name), young, left)
                    if len(listing.files) >= max_files:
                        raise _Enough
    except _Enough:
        listing.complete = False
    return listing


def _list(listing: Listing, path: str, young: int, left: int) -> int:
    """Add a file; returns how many bytes were read."""
    try:
        info = os.lstat(path)
        listing.files[path] = (info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
        if stat.S_ISLNK(info.st_mode):
            listing.links[path] = os.readlink(path)
        elif stat.S_ISREG(info.st_mode) and info.st_mtime_ns > young and info.st_size <= left:
            listing.racy[path] = _digest(path)
            return info.st_size
    except OSError:
        return 0
    return 0


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def changes(before: Listing, after: Listing) -> list[Change]:
    """Return what differs between two listings, in the order of the paths."""
    found = []
    for path in sorted(before.files.keys() | after.files.keys()):
        if path not in before.files:
            if before.complete:  # else it may have been there
                found.append(Change(path=path, what="added"))
        elif path not in after.files:
            if after.complete:
                found.append(Change(path=path, what="removed"))
        elif before.files[path] != after.files[path] or _differs(path, before, after):
            found.append(Change(path=path, what="changed"))
    return found


def _differs(path: str, before: Listing, after: Listing) -> bool:
    if path not in before.racy:
        return before.links.get(path) != after.links.get(path)
    try:
        return before.racy[path] != (after.racy.get(path) or _digest(path))
    except OSError:
        return False


def violations(before: Listing, after: Listing, tool_filter: ToolFilter) -> list[Change]:
    """Return the changes that the filter did not allow."""
    return [change for change in changes(before, after) if not may_change(tool_filter, change.path)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What some folders looked like before a run."""

    run_id: str
    tool_filter: ToolFilter
    roots: tuple[Path, ...]
    before: Listing

    async def added(self, result: ForkResult) -> ForkResult:
        """Return a run's result with what it changed and may not have; as it is where nobody could look."""
        try:
            found = await in_thread(self._found, limit_s=_LIMIT_S)
        except (Unable, OSError) as exc:
            log.warning("run %s: what it changed was not looked at: %s", self.run_id, exc)
            return result
        if found:
            changed_despite_filter(run_id=self.run_id, changes=[(change.what, change.path) for change in found])
        told = tuple({"path": change.path, "what": change.what} for change in found[:_REPORTED])
        return replace(result, audit=(*result.audit, *told)) if told else result

    def _found(self, stop: Stop) -> list[Change]:
        after = list_tree(self.roots, stop)
        if not (self.before.complete and after.complete):
            log.info("run %s: there is too much to look at all of it for changes", self.run_id)
        return violations(self.before, after, self.tool_filter)


async def begin_audit(run_id: str, tool_filter: ToolFilter, roots: Sequence[Path]) -> Audit | None:
    """Look at some folders before a run; None where nothing is limited there, or nobody can look.

    Args:
        run_id: The run.
        tool_filter: Says what it may change.
        roots: The folders it works in.
    """
    # What names programs to run is the last that a filter lets change.
    limited = [root for root in roots if not may_change(tool_filter, str(root / ".git" / "config"))]
    if not limited:
        return None
    try:
        before = await in_thread(lambda stop: list_tree(limited, stop), limit_s=_LIMIT_S)
    except (Unable, OSError) as exc:
        log.warning("run %s: what it changes will not be looked at: %s", run_id, exc)
        return None
    return Audit(run_id=run_id, tool_filter=tool_filter, roots=tuple(limited), before=before)
