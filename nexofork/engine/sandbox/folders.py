"""Where a daemon keeps its runs' own files, and how they go away.

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

from nexofork.errors import SandboxUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["REMOVE", "daemon_folder", "run_folder"]

REMOVE = ("/bin/bash", "-c", 'rm -rf -- "$1" 2>/dev/null || { chmod -R u+rwX -- "$1"; rm -rf -- "$1"; }', "bash")
"""Removes a folder, however deep and whatever its modes."""


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
            lock = _locked(left)
            if lock is not None:
                _remove(left)
                os.close(lock)


def _remove(folder: Path) -> None:
    subprocess.run([*REMOVE, str(folder)], check=False, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
