"""The server every contender talks to: takes a body, streams a 20-delta reply, remembers when each body had arrived.

It runs in a process of its own, so that what is measured is the client. ``GET /arrivals`` returns the arrival times
since the last time it was asked, on the clock of this machine (``time.time``).
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvloop

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DELTAS", "TEXT", "BenchServer", "bench_server"]

DELTAS = 20
DELTA_GAP_S = 0.001
TEXT = "".join(f"piece {number} of a reply " for number in range(DELTAS))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchServer:
    """A running server."""

    url: str

    def arrivals(self) -> list[float]:
        """Return when each body since the last call had arrived in full."""
        with urllib.request.urlopen(f"{self.url}/arrivals") as answer:
            times: list[float] = json.load(answer)
            return times


@contextmanager
def bench_server() -> Iterator[BenchServer]:
    """Run a server in a process of its own for as long as the block lasts."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    command = [sys.executable, "-m", "benchmarks.server", str(listener.fileno())]
    with listener, subprocess.Popen(command, pass_fds=[listener.fileno()]) as process:
        try:
            yield BenchServer(url=f"http://127.0.0.1:{listener.getsockname()[1]}")
        finally:
            process.terminate()


def _reply() -> list[bytes]:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 100_000, "output_tokens": 1}
    message = {"id": "msg_bench", "type": "message", "role": "assistant", "model": "claude-opus-5", "content": []}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": f"piece {number} of a reply "},
            }
            for number in range(DELTAS)
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 60},
        },
        {"type": "message_stop"},
    ]
    frames = (f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n" for event in events)
    return [b"%x\r\n%s\r\n" % (len(frame), frame.encode()) for frame in frames]


async def _serve(listener: socket.socket) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    reply = _reply()
    arrivals: list[float] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                if request.startswith(b"GET"):
                    body = json.dumps(arrivals).encode()
                    arrivals.clear()
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
                    continue
                length = next(line for line in request.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.split(b":")[1]))
                arrivals.append(time.time())
                writer.write(head)
                for frame in (*reply, b"0\r\n\r\n"):
                    if writer.is_closing():  # the client has seen enough
                        return
                    writer.write(frame)
                    await asyncio.sleep(DELTA_GAP_S)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, sock=listener, limit=1 << 20)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(socket.socket(fileno=int(sys.argv[1]))))
