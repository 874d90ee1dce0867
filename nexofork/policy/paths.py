"""Where a path really leads, how to open what was checked, and how to walk a tree of any depth.

A check by name can be outrun: between it and the opening somebody may swap a folder for a link. So a check returns the
canonical path, and whoever opens it does so with ``open_beneath``, which follows no link below the root at all.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CONFIGURES", "Outside", "by_words", "inside", "open_beneath", "remove_tree", "walk_tree"]

CONFIGURES = (".git", ".gitconfig")
"""Who may write there and run `git status` may run anything."""


_DEEP = 100
_LONG = 1_500


class Outside(Exception):
    """A path that may not be written to; the text says why, behind the path."""


def by_words(path: str) -> str:
    """Return a path without ``.``, ``..`` and repeated slashes, by its words alone: no file system is asked.

    >>> by_words("//memory/../memory//note.md")
    '/memory/note.md'
    """
    # POSIX leaves two leading slashes to the system; here they are one.
    return "/" + os.path.normpath(path).lstrip("/") if path.startswith("/") else os.path.normpath(path)


def inside(path: str, root: Path) -> Path:
    """Return the canonical path of a file under a root that may be written: it exists as such, or its folder does.

    Links and ``..`` are resolved by the file system itself. ``root`` has to be canonical.

    Raises:
        Outside: It leads elsewhere, is no regular file, has other names (hard links), or has no folder.
    """
    if "\0" in path or not os.path.isabs(path):
        raise Outside("is not an absolute path")
    if path.endswith(("/", "/.", "/..")):
        raise Outside("names a folder")
    try:
        folder = Path(os.path.realpath(os.path.dirname(path), strict=True))
        if _is_there(path):
            found = Path(os.path.realpath(path, strict=True))
            _check_file(found)
        else:
            found = folder / os.path.basename(path)
    except (OSError, ValueError) as exc:
        raise Outside(f"cannot be reached ({exc.strerror if isinstance(exc, OSError) else exc})") from exc
    if root not in found.parents:
        raise Outside("is outside")
    if any(part.casefold() in CONFIGURES for part in found.relative_to(root).parts):
        raise Outside("belongs to git, whose configuration names programs to run")
    return found


def _is_there(path: str) -> bool:
    """Whether something has this name, a link that leads nowhere included."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def _check_file(path: Path) -> None:
    info = path.lstat()
    if not stat.S_ISREG(info.st_mode):
        raise Outside("is no regular file")
    if info.st_nlink > 1:
        # Writing to it would change a file that may lie anywhere.
        raise Outside("has other names (hard links)")


def open_beneath(root: Path, path: Path, flags: int, mode: int = 0o644) -> int:
    """Open a file under a root, following no link on the way down, and return its descriptor.

    What is opened is what lies under the root at that moment, whatever was swapped since the path was checked.

    Raises:
        OSError: A part of the path is a link or not there, or the file has other names.
        ValueError: The path is not under the root.
    """
    parts = path.relative_to(root).parts
    if not parts or ".." in parts:
        raise ValueError(f"{path} is not a file under {root}")
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = below
        # Emptied only once it is known to be the right one.
        careful = (flags & ~os.O_TRUNC) | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        opened = os.open(parts[-1], careful, mode, dir_fd=folder)
    finally:
        os.close(folder)
    info = os.fstat(opened)
    if not stat.S_ISREG(info.st_mode) or info.st_nlink > 1:
        os.close(opened)
        raise OSError(f"{path} is no regular file, or has other names")
    if flags & os.O_TRUNC:
        os.ftruncate(opened, 0)
    return opened


def walk_tree(root: str | Path, *, strict: bool = False) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder below a root, itself included, with the names of its folders and of all else.

    Like ``os.walk``, but a tree of any depth is walked, and a link to a folder is not among the folders. A folder that
    cannot be read is left out.

    Raises:
        OSError: A folder cannot be read, where the walk is strict.
    """
    todo = [os.fspath(root)]
    while todo:
        place = todo.pop()
        folders: list[str] = []
        others: list[str] = []
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    (folders if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
        except OSError:
            if strict:
                raise
            continue
        yield place, folders, others
        todo += [os.path.join(place, name) for name in reversed(folders)]


def remove_tree(folder: str | Path, onerror: Callable[[Callable[..., Any], str, Any], object] | None = None) -> None:
    """Remove a folder of any depth; what cannot be removed is left, unless `onerror` sees to it."""
    try:
        shutil.rmtree(folder, ignore_errors=onerror is None, onerror=onerror)
    except RecursionError:
        _flatten(os.fspath(folder))
        shutil.rmtree(folder, ignore_errors=onerror is None, onerror=onerror)


def _flatten(root: str) -> None:
    """Move folders that lie too deep for ``shutil.rmtree`` up to the root."""
    todo, moved = [root], 0
    while todo:
        start = todo.pop()
        for place, folders, _ in walk_tree(start):
            below = place[len(start) :]
            if len(below) < _LONG and below.count("/") < _DEEP:
                continue
            while folders:
                moved += 1
                target = os.path.join(root, f".deep-{moved}")
                try:
                    os.rename(os.path.join(place, folders.pop()), target)
                except OSError:
                    continue
                todo.append(target)
