"""The folders of a daemon's host that runs work in, and how much a run has written there.

Each daemon has a folder in the state directory and holds a lock on it while it lives. The next daemon to start removes
what dead daemons left. Other folders are those that the operator shares.

Only a file system can limit a folder, and an unprivileged daemon cannot make one. So the free space of the disk is
looked at, which is one call, and the run's files are counted when so much of it has gone that the run may have used up
half of what it has left. Another process may free as much at the same time, so they are counted now and then as well,
for a twentieth of the time at most. What commands deleted and still hold is counted too.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nexofork.errors import ForkRefused, SandboxUnavailable
from nexofork.sandbox.mounts import kernel_files, plain_path, within

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nexofork.tools.limits import Watch

__all__ = ["REMOVE", "DiskMeter", "SharedFolders", "daemon_folder", "disk_usage", "run_folder"]

REMOVE = ("/bin/bash", "-c", 'rm -rf -- "$1" 2>/dev/null || { chmod -R u+rwX -- "$1"; rm -rf -- "$1"; }', "bash")
"""Removes a folder, however deep and whatever its modes."""
_LEAST_BYTES = 1024 * 1024
_COUNT_EVERY_S = 2.0
_COUNT_SHARE = 20
_LONG = 2048
_LEAST_FILE_BYTES = 4096
"""What a file counts at least: a file system has room for so many only, and an empty one takes no block."""
_UNCOUNTABLE = 1 << 62


class SharedFolders:
    """The folders that an operator shares with parents: a request may name one, or a folder in one.

    A path is followed component by component from the shared folder down, and never through a link: a run that may
    write there could otherwise lead another one out of it.
    """

    def __init__(self, shared: Iterable[str | Path] = (), *, hidden: Iterable[str] = (), bare: bool = False) -> None:
        """Take what the operator set.

        Args:
            shared: The folders, absolute.
            hidden: The daemon's own files and folders, canonical: its home, its state, its credentials.
            bare: Whether commands run without a sandbox, which would hide the files among those.
        """
        self._spelt = {plain_path(str(path)) or "": os.path.realpath(path) for path in shared}
        self._hidden, self._bare = tuple(hidden), bare
        self.roots = tuple(map(Path, dict.fromkeys(self._spelt.values())))
        """The shared folders, canonical."""

    @contextmanager
    def opened(self, path: str) -> Iterator[tuple[Path, int]]:
        """Open a folder that a request named; give its canonical path and a descriptor of it.

        Raises:
            ForkRefused: It is not shared, leads through a link, or no run may work in it.
            FileNotFoundError: It would be shared, and is not there.
        """
        real = self._shared_path(path)
        descriptor = os.open("/", os.O_PATH | os.O_DIRECTORY)
        try:
            for name in filter(None, real.split("/")):
                inner = _next(descriptor, name, path)
                os.close(descriptor)
                descriptor = inner
            self._refuse_own(real)
            if (kernels := kernel_files(real, descriptor)) is not None:
                raise ForkRefused(
                    f"A run cannot work in {real}: {kernels} holds files of the kernel. "
                    "Its operator can share another folder with --shared-dir."
                )
            yield Path(real), descriptor
        finally:
            os.close(descriptor)

    def _shared_path(self, path: str) -> str:
        """Return the path with its shared folder canonical; what is below that is as it was named."""
        plain = plain_path(path) or ""
        for spelt, root in (*self._spelt.items(), *((root, root) for root in self._spelt.values())):
            if plain and spelt and within(plain, spelt):
                return os.path.normpath(root + "/" + plain[len(spelt) :])
        shared = ", ".join(map(str, self.roots)) or "none"
        raise ForkRefused(
            f"The folder {path!r} is not shared with runs on this host (shared are: {shared}). "
            "Its operator can share it with --shared-dir."
        )

    def _refuse_own(self, path: str) -> None:
        for hidden in self._hidden:
            # What is shared has to lie in what is hidden: sharing a home does not share the state folder in it.
            shared = any(within(path, str(root)) and within(str(root), hidden) for root in self.roots)
            inside = within(hidden, path) and (self._bare or os.path.isdir(hidden))
            if inside or (within(path, hidden) and not shared):
                raise ForkRefused(
                    f"A run cannot work in {path}: it is in, or holds, {hidden}, which is the daemon's own. "
                    "Its operator can share another folder with --shared-dir."
                )


def _next(folder: int, name: str, path: str) -> int:
    try:
        return os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    except NotADirectoryError as exc:
        raise ForkRefused(
            f"The folder {path!r} is not used: {name!r} in it is a link or no folder. Name a folder that is shared "
            "(--shared-dir) without links."
        ) from exc
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise ForkRefused(f"The folder {path!r} cannot be opened on this host ({exc.strerror}).") from exc


@contextmanager
def daemon_folder(state_dir: Path) -> Iterator[Path]:
    """Make a folder for this daemon; it is gone at the end.

    Raises:
        SandboxUnavailable: The state directory cannot be written.
    """
    home = state_dir / "sandbox"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = Path(os.path.realpath(home)) / secrets.token_hex(6)
        with _alone(home):
            folder.mkdir(mode=0o700)
            lock = _locked(folder)
    except OSError as exc:
        raise SandboxUnavailable(
            f"the state directory {state_dir} cannot be written ({exc.strerror})",
            fix="Give one that can with --state-dir.",
        ) from exc
    assert lock is not None, "nobody else knows its name"
    try:
        _sweep(home)
        yield folder
    finally:
        _remove(folder)
        os.close(lock)


@contextmanager
def run_folder(folder: Path, name: str) -> Iterator[Path]:
    """Make a folder for one run: its ``/tmp``, its shared memory and a place to work.

    Removing it is left to the caller, who need not wait for it here.
    """
    made = folder / f"{name[:80]}-{secrets.token_hex(4)}"
    for part in ("", "tmp", "shm", "work"):
        (made / part).mkdir(mode=0o700)
    yield made


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Hold off other daemons: a folder that was made and is not locked yet looks like one of a dead daemon."""
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _locked(folder: Path) -> int | None:
    """Lock a daemon's folder; None where it is another's."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _sweep(home: Path) -> None:
    for left in home.iterdir():
        with suppress(OSError):
            with _alone(home):
                lock = _locked(left)
            if lock is not None:
                _remove(left)
                os.close(lock)


def _remove(folder: Path) -> None:
    subprocess.run([*REMOVE, str(folder)], check=False, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class DiskMeter:
    """Watches what a run's folders grow by."""

    def __init__(self, folders: Sequence[str], *, limit: int) -> None:
        self.limit = limit
        """What they may grow by, in bytes."""
        self._folders = folders
        self._at_first: int | None = None
        self._deleted: dict[Watch, int] = {}
        self._used = 0
        self._used_at_start = 0
        self._free = 0
        self._due = 0.0

    def begin(self) -> None:
        """A command starts; before the first one, what there is already is counted. May take a while."""
        if self._at_first is None:
            found = self._count()
            self._at_first = found if found < _UNCOUNTABLE else 0
        self._used_at_start = self._used

    def suspicious(self) -> bool:
        """Whether it is time to count."""
        gone = self._free - self._free_now()
        return time.monotonic() >= self._due or 2 * gone >= max(self.limit - self._used, _LEAST_BYTES)

    def problem(self, command: Watch) -> str | None:
        """Count, and say whether a command made it too much; may take a while. Making it less is always fine."""
        self._deleted[command] = command.deleted_bytes()
        self._used = self._count() + sum(self._deleted.values()) - (self._at_first or 0)
        if self._used > max(self.limit, self._used_at_start):
            return f"its files grew by more than {self.limit} bytes; remove what is not needed"
        return None

    def forget(self, command: Watch) -> None:
        """A command has ended, and what it deleted is gone."""
        self._used -= self._deleted.pop(command, 0)

    def _count(self) -> int:
        begun = time.monotonic()
        self._free = self._free_now()
        size = disk_usage(self._folders)
        took = time.monotonic() - begun
        self._due = time.monotonic() + max(_COUNT_EVERY_S, _COUNT_SHARE * took)
        return size

    def _free_now(self) -> int:
        free, seen = 0, set()
        for folder in self._folders:
            with suppress(OSError):
                found = os.statvfs(folder)
                if found.f_fsid not in seen:
                    seen.add(found.f_fsid)
                    free += found.f_bfree * found.f_frsize
        return free


