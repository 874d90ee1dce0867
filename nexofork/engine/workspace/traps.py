"""Remove pipes where git would read a file: it would wait for a writer until its time is up."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["remove_traps"]

_READ = (".gitignore", ".gitattributes", ".gitmodules")
_REPOSITORY = ".git"


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
