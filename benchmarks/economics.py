"""What 20 cold children of a long conversation are billed for input, beside the same children as plain SDK calls.

Ours: a parent with nothing but its request publishes the forks, three daemon processes run them. Theirs: the SDK in one
process, all calls at once, once without caching and once with ``cache_control`` set. All of them talk to the simulator,
whose first byte takes as long as a model's would, and its log says what was billed. The bars: within 2% of the lowest
bill there is (one write, everything else read), and at most a fifth of the cheaper one of theirs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import uvloop
from anthropic import AsyncAnthropic

from benchmarks.conversation import as_bytes, conversation
from benchmarks.fanout import daemons
from nexofork.bus.embedded import EmbeddedServer
from nexofork.client.fleet import connect
from nexofork.core.reply import Reply
from nexofork.core.snapshot import CacheSafeParams
from nexofork.run.params import ForkParams
from nexofork.simulator import simulator_thread

if TYPE_CHECKING:
    from nexofork.simulator import RequestRecord, ThreadedSimulator

__all__ = ["main"]

BAR = 1.02
SHARE_BAR = 0.2
CHILDREN = 20
DAEMONS = 3
FIRST_BYTE_S = 1.0
INPUT, READ = 5.0, 0.5
"""Dollars per million tokens of the conversation's model."""
SAID = [{"type": "text", "text": "I look into it."}]


async def ours(sim: ThreadedSimulator) -> list[RequestRecord]:
    """Fork onto the fleet; returns the log."""
    snapshot = CacheSafeParams.from_parent_request(as_bytes(), reply=Reply.from_response(SAID))
    sim.reset()
    sim.script({"turns": [{"text": "Result: done", "delay_s": FIRST_BYTE_S}]})
    async with EmbeddedServer() as nats:
        with daemons(nats.url, sim.url, count=DAEMONS):
            async with connect(nats.url) as forks:
                params = ForkParams(cache_safe=snapshot, prompt_messages="")
                handles = await forks.fork_each(params, [f"do part {number}" for number in range(CHILDREN)])
                if not all([(await handle.result()).ok for handle in handles]):
                    raise AssertionError("a fork did not complete")
    return sim.log


async def theirs(sim: ThreadedSimulator, *, marked: bool) -> list[RequestRecord]:
    """Make the same calls with the SDK, all at once; returns the log."""
    sim.reset()
    sim.script({"turns": [{"text": "Result: done", "delay_s": FIRST_BYTE_S}]})
    async with AsyncAnthropic(base_url=sim.url, api_key="bench") as client, asyncio.TaskGroup() as tasks:
        for number in range(CHILDREN):
            tasks.create_task(client.messages.create(**_child(number, marked=marked)))
    return sim.log


def _child(number: int, *, marked: bool) -> dict[str, Any]:
    request = conversation()
    directive = {"role": "user", "content": [{"type": "text", "text": f"do part {number}"}]}
    request["messages"] = [*request["messages"], {"role": "assistant", "content": SAID}, directive]
    request["messages"][-3]["content"] = [{"type": "text", "text": "go on"}]
    if marked:
        request["cache_control"] = {"type": "ephemeral"}
    return request


def dollars(log: list[RequestRecord]) -> float:
    """Return what the prompts in a log were billed."""
    return sum((one.fresh + 1.25 * one.write_5m + 2 * one.write_1h) * INPUT + one.read * READ for one in log) / 1e6


def lowest(log: list[RequestRecord]) -> float:
    """Return the least that a log's prompts can be billed: the longest shared prefix written once, then read."""
    shared = max(one.read for one in log)
    own = sum(one.prompt_tokens - shared for one in log)
    return ((1.25 * shared + own) * INPUT + (len(log) - 1) * shared * READ) / 1e6


async def measure() -> int:
    """Run all three in turn and compare."""
    with simulator_thread() as sim:
        forked = await ours(sim)
        bill, least, writes = dollars(forked), lowest(forked), sum(one.write_5m > one.read for one in forked)
        plain = dollars(await theirs(sim, marked=False))
        cached = dollars(await theirs(sim, marked=True))
    kept = bill <= BAR * least and bill <= SHARE_BAR * min(plain, cached)
    share = bill / min(plain, cached)
    print(f"Input of {CHILDREN} cold children of a {forked[0].prompt_tokens / 1000:.0f}K-token conversation")
    print(f"  SDK, all at once, nothing cached    ${plain:7.3f}")
    print(f"  SDK, all at once, cache_control     ${cached:7.3f}")
    print(f"  forks on {DAEMONS} daemons                 ${bill:7.3f}   {share:6.1%} of the cheaper one")
    print(f"  the lowest there is                 ${least:7.3f}   ours is {bill / least:.3f} of it, writes: {writes}")
    bars = f"at most {BAR:.2f} of the lowest, at most {SHARE_BAR:.0%} of the SDK's"
    print(f"Bars: {bars}: {'kept' if kept else 'MISSED'}")
    return 0 if kept else 1


def main() -> int:
    """Measure; return 1 when a bar is missed."""
    return uvloop.run(measure())


if __name__ == "__main__":
    raise SystemExit(main())
