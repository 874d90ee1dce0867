"""A loopback HTTP server that shows a test the bytes it received and answers with the bytes it was given."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["Flood", "RawServer", "plain_response", "raw_server"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """A response that goes on for longer than anyone should listen."""

    head: bytes
    piece: bytes
    times: int


@dataclass(slots=True, kw_only=True)
class RawServer:
    """What arrived, and what is answered next."""

    answers: list[bytes | Flood]
    """One complete response per request; the last one is repeated."""
    heads: list[bytes] = field(default_factory=list)
    """Request line and headers, as received."""
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0
    pieces: int = 0
    """How many pieces of floods were taken by the client."""
    keep_bodies: bool = True
    waiting: int = 0
    go: asyncio.Event = field(default_factory=asyncio.Event)
    """Answers are held back until it is set."""
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)
    url: str = ""

    async def received(self, requests: int) -> None:
        """Return when so many requests are waiting for an answer."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: self.waiting >= requests)

    def headers(self, index: int) -> list[tuple[str, str]]:
        """The headers of a request in order, without the port-dependent host."""
        lines = self.heads[index].decode("latin-1").split("\r\n")[1:]
        pairs = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines if line)]
        return [(name, value) for name, value in pairs if name != "host"]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        self.connections += 1
        try:
            while True:
                await self._one(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        left = int(lengths[0].split(b":")[1]) if lengths else 0
        parts: list[bytes] = []
        while left:
            part = await reader.read(min(left, 65536))
            if not part:
                raise asyncio.IncompleteReadError(part, left)
            left -= len(part)
            if self.keep_bodies:
                parts.append(part)
        self.heads.append(head)
        self.bodies.append(b"".join(parts))
        self.waiting += 1
        async with self.arrived:
            self.arrived.notify_all()
        await self.go.wait()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Flood):
            await self._flood(answer, writer)
        writer.write(answer)
        await writer.drain()
        if b"connection: close" in answer.lower():
            raise ConnectionError

    async def _flood(self, flood: Flood, writer: asyncio.StreamWriter) -> NoReturn:
        writer.write(flood.head)
        for _ in range(flood.times):
            writer.write(flood.piece)
            await writer.drain()
            self.pieces += 1
        raise ConnectionError


def plain_response(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """A response with a length."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def raw_server(*answers: bytes | Flood, held: bool = False, keep_bodies: bool = True) -> AsyncIterator[RawServer]:
    """Run a server for the length of a block; `held` keeps answers back until ``go`` is set."""
    state = RawServer(answers=list(answers), keep_bodies=keep_bodies)
    if not held:
        state.go.set()
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await state.serve(reader, writer)
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=1 << 20)
    state.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield state
    finally:
        server.close()
        # The handlers end when their sockets do; whoever used the server has closed its client by now.
        state.go.set()
        async with asyncio.timeout(PATIENCE_S):
            while tasks:
                await asyncio.wait(tasks)
