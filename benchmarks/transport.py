"""CPU of a model call: exact bytes through `AnthropicProvider`, beside `messages.stream` of the SDK doing the same.

Every contender sends the same 450 KB conversation and reads the same 20-delta reply from a server in another process;
what is measured is the CPU time of this process per call. Rounds are interleaved and medians compared, so that a noisy
machine disturbs all alike. The bar: the provider's default transport (aiohttp where it is installed) on the daemon's
event loop (uvloop) needs under 35% of what `messages.stream` needs on the same loop.

Run with ``python -m benchmarks.transport``.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx2
import uvloop
from anthropic import AsyncAnthropic, DefaultAioHttpClient, DefaultAsyncHttpxClient

from benchmarks.conversation import conversation
from benchmarks.server import TEXT, bench_server
from nexofork.core.rope import Rope
from nexofork.providers.anthropic import AnthropicProvider
from nexofork.providers.provider import MessageFinished, ModelRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Call = Callable[[], Awaitable[str]]
    Contender = Callable[[str], AsyncIterator[Call]]

__all__ = ["main"]

BAR = 0.35
ROUNDS = 9
SEQUENTIAL_CALLS = 8
CONCURRENT_CALLS = 50
_LIMITS = httpx2.Limits(max_connections=2000, max_keepalive_connections=1000, keepalive_expiry=60.0)


async def plain_sdk(client: AsyncAnthropic) -> AsyncIterator[Call]:
    """Yield a call made by ``messages.stream`` with the conversation as a dict."""
    request = conversation()

    async def call() -> str:
        async with client.messages.stream(**request) as stream:
            async for _ in stream:
                pass
            return await stream.get_final_text()

    async with client:
        yield call


async def exact_bytes(client: AsyncAnthropic) -> AsyncIterator[Call]:
    """Yield a call made by `AnthropicProvider` with the conversation as shared bytes and a short tail."""
    body = json.dumps(conversation() | {"stream": True}, ensure_ascii=False, separators=(",", ":")).encode()
    prefix = memoryview(body)[:-200]
    request = ModelRequest(body=Rope([prefix, body[-200:]]), headers=(("anthropic-version", "2026-10-21"),), query=())
    provider = AnthropicProvider(client)

    async def call() -> str:
        async for event in provider.stream(request):
            if isinstance(event, MessageFinished):
                return event.reply.text
        raise AssertionError("the stream ended without a message")

    async with client:
        yield call


def httpx_client(url: str) -> AsyncAnthropic:
    """Return a client on the SDK's default transport."""
    return AsyncAnthropic(base_url=url, api_key="bench", http_client=DefaultAsyncHttpxClient(limits=_LIMITS))


def aiohttp_client(url: str) -> AsyncAnthropic:
    """Return a client on the SDK's aiohttp transport."""
    return AsyncAnthropic(base_url=url, api_key="bench", http_client=DefaultAioHttpClient(limits=_LIMITS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to make the call."""

    name: str
    calls: Callable[[AsyncAnthropic], AsyncIterator[Call]]
    client: Callable[[str], AsyncAnthropic]
    loop: Callable[[], asyncio.AbstractEventLoop]
    baseline: str
    """The name of the variant it is compared with."""


def variants() -> list[Variant]:
    """List what is measured, the SDK's own way first."""
    found: list[Variant] = []
    transports = (("httpx2", httpx_client), ("aiohttp", aiohttp_client))
    for loop_name, loop in (("asyncio", asyncio.new_event_loop), ("uvloop", uvloop.new_event_loop)):
        baseline = f"messages.stream  httpx2  {loop_name}"
        for way, calls in (("messages.stream", plain_sdk), ("exact bytes", exact_bytes)):
            for transport, client in transports:
                name = f"{way:<16} {transport:<7} {loop_name}"
                found.append(Variant(name=name, calls=calls, client=client, loop=loop, baseline=baseline))
    return found


async def cpu_per_call(variant: Variant, url: str) -> tuple[float, float]:
    """Return the CPU seconds of one call: made one after the other, and fifty at a time."""
    async for call in variant.calls(variant.client(url)):
        if await call() != TEXT:
            raise AssertionError(f"{variant.name} returned another text")
        start = time.process_time()
        for _ in range(SEQUENTIAL_CALLS):
            await call()
        middle = time.process_time()
        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENT_CALLS):
                group.create_task(_checked(call))
        end = time.process_time()
        return (middle - start) / SEQUENTIAL_CALLS, (end - middle) / CONCURRENT_CALLS
    raise AssertionError("unreachable")


async def _checked(call: Call) -> None:
    if await call() != TEXT:
        raise AssertionError("a concurrent call returned another text")


def measure(url: str) -> dict[str, list[tuple[float, float]]]:
    """Run the rounds, every variant once per round."""
    figures: dict[str, list[tuple[float, float]]] = {}
    for _ in range(ROUNDS):
        for variant in variants():
            with asyncio.Runner(loop_factory=variant.loop) as runner:
                figures.setdefault(variant.name, []).append(runner.run(cpu_per_call(variant, url)))
    return figures


def report(figures: dict[str, list[tuple[float, float]]]) -> bool:
    """Print the table; return whether the provider's default is under the bar."""
    medians = {
        name: tuple(statistics.median(run[column] for run in runs) for column in (0, 1))
        for name, runs in figures.items()
    }
    print(f"{'CPU per call, median of ' + str(ROUNDS):<36} {'one by one':>18} {'50 at once':>18}")
    kept = False
    for variant in variants():
        own, base = medians[variant.name], medians[variant.baseline]
        ratios = [mine / theirs for mine, theirs in zip(own, base, strict=True)]
        cells = [f"{seconds * 1e3:7.2f} ms {ratio:6.0%}" for seconds, ratio in zip(own, ratios, strict=True)]
        print(f"{variant.name:<36} {cells[0]:>18} {cells[1]:>18}")
        if (variant.calls, variant.client, variant.loop) == (exact_bytes, aiohttp_client, uvloop.new_event_loop):
            kept = max(ratios) < BAR
    verdict = "kept" if kept else "MISSED"
    print(
        f"Bar: exact bytes on aiohttp and uvloop, as the daemon has it, under {BAR:.0%} of messages.stream: {verdict}"
    )
    return kept


def main() -> int:
    """Measure against a server of our own; return 1 when the bar is missed."""
    with bench_server() as server:
        return 0 if report(measure(server.url)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
