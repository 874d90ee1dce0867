"""Which names a branch or tag may have: git's own rules, because they become lines in files of git's.

What ``git check-ref-format`` refuses is refused, and text that is no Unicode as well, because no message can carry it.
"""

from __future__ import annotations

import re

__all__ = ["is_ref_name", "is_relative_folder"]

_MAX_BYTES = 4096
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\\ud800-\udfff]|\.\.|@\{|//")


def is_ref_name(name: str) -> bool:
    """Whether git takes it as the full name of a reference.

    >>> [is_ref_name(f"refs/heads/{name}") for name in ("feature/ä", "../x", "a/.b", "a.lock", "a b", "")]
    [True, False, False, False, False, False]
    """
    if not name.startswith("refs/") or name[-1] in "/." or _FORBIDDEN.search(name):
        return False
    parts = name.split("/")
    return len(name.encode()) <= _MAX_BYTES and not any(part[0] == "." or part.endswith(".lock") for part in parts)


def is_relative_folder(folder: str) -> bool:
    """Whether a path stays below where it starts; empty is the start itself.

    >>> [is_relative_folder(folder) for folder in ("", "src/b", "/etc", "a/../..", "a//b", ".")]
    [True, True, False, False, False, False]
    """
    return not folder or ("\0" not in folder and all(part not in ("", ".", "..") for part in folder.split("/")))