def disk_usage(folders: Iterable[str | Path]) -> int:
    """Return how many bytes folders take on the disk; what is in several of them, or has several names, counts once."""
    seen: set[tuple[int, int]] = set()
    try:
        return sum(_size_below(os.fspath(folder), seen) for folder in folders)
    except RecursionError:
        return _UNCOUNTABLE


def _size_below(folder: str, seen: set[tuple[int, int]]) -> int:
    total, todo = 0, [folder]
    while todo:
        at = todo.pop()
        if len(at) > _LONG:  # the kernel takes no much longer paths
            total += _size_apart(at, seen)
            continue
        try:
            with os.scandir(at) as entries:
                for entry in entries:
                    with suppress(OSError):
                        total += _size_of(entry, seen, todo)
        except PermissionError:
            total += _size_apart(at, seen)
        except OSError:
            continue
    return total


def _size_of(entry: os.DirEntry[str], seen: set[tuple[int, int]], todo: list[str]) -> int:
    found = entry.stat(follow_symlinks=False)
    if found.st_nlink > 1 or entry.is_dir(follow_symlinks=False):
        if (found.st_dev, found.st_ino) in seen:
            return 0
        seen.add((found.st_dev, found.st_ino))
    if entry.is_dir(follow_symlinks=False):
        todo.append(entry.path)
    return max(found.st_blocks * 512, _LEAST_FILE_BYTES)


def _size_apart(folder: str, seen: set[tuple[int, int]]) -> int:
    """Count a folder by a descriptor, so that its path is short; one that a command has locked is open meanwhile."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            path = f"/proc/self/fd/{descriptor}"
            mode = stat.S_IMODE(os.stat(path).st_mode)
            if mode & 0o500 == 0o500:
                return 0 if len(folder) <= _LONG else _size_below(path, seen)
            os.chmod(path, mode | 0o500)
            try:
                return _size_below(path, seen)
            finally:
                os.chmod(path, mode)
        finally:
            os.close(descriptor)
    return 0
