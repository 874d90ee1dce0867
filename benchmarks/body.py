"""CPU of building a child's body from a 450 KB snapshot, beside ``messages.create`` of the same body.

The bar: under 5%. ``messages.create`` serialises the conversation for every call; a child is the parent's bytes with a
few edits. Mapping the snapshot happens once however many children there are; it is shown, and is not part of the
ratio.
"""

from __future__ import annotations

import asyncio
import statistics
import time

from anthropic import AsyncAnthropic

from benchmarks.conversation import as_bytes, conversation
from benchmarks.server import bench_server
from nexofork.core.prompt import ForkBase
from nexofork.core.reply import Reply
from nexofork.core.snapshot import CacheSafeParams

__all__ = ["main"]

BAR = 0.05
ROUNDS = 7
CALLS = 10
CHILDREN = 100


async def _create_s(url: str) -> float:
    request = conversation()
    async with AsyncAnthropic(base_url=url, api_key="bench") as client:
        for warm_up in (True, False):
            start = time.process_time()
            for _ in range(1 if warm_up else CALLS):
                stream = await client.messages.create(**request, stream=True)
                await stream.close()
    return (time.process_time() - start) / CALLS


def _child_s(snapshot: CacheSafeParams) -> float:
    start = time.process_time()
    for number in range(CHILDREN):
        bytes(ForkBase(snapshot).child(f"do part {number}").body())
    return (time.process_time() - start) / CHILDREN


def main() -> int:
    """Measure; return 1 when the bar is missed."""
    body = as_bytes()
    start = time.process_time()
    reply = Reply.from_response([{"type": "tool_use", "id": "toolu_1", "name": "Agent", "input": {"prompt": "x"}}])
    snapshot = CacheSafeParams.from_parent_request(body, reply=reply)
    _ = snapshot.markings
    mapped = time.process_time() - start
    with bench_server() as server:
        rounds = [(asyncio.run(_create_s(server.url)), _child_s(snapshot)) for _ in range(ROUNDS)]
    create, child = (statistics.median(figures) for figures in zip(*rounds, strict=True))
    kept = child < BAR * create
    print(f"body of {len(body) / 1000:.0f} KB, CPU, medians of {ROUNDS} rounds")
    print(f"  messages.create            {create * 1e3:8.3f} ms per call")
    print(f"  a child's body, joined     {child * 1e3:8.3f} ms   {child / create:6.1%} of it")
    print(f"  mapping the snapshot, once {mapped * 1e3:8.3f} ms   {mapped / create:6.1%} of it")
    print(f"Bar: a child's body under {BAR:.0%} of messages.create: {'kept' if kept else 'MISSED'}")
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
