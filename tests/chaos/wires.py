"""TCP wires from one daemon to the NATS servers, which can be cut, swallow everything, or be slow."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Literal, TypeAlias

__all__ = ["Mode", "Wires"]

Mode: TypeAlias = Literal["pass", "cut", "half_open", "delay"]
_CHUNK = 1 << 16
_UNDER_WAY = 64
"""How many chunks may be on one way at once."""


class Wires:
    """One daemon's connections to all servers."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._joined = 0
        self._mode: Mode = "pass"
        self._passing = asyncio.Event()
        self._passing.set()
        self.delay_s = 0.0
        self.hits = 0
        """How often the fault in force was felt: connections cut or refused, chunks held or delayed."""
        self.joined_at = 0.0
        """Unix time since when bytes reach the daemon: the newest of its connections, or the end of the fault."""

    @property
    def urls(self) -> str:
        """Where the daemon connects."""
        ports = [server.sockets[0].getsockname()[1] for server in self._servers]
        return ",".join(f"nats://127.0.0.1:{port}" for port in ports)

    async def open(self) -> None:
        """Listen, one port per server."""
        for port in self._ports:
            serve = _Serve(self, port)
            self._servers.append(await asyncio.start_server(serve, "127.0.0.1", 0))

    async def close(self) -> None:
        """End everything."""
        for server in self._servers:
            server.close()
        for task in [*self._tasks]:
            task.cancel()

    @property
    def joined(self) -> bool:
        """Whether the daemon has a connection that carries bytes."""
        return self._joined > 0 and self._mode in ("pass", "delay")

    def become(self, mode: Mode, *, delay_s: float = 0.0) -> None:
        """Change what happens to the bytes from here on."""
        self._mode, self.delay_s, self.hits = mode, delay_s, 0
        self.joined_at = time.time()
        if mode == "half_open":
            self._passing.clear()
        else:
            self._passing.set()
        if mode == "cut":
            for writer in self._writers:
                self.hits += 1
                writer.transport.abort()

    async def serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Join one connection of the daemon with a server."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        far: asyncio.StreamWriter | None = None
        try:
            if self._mode == "cut":
                self.hits += 1
                return
            self.hits += not self._passing.is_set()
            await self._passing.wait()
            far_reader, far = await asyncio.open_connection("127.0.0.1", port)
            self._writers.add(far)
            self._joined += 1
            self.joined_at = time.time()
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, far))
                both.create_task(self._pump(far_reader, writer))
        except (OSError, ExceptionGroup):
            pass
        finally:
            self._joined -= far is not None
            self._tasks.discard(task)
            for one in (writer, far):
                if one is not None:
                    self._writers.discard(one)
                    one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry bytes one way; a delay is a longer wire, not a narrower one."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_UNDER_WAY)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._arriving(under_way, writer))
            while chunk := await reader.read(_CHUNK):
                late = self.delay_s if self._mode == "delay" else 0.0
                self.hits += bool(late)
                await under_way.put((time.monotonic() + late, chunk))
            raise ConnectionResetError

    async def _arriving(self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        while True:
            due, chunk = await under_way.get()
            if (rest := due - time.monotonic()) > 0:
                await asyncio.sleep(rest)
            if not self._passing.is_set():
                self.hits += 1
                await self._passing.wait()
            writer.write(chunk)
            await writer.drain()


class _Serve:
    def __init__(self, wires: Wires, port: int) -> None:
        self._wires, self._port = wires, port

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):
            await self._wires.serve(self._port, reader, writer)
