"""The folders of a daemon's host that runs work in: their own, which go away, and those that its operator shares.

Each daemon has a folder in the state directory and holds a lock on it while it lives. Whoever starts next removes what
daemons left that no longer do.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nexofork.engine.sandbox.system import kernel_files
from nexofork.engine.sandbox.view import plain_path, within
from nexofork.errors import ForkRefused, SandboxUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["REMOVE", "SharedFolders", "daemon_folder", "run_folder"]

REMOVE = ("/bin/bash", "-c", 'rm -rf -- "$1" 2>/dev/null || { chmod -R u+rwX -- "$1"; rm -rf -- "$1"; }', "bash")
"""Removes a folder, however deep and whatever its modes."""


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
