"""Open exactly the file that was named, and nothing that only looks like it.

A path is resolved once, links and ``..`` included, and then opened component by component without following a link: a
directory or file that somebody swaps for a link between the two is an error, not another file. So whoever judges the
canonical path has judged what is opened. What is left: a hard link is the file itself, and a file may be replaced by
another at the same path.

Only regular files are opened, so nothing waits for the other end of a pipe. What the kernel shows of processes and
devices is not for these tools: the daemon's own environment is among it.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.sandbox.mounts import NotShown
from nexofork.tools.arguments import Unable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nexofork.sandbox.mounts import View
    from nexofork.sandbox.run_sandbox import Enclosure

__all__ = ["KERNEL_FOLDERS", "FilePath", "explained", "find_path", "folder_of", "opened"]

KERNEL_FOLDERS = ("/proc", "/sys", "/dev")
_KINDS = (
    (stat.S_ISDIR, "a directory; use Glob to list it"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISLNK, "a link that has just been made; try again"),
)


@dataclass(frozen=True, slots=True)
class FilePath:
    """A canonical path, absolute and without links and ``..``."""

    shown: str
    """As the fork knows it."""
    real: str
    """Where this process finds it, which differs only in a sandbox."""
    writable: bool = True

    def __str__(self) -> str:
        return self.shown

    @property
    def name(self) -> str:
        """Its last part."""
        return os.path.basename(self.real)


def find_path(given: str, *, cwd: Path | None, sandbox: Enclosure | None = None, view: View | None = None) -> FilePath:
    """Return where a path leads; ``~`` is a name like any other.

    Args:
        given: The path, absolute or relative to where the run works.
        cwd: Where that is without a sandbox; None is where this process runs.
        sandbox: What the run sees.
        view: How to read paths without a sandbox; None is as they stand.

    Raises:
        Unable: It cannot be a path, or leads to what is the kernel's or not to be seen in the sandbox.
    """
    try:
        os.fsencode(given)
        if "\0" in given:
            raise ValueError("it holds a NUL")
        if sandbox is not None:
            return _inside(os.path.join(sandbox.cwd, given), sandbox)
        path = os.path.join(cwd or os.getcwd(), given)
        path = os.path.realpath(path) if view is None else view.find(path).outside
    except (OSError, ValueError) as exc:
        raise Unable(f"{given!r} is not a path: {exc}.") from exc
    _refuse_kernel_files(path)
    return FilePath(path, path)


def _inside(path: str, sandbox: Enclosure) -> FilePath:
    try:
        found = sandbox.view.find(path)
    except NotShown as exc:
        _refuse_kernel_files(str(exc))
        own = ", ".join(sandbox.own)
        raise Unable(f"{exc} is not available here. This fork may change {own}, and read the system's files.") from exc
    _refuse_kernel_files(found.inside)
    return FilePath(found.inside, found.outside, found.writable)


def _refuse_kernel_files(path: str) -> None:
    """Refuse what the kernel shows of processes and devices.

    Raises:
        Unable: The canonical path is such a file.
    """
    if any(path == folder or path.startswith(folder + "/") for folder in KERNEL_FOLDERS):
        raise Unable(f"{path} belongs to the kernel and is not read or written here.")


@contextmanager
def folder_of(path: FilePath, *, create: bool = False) -> Iterator[int]:
    """Open the folder that a canonical path is in, without following links; make what is missing if told to.

    Raises:
        OSError: It cannot be opened.
    """
    folder = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        for part in path.real.split("/")[1:-1]:
            inner = _inner(folder, part, create=create)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def _inner(folder: int, part: str, *, create: bool) -> int:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        return os.open(part, flags, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):
        os.mkdir(part, dir_fd=folder)
    return os.open(part, flags, dir_fd=folder)


@contextmanager
def opened(path: FilePath, folder: int) -> Iterator[int]:
    """Open a regular file in its folder to read from.

    Raises:
        Unable: It is no regular file.
        OSError: It cannot be opened.
    """
    name = path.name
    if not name:
        raise Unable(f"{path} is a directory; use Glob to list it.")
    _refuse_special(path, os.stat(name, dir_fd=folder, follow_symlinks=False))
    # Looked at before, so that no device is touched; looked at again, because it may have been replaced.
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=folder)
    try:
        found = os.fstat(descriptor)
        _refuse_special(path, found)
        with suppress(OSError):
            if found.st_dev == os.stat("/proc").st_dev:
                raise Unable(f"{path} belongs to the kernel and is not read or written here.")
        yield descriptor
    finally:
        os.close(descriptor)


def _refuse_special(path: FilePath, found: os.stat_result) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    kind = next((words for test, words in _KINDS if test(found.st_mode)), "no regular file")
    raise Unable(f"{path} is {kind}.")


def explained(path: FilePath, exc: OSError) -> Unable:
    """Say what the system said, in words that tell the model what to do."""
    said = {
        errno.ENOENT: f"{path} does not exist. Use Glob to find the file.",
        errno.EACCES: f"{path} may not be opened: permission denied.",
        errno.EPERM: f"{path} may not be opened: permission denied.",
        errno.ENOTDIR: f"{path} cannot be there: a part of the path before its name is not a directory.",
        errno.EISDIR: f"{path} is a directory.",
        errno.ELOOP: f"{path} leads through links in a circle, or became one while it was opened.",
        errno.ENAMETOOLONG: f"{path.shown[:200]}… is too long for a path.",
        errno.ENOSPC: f"{path} was not written: the disk is full. The file is as it was.",
        errno.EDQUOT: f"{path} was not written: the disk quota is used up. The file is as it was.",
        errno.EROFS: f"{path} was not written: the file system is read-only.",
    }.get(exc.errno or 0)
    return Unable(said or f"{path}: {exc.strerror or type(exc).__name__}.")
