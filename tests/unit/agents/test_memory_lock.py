"""The lock of a memory folder: one holder, whoever they are; a stale one is taken by exactly one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from nexofork.agents.sidecars.lock import MemoryLock
from nexofork.errors import ForkRefused
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

CONTEND = """
import sys, time
from pathlib import Path
from nexofork.agents.sidecars.lock import MemoryLock
while time.time() < float(sys.argv[2]):
    pass
print(MemoryLock(Path(sys.argv[1]), owner=sys.argv[3]).acquire() is None)
"""


def aged(folder: Path, seconds: float) -> None:
    """Make the folder's lock look as if its holder was last heard of so long ago."""
    then = time.time() - seconds
    os.utime(folder / ".dream.lock", (then, then))


def test_a_lock_has_one_holder_and_says_who(tmp_path: Path) -> None:
    """The second is told the owner; given back, it is free."""
    first, second = MemoryLock(tmp_path, owner="nightly"), MemoryLock(tmp_path)
    assert first.acquire() is None
    holder = second.acquire()
    assert holder is not None
    assert (holder.owner, holder.pid) == ("nightly", os.getpid())
    assert str(holder) == "nightly, last heard of 0 s ago"
    assert not second.beat()
    second.release()
    assert second.acquire() is not None, "giving back what is another's changes nothing"
    first.release()
    assert second.acquire() is None


def test_a_stale_lock_is_taken_and_its_holder_finds_out(tmp_path: Path) -> None:
    """A paused holder's beat fails, and its giving back leaves the new holder alone."""
    paused, other = MemoryLock(tmp_path, stale_s=10), MemoryLock(tmp_path, stale_s=10)
    assert paused.acquire() is None
    aged(tmp_path, 9)
    assert other.acquire() is not None
    aged(tmp_path, 11)
    assert other.acquire() is None
    assert (paused.beat(), other.beat()) == (False, True)
    paused.release()
    assert other.beat()


def test_a_beat_keeps_a_lock_from_becoming_stale(tmp_path: Path) -> None:
    """It counts from the last sign of life, not from the beginning."""
    holder, other = MemoryLock(tmp_path, stale_s=10), MemoryLock(tmp_path, stale_s=10)
    assert holder.acquire() is None
    aged(tmp_path, 11)
    assert holder.beat()
    assert other.acquire() is not None


def test_of_many_that_find_a_stale_lock_one_gets_it(tmp_path: Path) -> None:
    """Threads of one process, all at once, again and again."""
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            (tmp_path / ".dream.lock").write_text(json.dumps({"owner": "dead", "token": "x"}))
            aged(tmp_path, 1000)
            locks = [MemoryLock(tmp_path) for _ in range(8)]
            taken = [holder is None for holder in pool.map(MemoryLock.acquire, locks)]
            assert taken.count(True) == 1


def test_of_several_processes_one_gets_it(tmp_path: Path) -> None:
    """They start at the same moment on a lock that is stale."""
    (tmp_path / ".dream.lock").write_text("{}")
    aged(tmp_path, 1000)
    at = str(time.time() + 1.0)
    command = [sys.executable, "-c", CONTEND, str(tmp_path), at]
    racing = [subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True) for number in range(3)]
    said = [process.communicate(timeout=PATIENCE_S)[0].strip() for process in racing]
    assert sorted(said) == ["False", "False", "True"]


@pytest.mark.parametrize("words", [b"\xff", b"[]", b'{"pid": "x"}', b"{" * 5000, b"[" * 5000])
def test_a_lock_that_cannot_be_read_is_held_until_it_is_stale(tmp_path: Path, words: bytes) -> None:
    """Nobody knows whose it is, so nobody may take it early."""
    (tmp_path / ".dream.lock").write_bytes(words)
    lock = MemoryLock(tmp_path, stale_s=10)
    assert lock.acquire() is not None
    aged(tmp_path, 11)
    assert lock.acquire() is None
    assert lock.beat()


def test_a_folder_that_cannot_hold_a_lock_is_refused(tmp_path: Path) -> None:
    """It is not there, or the lock's place is taken."""
    with pytest.raises(ForkRefused, match="cannot be locked"):
        MemoryLock(tmp_path / "none").acquire()
    (tmp_path / ".dream.lock").mkdir()
    with pytest.raises(ForkRefused, match="cannot be locked"):
        MemoryLock(tmp_path).acquire()
    with pytest.raises(ForkRefused, match="stale_s is 0"):
        MemoryLock(tmp_path, stale_s=0)


async def test_a_lock_that_is_kept_stays_fresh_and_is_given_back(tmp_path: Path) -> None:
    """Beats come by themselves; a lock that was taken away is told once."""
    lock, lost = MemoryLock(tmp_path, stale_s=0.2), asyncio.Event()
    assert lock.acquire() is None
    with lock.kept(lost.set):
        aged(tmp_path, 5)
        async with asyncio.timeout(5):
            while time.time() - (tmp_path / ".dream.lock").stat().st_mtime > 1:  # noqa: ASYNC110 - only the file shows it
                await asyncio.sleep(0.01)
        assert not lost.is_set()
        (tmp_path / ".dream.lock").write_text(json.dumps({"owner": "thief", "token": "other"}))
        async with asyncio.timeout(5):
            await lost.wait()
    assert json.loads((tmp_path / ".dream.lock").read_text())["owner"] == "thief"
