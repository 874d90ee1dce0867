"""How soon a child's workspace is ready on a daemon, beside what git alone takes on the same disk.

A repository of 5,000 files, packed as a clone is, with a few dirty files. Ours: from the call of ``fork`` to the moment
the daemon has the files checked out; capture, NATS and the daemon's checks included. Theirs: ``git worktree add`` for a
fork whose base the daemon has, a local ``git clone`` for the first one. The bars: within 3 times the one and 2 times
the other. What the second fork ships is shown too.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from benchmarks.conversation import as_bytes
from benchmarks.fanout import REPLY, daemons
from benchmarks.server import bench_server
from nexofork.bus.connection import BusSettings, open_bus
from nexofork.bus.embedded import EmbeddedServer
from nexofork.bus.run_log import RunLog
from nexofork.client.fleet import connect
from nexofork.core.reply import Reply
from nexofork.core.snapshot import CacheSafeParams
from nexofork.run.params import ForkParams
from nexofork.wire.messages import Requested, WorkspaceReady
from nexofork.wire.workspace import GitSpec
from nexofork.workspace import GitWorkspace

if TYPE_CHECKING:
    from nexofork.client.fleet import NatsForkSubagent

__all__ = ["main"]

FILES = 5_000
ROUNDS = 3
WARM_BAR = 3.0
COLD_BAR = 2.0


def git(folder: Path, *arguments: str) -> None:
    """Run git in a folder."""
    who = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def make_repository(folder: Path) -> None:
    """Write a repository of so many files, in folders, packed."""
    chance = random.Random(5_000)
    for number in range(FILES):
        path = folder / f"package{number % 50}" / f"part{number % 7}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"value_{line} = {chance.random()}\n" for line in range(30)))
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "All")
    git(folder, "gc", "-q")


def dirty(folder: Path, round_: int) -> None:
    """Change a few files and add some."""
    for number in range(5):
        (folder / "package0/part0" / f"new{number}.py").write_text(f"round = {round_}\n")
        (folder / "package1/part1/module1.py").write_text(f"round = {round_}\n")


def git_s(folder: Path, scratch: Path, *arguments: str) -> float:
    """Seconds that git takes to make a checkout; it is removed afterwards."""
    target = scratch / "checkout"
    start = time.perf_counter()
    git(folder, *arguments, str(target))
    took = time.perf_counter() - start
    subprocess.run(["rm", "-rf", str(target)], check=True)
    git(folder, "worktree", "prune")
    return took


async def ready_s(forks: NatsForkSubagent, params: ForkParams, url: str) -> tuple[float, int]:
    """Fork; seconds until the daemon had the files, and how many bytes went along beyond the base."""
    start = time.time()
    handle = await forks.fork(params)
    result = await handle.result()
    if not result.ok:
        raise AssertionError(f"a fork ended as {result.status}: {result.error}")
    async with open_bus(BusSettings(urls=(url,))) as bus:
        messages = [entry.message for entry in await RunLog(bus, handle.run_id).entries()]
    ready = next(message for message in messages if isinstance(message, WorkspaceReady))
    spec = next(message.workspace for message in messages if isinstance(message, Requested))
    assert isinstance(spec, GitSpec)
    return ready.at - start, spec.thin.size if spec.thin else 0


async def measure() -> int:
    """Measure both ways in turn and compare."""
    snapshot = CacheSafeParams.from_parent_request(as_bytes(), reply=Reply.from_response(REPLY), sent_at=time.time())
    cold, clone, warm, added, shipped = [], [], [], [], 0
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nexofork-bench-")))
        server = stack.enter_context(bench_server())
        repository = scratch / "repository"
        repository.mkdir()
        make_repository(repository)
        params = ForkParams(cache_safe=snapshot, prompt_messages="go", workspace=GitWorkspace(repository))
        async with EmbeddedServer() as nats:
            for round_ in range(ROUNDS):
                dirty(repository, round_)
                git(repository, "commit", "-q", "-a", "-m", f"Round {round_}")  # so that the base is a new one
                clone.append(git_s(repository, scratch, "clone", "-q", str(repository)))
                state = ("--sandbox", "bwrap", "--state-dir", str(scratch / f"state{round_}"))
                with daemons(nats.url, server.url, count=1, options=state):
                    async with connect(nats.url) as forks:
                        cold.append((await ready_s(forks, params, nats.url))[0])
                        dirty(repository, round_ + 1_000)
                        added.append(git_s(repository, scratch, "worktree", "add", "-q", "--detach"))
                        took, shipped = await ready_s(forks, params, nats.url)
                        warm.append(took)
    return _report(*(statistics.median(figures) for figures in (warm, added, cold, clone)), shipped=shipped)


def _report(warm: float, added: float, cold: float, clone: float, *, shipped: int) -> int:
    kept = warm <= WARM_BAR * added and cold <= COLD_BAR * clone
    print(f"a repository of {FILES} files, medians of {ROUNDS} rounds")
    print(f"  git worktree add                         {added * 1e3:8.0f} ms")
    print(f"  a second fork's workspace on a daemon    {warm * 1e3:8.0f} ms   {warm / added:5.2f} of it")
    print(f"  git clone, local                         {clone * 1e3:8.0f} ms")
    print(f"  a first fork's workspace on a daemon     {cold * 1e3:8.0f} ms   {cold / clone:5.2f} of it")
    print(f"  a second fork ships                      {shipped / 1e3:8.1f} KB")
    bars = f"second within {WARM_BAR:g} x worktree add, first within {COLD_BAR:g} x clone"
    print(f"Bars: {bars}: {'kept' if kept else 'MISSED'}")
    return 0 if kept else 1


def main() -> int:
    """Measure; return 1 when a bar is missed."""
    return uvloop.run(measure())


if __name__ == "__main__":
    raise SystemExit(main())
