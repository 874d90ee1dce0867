"""What dreams have seen already, kept in the memory folder, so that nobody pays for a dream with nothing new in it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nexofork.agents.sidecars.notes import replace_file
from nexofork.policy.filters import BOOKKEEPING, SEEN_FILE
from nexofork.policy.paths import walk_tree

if TYPE_CHECKING:
    from nexofork.core.snapshot import CacheSafeParams
    from nexofork.tools.threads import Stop

__all__ = ["Seen", "digest_of_folder", "digest_of_session"]

_KEPT = 64
_READ_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The sessions that were dreamed of, and what the folder looked like after the last dream."""

    sessions: tuple[str, ...] = ()
    """Digests, oldest first."""
    folder: str = ""

    @classmethod
    def read(cls, folder: Path) -> Seen:
        """Return what is kept in a folder; nothing where that is missing or not to be read."""
        try:
            found = json.loads((folder / SEEN_FILE).read_bytes())
            return cls(sessions=tuple(map(str, found["sessions"])), folder=str(found["folder"]))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return cls()

    def has(self, session: str, folder: str) -> bool:
        """Whether this conversation was dreamed of and nobody has changed the notes since."""
        return session in self.sessions and folder == self.folder

    def having(self, session: str, folder: str) -> Seen:
        """Return this with one more dream."""
        others = [one for one in self.sessions if one != session]
        return replace(self, sessions=(*others, session)[-_KEPT:], folder=folder)

    def write(self, folder: Path) -> None:
        """Keep it in the folder.

        Raises:
            ForkRefused: It cannot be written.
        """
        kept = {"sessions": self.sessions, "folder": self.folder}
        replace_file(folder / SEEN_FILE, json.dumps(kept).encode())


def digest_of_session(snapshot: CacheSafeParams) -> str:
    """Return what names a conversation up to its newest reply."""
    digest = hashlib.sha256(snapshot.body)
    digest.update(snapshot.reply.to_wire() if snapshot.reply else b"")
    return digest.hexdigest()


def digest_of_folder(folder: Path, stop: Stop) -> str:
    """Return what names the notes in a folder: their names and content; of very long ones, size and time.

    Raises:
        Unable: Nobody waits for it any more.
    """
    digest = hashlib.sha256()
    for place, folders, names in walk_tree(folder):
        folders.sort()
        for name in sorted(names):
            stop.check()
            path = Path(place, name)
            if place == str(folder) and name in BOOKKEEPING:
                continue
            digest.update(json.dumps([str(path.relative_to(folder)), _content(path)]).encode())
    return digest.hexdigest()


def _content(path: Path) -> str:
    try:
        info = path.lstat()
        if stat.S_ISLNK(info.st_mode):
            return os.readlink(path)
        if not stat.S_ISREG(info.st_mode) or info.st_size > _READ_BYTES:
            return f"{info.st_mode} {info.st_size} {info.st_mtime_ns}"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
