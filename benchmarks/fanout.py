"""How long until the last of 100 children's requests is at the provider, beside the same fan-out in one process.

Ours: a parent publishes 100 forks, two daemon processes run them. Theirs: ``asyncio.gather`` over
``AsyncAnthropic.messages.create(stream=True)`` in the parent's own process. Both send the same 450 KB conversation to
the same server and have run once before, so connections are open and the prefix counts as written. The bar: at most
half the time. Shown besides: what one more child costs on the wire, and what the daemons hold in memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import uvloop
from anthropic import AsyncAnthropic

from benchmarks.conversation import as_bytes, conversation
from benchmarks.server import BenchServer, bench_server
from nexofork.bus.embedded import EmbeddedServer
from nexofork.client.fleet import FleetSettings, connect
from nexofork.core.reply import Reply
from nexofork.core.snapshot import CacheSafeParams
from nexofork.engine.params import ForkParams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nexofork.client.fleet import NatsForkSubagent

__all__ = ["main"]

BAR = 0.5
CHILDREN = 100
ROUNDS = 5
DAEMONS = 2
_REPLY = [{"type": "tool_use", "id": "toolu_1", "name": "Agent", "input": {"prompt": "x"}}]


@contextmanager
def daemons(nats_url: str, api_url: str) -> Iterator[list[int]]:
    """Run the daemon processes; yields their pids."""
    environment = {**os.environ, "ANTHROPIC_API_KEY": "bench", "ANTHROPIC_BASE_URL": api_url}
    with ExitStack() as stack:
        pids = []
        for number in range(DAEMONS):
            command = [sys.executable, "-m", "nexofork_daemon", "--nats", nats_url, "--name", f"d{number}"]
            process = stack.enter_context(
                subprocess.Popen(
                    [*command, "--slots", str(CHILDREN)], stdout=subprocess.PIPE, env=environment, text=True
                )
            )
            stack.callback(process.terminate)
            assert process.stdout is not None
            process.stdout.readline()
            pids.append(process.pid)
        yield pids


async def ours_s(forks: NatsForkSubagent, params: ForkParams, server: BenchServer) -> float:
    """Fan out over the fleet; seconds until the last request had arrived."""
    server.arrivals()
    start = time.time()
    handles = await forks.fork_each(params, [f"do part {number}" for number in range(CHILDREN)])
    for handle in handles:
        result = await handle.result()
        if not result.ok:
            raise AssertionError(f"a fork ended as {result.status}: {result.error}")
    return max(server.arrivals()) - start


async def theirs_s(client: AsyncAnthropic, server: BenchServer) -> float:
    """Fan out in this process; seconds until the last request had arrived."""
    requests = []
    for number in range(CHILDREN):
        request = conversation()
        request["messages"] = [
            *request["messages"],
            {"role": "assistant", "content": "yes"},
            {"role": "user", "content": f"do part {number}"},
        ]
        requests.append(request)

    async def one(request: dict[str, Any]) -> None:
        async for _ in await client.messages.create(**request, stream=True):
            pass

    server.arrivals()
    start = time.time()
    async with asyncio.TaskGroup() as tasks:
        for request in requests:
            tasks.create_task(one(request))
    return max(server.arrivals()) - start


def traffic_bytes(monitor_url: str) -> int:
    """Return what the NATS server has taken in and sent out so far."""
    with urllib.request.urlopen(f"{monitor_url}/varz") as answer:
        figures = json.load(answer)
    return int(figures["in_bytes"]) + int(figures["out_bytes"])


def memory_mb(pid: int) -> float:
    """Return a process's resident memory."""
    with open(f"/proc/{pid}/statm") as figures:
        return int(figures.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def measure() -> int:
    """Run both ways in turn and compare."""
    snapshot = CacheSafeParams.from_parent_request(as_bytes(), reply=Reply.from_response(_REPLY), sent_at=time.time())
    params = ForkParams(cache_safe=snapshot, prompt_messages="")
    with bench_server() as server:
        async with EmbeddedServer() as nats:
            with daemons(nats.url, server.url) as pids:
                async with (
                    connect(nats.url, settings=FleetSettings(window=2 * CHILDREN)) as forks,
                    AsyncAnthropic(base_url=server.url, api_key="bench") as client,
                ):
                    idle = max(memory_mb(pid) for pid in pids)
                    await ours_s(forks, params, server)
                    await theirs_s(client, server)
                    before = traffic_bytes(nats.monitor_url)
                    ours = [await ours_s(forks, params, server) for _ in range(ROUNDS)]
                    wire = (traffic_bytes(nats.monitor_url) - before) / ROUNDS / CHILDREN
                    theirs = [await theirs_s(client, server) for _ in range(ROUNDS)]
                    used = max(memory_mb(pid) for pid in pids)
    return _report(statistics.median(ours), statistics.median(theirs), wire, idle, used)


def _report(ours: float, theirs: float, wire: float, idle: float, used: float) -> int:
    kept = ours <= BAR * theirs
    print(f"{CHILDREN} children of a {len(as_bytes()) / 1000:.0f} KB conversation, medians of {ROUNDS} rounds")
    print(f"  in process, messages.create(stream=True)  {theirs * 1e3:8.0f} ms until the last request arrived")
    print(f"  over NATS to {DAEMONS} daemons                   {ours * 1e3:8.0f} ms   {ours / theirs:6.1%} of it")
    print(f"  NATS traffic per further child            {wire / 1000:8.1f} KB")
    print(f"  largest daemon: idle {idle:.0f} MB, after the rounds {used:.0f} MB")
    print(f"Bar: at most {BAR:.0%} of the time in process: {'kept' if kept else 'MISSED'}")
    return 0 if kept else 1


def main() -> int:
    """Measure; return 1 when the bar is missed."""
    return uvloop.run(measure())


if __name__ == "__main__":
    raise SystemExit(main())
