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
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2
import uvloop
from anthropic import AsyncAnthropic, DefaultAioHttpClient, DefaultAsyncHttpxClient

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
DELTAS = 20
DELTA_GAP_S = 0.001
_LIMITS = httpx2.Limits(max_connections=2000, max_keepalive_connections=1000, keepalive_expiry=60.0)
_TEXT = "".join(f"piece {number} of a reply " for number in range(DELTAS))


def conversation() -> dict[str, Any]:
    """Return a request of about 450 KB as a Python dict."""
    line = 'def answer(question: str) -> str:  # "quoted", \\escaped\\ and naïve\n    return question.strip()\n'
    turns = [
        {"role": ("user", "assistant")[turn % 2], "content": [{"type": "text", "text": f"turn {turn}\n" + line * 22}]}
        for turn in range(201)
    ]
    tools = [
        {"name": f"tool_{n}", "description": line * 4, "input_schema": {"type": "object", "properties": {}}}
        for n in range(20)
    ]
    return {
        "max_tokens": 1024,
        "messages": turns,
        "model": "claude-opus-5",
        "system": [{"type": "text", "text": line * 40}],
        "tools": tools,
    }


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


def variants(*, with_aiohttp: bool) -> list[Variant]:
    """List what is measured, the SDK's own way first."""
    found: list[Variant] = []
    transports: list[tuple[str, Callable[[str], AsyncAnthropic]]] = [("httpx2", httpx_client)]
    if with_aiohttp:
        transports.append(("aiohttp", aiohttp_client))
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
        if await call() != _TEXT:
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
    if await call() != _TEXT:
        raise AssertionError("a concurrent call returned another text")


def measure(url: str) -> dict[str, list[tuple[float, float]]]:
    """Run the rounds, every variant once per round."""
    figures: dict[str, list[tuple[float, float]]] = {}
    for _ in range(ROUNDS):
        for variant in variants(with_aiohttp=_has_aiohttp()):
            with asyncio.Runner(loop_factory=variant.loop) as runner:
                figures.setdefault(variant.name, []).append(runner.run(cpu_per_call(variant, url)))
    return figures


def _has_aiohttp() -> bool:
    try:
        DefaultAioHttpClient()
    except RuntimeError:
        return False
    return True


def report(figures: dict[str, list[tuple[float, float]]]) -> bool:
    """Print the table; return whether the provider's default is under the bar."""
    medians = {
        name: tuple(statistics.median(run[column] for run in runs) for column in (0, 1))
        for name, runs in figures.items()
    }
    print(f"{'CPU per call, median of ' + str(ROUNDS):<36} {'one by one':>18} {'50 at once':>18}")
    kept = False
    default = aiohttp_client if _has_aiohttp() else httpx_client
    for variant in variants(with_aiohttp=_has_aiohttp()):
        own, base = medians[variant.name], medians[variant.baseline]
        ratios = [mine / theirs for mine, theirs in zip(own, base, strict=True)]
        cells = [f"{seconds * 1e3:7.2f} ms {ratio:6.0%}" for seconds, ratio in zip(own, ratios, strict=True)]
        print(f"{variant.name:<36} {cells[0]:>18} {cells[1]:>18}")
        if (variant.calls, variant.client, variant.loop) == (exact_bytes, default, uvloop.new_event_loop):
            kept = max(ratios) < BAR
    verdict = "kept" if kept else "MISSED"
    name = "aiohttp" if _has_aiohttp() else "httpx2; install anthropic[aiohttp] for the faster one"
    print(f"Bar: exact bytes on the default transport ({name}) under {BAR:.0%} of messages.stream: {verdict}")
    return kept


def main() -> int:
    """Measure against a server of our own; return 1 when the bar is missed."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    command = [sys.executable, "-m", "benchmarks.transport", "--serve", str(listener.fileno())]
    with listener, subprocess.Popen(command, pass_fds=[listener.fileno()]) as server:
        try:
            return 0 if report(measure(f"http://127.0.0.1:{listener.getsockname()[1]}")) else 1
        finally:
            server.terminate()


def _reply() -> list[bytes]:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 100_000, "output_tokens": 1}
    message = {"id": "msg_bench", "type": "message", "role": "assistant", "model": "claude-opus-5", "content": []}
    start = {
        "type": "message_start",
        "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage},
    }
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": f"piece {n} of a reply "}}
        for n in range(DELTAS)
    ]
    events: list[dict[str, Any]] = [
        start,
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *deltas,
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 60},
        },
        {"type": "message_stop"},
    ]
    frames = (
        f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n".encode() for event in events
    )
    return [b"%x\r\n%s\r\n" % (len(frame), frame) for frame in frames]


async def _serve(listener: socket.socket) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    reply = _reply()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                length = next(line for line in request.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.split(b":")[1]))
                writer.write(head)
                for frame in reply:
                    writer.write(frame)
                    await asyncio.sleep(DELTA_GAP_S)
                writer.write(b"0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, sock=listener, limit=1 << 20)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        uvloop.run(_serve(socket.socket(fileno=int(sys.argv[2]))))
    else:
        sys.exit(main())
