"""Let a child keep notes in one folder, read everything, and change nothing else.

What the filter promises: at the time of the call the file lies in the memory folder, by the file system's own word.
What it cannot promise is that it still does when the tool opens it. The tool must open the path that ``checked``
returns, with ``open_beneath``; and it must run where the folder is, for on another host the same name is another file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nexofork.engine.filters.kinds import READERS, REPL, deny_bash
from nexofork.engine.filters.paths import CONFIGURES, Outside, by_words, inside
from nexofork.engine.shell import READ_ONLY_ENVIRONMENT
from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BOOKKEEPING", "LOCK_FILE", "SEEN_FILE", "AutoMemFilter"]

LOCK_FILE = ".dream.lock"
SEEN_FILE = ".dream.json"
BOOKKEEPING = frozenset((LOCK_FILE, SEEN_FILE))
"""What dreams keep for themselves at the top of a memory folder: who writes there could dream beside another."""


class AutoMemFilter:
    """Lets files be written under the memory folder alone; reading and commands that only read are free.

    REPL may run, but only where what it calls inside passes this filter again (see ``gated_inside``): ungated it would
    be a way round everything.

    Where the folder is elsewhere, at the parent, a path is judged by its words alone: that says which calls may go
    there at all. The filter that runs there has the file system's word and the last one.

    Raises:
        ForkRefused: The folder does not exist, where it is not elsewhere.
    """

    environment: Mapping[str, str] = READ_ONLY_ENVIRONMENT
    gated_inside: frozenset[str] = frozenset((REPL,))

    def __init__(self, memory_dir: str | Path, *, elsewhere: bool = False) -> None:
        self.elsewhere = elsewhere
        """Whether the folder is on another host."""
        if elsewhere:
            self.memory_dir = Path(by_words(str(memory_dir)))
            return
        try:
            self.memory_dir = Path(memory_dir).resolve(strict=True)
            missing = not self.memory_dir.is_dir()
        except (OSError, ValueError, RuntimeError):
            missing = True
        if missing:
            raise ForkRefused(
                f"The memory folder {str(memory_dir)!r} is not a folder on this host; create it, or name another."
            )

    def deny(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Deny what writes outside the memory folder."""
        if name in READERS or name == REPL:
            return None
        if name == "Bash":
            return deny_bash(arguments)
        if name not in ("FileWrite", "FileEdit"):
            return (
                f"This fork may read, and write with FileWrite and FileEdit under {self.memory_dir}. Go on with those."
            )
        try:
            self.checked(arguments)
        except Outside as exc:
            return f"{exc} This fork may write regular files under {self.memory_dir} only."
        return None

    def may_change(self, path: str) -> bool:
        """Only what lies in the memory folder, by its canonical path; nothing here where that is elsewhere."""
        found = Path(path)
        if self.elsewhere or self.memory_dir not in found.parents or ".." in found.parts:
            return False
        return not any(part.casefold() in CONFIGURES for part in found.relative_to(self.memory_dir).parts)

    def checked(self, arguments: dict[str, Any]) -> Path:
        """Return the canonical path that a call of FileWrite or FileEdit may write to; open no other.

        Raises:
            Outside: It may write to none; the text is a sentence.
        """
        path = arguments.get("file_path")
        if not isinstance(path, str) or not path:
            raise Outside("`file_path` must be a string beside the other arguments, not inside another object.")
        try:
            found = self._by_words(path) if self.elsewhere else inside(path, self.memory_dir)
            if found.parent == self.memory_dir and found.name.casefold() in BOOKKEEPING:
                raise Outside("is bookkeeping of the memory folder")
            return found
        except Outside as exc:
            raise Outside(f"{path!r} {exc}.") from exc

    def _by_words(self, path: str) -> Path:
        named = Path(by_words(path))
        if not os.path.isabs(path) or "\0" in path:
            raise Outside("is not an absolute path")
        if self.memory_dir not in named.parents:
            raise Outside("is outside")
        return named
