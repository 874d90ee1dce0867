"""How long until the last of 100 children's requests is at the provider, beside the same fan-out in one process.

Ours: a parent publishes 100 forks, two daemon processes run them. Theirs: ``asyncio.gather`` over
``AsyncAnthropic.messages.create(stream=True)`` in the parent's own process. Both send the same 450 KB conversation to
the same server and have run once before, so connections are open and the prefix counts as written. The bar: at most
half the time. Then 1,000 children at once: each has to reach the provider exactly once, and one more child may cost at
most 8 KB on the wire.
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
from nexofork.run.params import ForkParams

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nexofork.client.fleet import NatsForkSubagent

__all__ = ["main"]

BAR = 0.5
CHILDREN = 100
MANY = 1000
WIRE_BAR_KB = 8.0
ROUNDS = 5
DAEMONS = 2
REPLY = [{"type": "tool_use", "id": "toolu_1", "name": "Agent", "input": {"prompt": "x"}}]


@contextmanager
def daemons(
    nats_url: str, api_url: str, *, count: int = DAEMONS, slots: int = 100, options: Sequence[str] = ()
) -> Iterator[list[int]]:
    """Run daemon processes; yields their pids."""
    environment = {**os.environ, "ANTHROPIC_API_KEY": "bench", "ANTHROPIC_BASE_URL": api_url}
    with ExitStack() as stack:
        pids = []
        for number in range(count):
            command = [
                sys.executable,
                "-m",
                "nexofork_daemon",
                "--nats",
                nats_url,
                "--name",
                f"d{number}",
                "--sandbox",
                "none",
                "--allow-root",
            ]
            process = stack.enter_context(
                subprocess.Popen(
                    [*command, "--slots", str(slots), *options], stdout=subprocess.PIPE, env=environment, text=True
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


async def many(forks: NatsForkSubagent, params: ForkParams, server: BenchServer) -> int:
    """Fork a thousand times and return how many requests the provider got."""
    server.arrivals()
    handles = await forks.fork_each(params, [f"do part {number}" for number in range(MANY)])
    if not all([(await handle.result()).ok for handle in handles]):
        raise AssertionError("a fork did not complete")
    return len(server.arrivals())


async def measure() -> int:
    """Run both ways in turn and compare."""
    snapshot = CacheSafeParams.from_parent_request(as_bytes(), reply=Reply.from_response(REPLY), sent_at=time.time())
    params = ForkParams(cache_safe=snapshot, prompt_messages="")
    with bench_server() as server:
        async with EmbeddedServer() as nats:
            with daemons(nats.url, server.url):
                async with (
                    connect(nats.url, settings=FleetSettings(window=2 * CHILDREN)) as forks,
                    AsyncAnthropic(base_url=server.url, api_key="bench") as client,
                ):
                    await ours_s(forks, params, server)
                    await theirs_s(client, server)
                    ours = [await ours_s(forks, params, server) for _ in range(ROUNDS)]
                    theirs = [await theirs_s(client, server) for _ in range(ROUNDS)]
                    before = traffic_bytes(nats.monitor_url)
                    arrived = await many(forks, params, server)
                    wire_kb = (traffic_bytes(nats.monitor_url) - before) / MANY / 1000
    return _report(statistics.median(ours), statistics.median(theirs), arrived, wire_kb)


def _report(ours: float, theirs: float, arrived: int, wire_kb: float) -> int:
    kept = ours <= BAR * theirs and arrived == MANY and wire_kb < WIRE_BAR_KB
    print(f"{CHILDREN} children of a {len(as_bytes()) / 1000:.0f} KB conversation, medians of {ROUNDS} rounds")
    print(f"  in process, messages.create(stream=True)  {theirs * 1e3:8.0f} ms until the last request arrived")
    print(f"  over NATS to {DAEMONS} daemons                   {ours * 1e3:8.0f} ms   {ours / theirs:6.1%} of it")
    print(f"{MANY} children: {arrived} requests, {wire_kb:.1f} KB of NATS traffic for each")
    bars = f"at most {BAR:.0%} of the time in process, every child once, under {WIRE_BAR_KB:.0f} KB each"
    print(f"Bars: {bars}: {'kept' if kept else 'MISSED'}")
    return 0 if kept else 1


def main() -> int:
    """Measure; return 1 when the bar is missed."""
    return uvloop.run(measure())


if __name__ == "__main__":
    raise SystemExit(main())
