"""Make sure that a child's objects are its own before git reads them.

Git follows links among objects, and reads whatever further folders ``info/alternates`` names: with either a child could
make the daemon hand out objects of any repository of the host. A pipe would hold git up for as long as it may take.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from nexofork.engine.filters.paths import walk_tree

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["own_objects"]


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
