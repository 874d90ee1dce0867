"""One dream at a time in a memory folder, whichever processes and hosts share it.

The lock is a file in the folder that says who holds it; how long ago its holder was last heard of is the file's own
time, read against that of a file made just now, so that hosts with different clocks agree. Looking and taking are one
step under ``flock``, which holds across hosts on NFS too: of two who find a stale lock, one gets it. A holder that was
only paused finds out at its next beat that somebody else holds the lock now.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import socket
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.errors import ForkRefused
from nexofork.policy.filters import LOCK_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["Holder", "MemoryLock"]

_BEATS = 4
"""How often a holder is heard of before its lock would be stale."""
_TRIES = 40
_PAUSE_S = 0.005
_LONGEST = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who has the lock."""

    owner: str
    host: str
    pid: int
    age_s: float
    """Since it was last heard of."""

    def __str__(self) -> str:
        who = self.owner or f"process {self.pid} on {self.host}" if self.host else "somebody"
        return f"{who}, last heard of {self.age_s:.0f} s ago"


class MemoryLock:
    """A memory folder's lock, held or not."""

    def __init__(self, folder: Path, *, owner: str = "", stale_s: float = 120.0) -> None:
        """Prepare to take the lock.

        Args:
            folder: The memory folder.
            owner: Who wants it, for others to read; process and host unless said.
            stale_s: After how long without a sign of life a lock may be taken from its holder.

        Raises:
            ForkRefused: The time is none.
        """
        if not stale_s > 0:
            raise ForkRefused(f"stale_s is {stale_s}; give seconds above 0.")
        self._path = folder / LOCK_FILE
        self._folder = folder
        self._owner = owner
        self._stale_s = stale_s
        self._token = secrets.token_hex(8)

    def acquire(self) -> Holder | None:
        """Take the lock if it is free or stale; else return who holds it.

        Raises:
            ForkRefused: The folder cannot hold a lock.
        """
        try:
            with self._alone() as file:
                holder = self._holder(file)
                if holder is not None and holder.age_s <= self._stale_s:
                    return holder
                self._write(file)
                return None
        except BlockingIOError:
            return Holder(owner="", host="", pid=0, age_s=0.0)  # somebody takes or gives it at this moment
        except OSError as exc:
            raise ForkRefused(
                f"The memory folder {self._folder} cannot be locked: {exc.strerror}. Name one that can be written."
            ) from exc

    def beat(self) -> bool:
        """Show that the holder is alive; False where the lock is not its own any more."""
        try:
            if self._record().get("token") != self._token:
                return False
            os.utime(self._path)  # by the file system's clock
        except OSError:
            return False
        return True

    def release(self) -> None:
        """Give the lock back; where that fails, it becomes stale."""
        with suppress(OSError), self._alone() as file:
            if self._record().get("token") == self._token:
                os.ftruncate(file, 0)

    @contextmanager
    def kept(self, lost: Callable[[], object]) -> Iterator[None]:
        """Hold the lock, which is taken, to the end of the block; calls back once if somebody else got it."""
        loop = asyncio.get_running_loop()
        every = self._stale_s / _BEATS

        timers: list[asyncio.TimerHandle] = []

        def beat() -> None:
            if self.beat():
                timers[:] = [loop.call_later(every, beat)]
            else:
                lost()

        timers.append(loop.call_later(every, beat))
        try:
            yield
        finally:
            timers[0].cancel()
            self.release()

    @contextmanager
    def _alone(self) -> Iterator[int]:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            _lock(file)
            yield file
        finally:
            os.close(file)

    def _holder(self, file: int) -> Holder | None:
        info = os.fstat(file)
        if info.st_size == 0:
            return None
        with tempfile.TemporaryFile(dir=self._folder, prefix=LOCK_FILE) as probe:
            now = os.fstat(probe.fileno()).st_mtime
        record, pid = self._record(), self._record().get("pid")
        return Holder(
            owner=str(record.get("owner", "")),
            host=str(record.get("host", "")),
            pid=pid if isinstance(pid, int) else 0,
            age_s=max(now - info.st_mtime, 0.0),
        )

    def _record(self) -> dict[str, object]:
        """Return what the lock says; nothing where that cannot be read, which makes it nobody's until it is stale."""
        try:
            with open(self._path, "rb") as file:
                found = json.loads(file.read(_LONGEST))
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, file: int) -> None:
        record = {
            "owner": self._owner,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": time.time(),
            "token": self._token,
        }
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(record).encode(), 0)


def _lock(file: int) -> None:
    """Lock a file for the few steps that follow; others hold it as shortly."""
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not left:
                raise
            time.sleep(_PAUSE_S)
        else:
            return
