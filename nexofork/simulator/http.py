"""One HTTP/1.1 connection: read requests, send answers, and notice when the client leaves.

h11 does the framing, asyncio the sockets. Waiting is always waiting on the reader, so a client that hangs up ends a
delay, a hold or a hang at once, without a second task. Invariant: every method that waits raises `ClientGone` as soon
as the peer has closed, and nothing else ends a wait but its own end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import parse_qsl, urlsplit

import h11

if TYPE_CHECKING:
    from nexofork.simulator.gates import Gate

__all__ = ["ClientGone", "Connection", "HttpRequest"]

CHUNK_BYTES = 256 * 1024
MAX_HEADER_BYTES = 64 * 1024

Headers = Sequence[tuple[str, str]]


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request read in full."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes | None
    """None when it was larger than the limit."""


class Connection:
    """The server's side of one socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)

    async def receive(self, max_body_bytes: int) -> HttpRequest | None:
        """The next request, or None when the client closed between two.

        Raises:
            ClientGone: the client closed in the middle of a request.
            h11.RemoteProtocolError: what came is not HTTP.
        """
        event = await self._next_event()
        if isinstance(event, h11.ConnectionClosed):
            return None
        if not isinstance(event, h11.Request):
            raise ClientGone
        body = await self._receive_body(max_body_bytes)
        target = urlsplit(event.target.decode("latin-1"))
        return HttpRequest(
            method=event.method.decode("latin-1"),
            path=target.path,
            query=dict(parse_qsl(target.query)),
            headers={name.decode("latin-1").lower(): value.decode("latin-1") for name, value in event.headers},
            body=body,
        )

    def start(self, status: int, headers: Headers) -> None:
        """Send the head of a response; with this its first byte is out."""
        head = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        self._write(self._http.send(h11.Response(status_code=status, headers=head)))

    async def send(self, data: bytes, *, last: bool = False) -> None:
        """Send a piece of the body, and its end with the last one.

        Raises:
            ClientGone: the client no longer listens.
        """
        payload = self._http.send(h11.Data(data=data)) or b""
        if last:
            payload += self._http.send(h11.EndOfMessage()) or b""
        self._write(payload)
        try:
            await self._writer.drain()
        except ConnectionError as exc:
            raise ClientGone from exc
        if not last:
            await self._look_up()

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response."""
        self.start(status, [*headers, ("content-length", str(len(body)))])
        await self.send(body, last=True)

    async def pause(self, seconds: float) -> None:
        """Let time pass.

        Raises:
            ClientGone: the client left meanwhile.
        """
        if seconds <= 0:
            return
        try:
            async with asyncio.timeout(seconds):
                await self.wait_gone()
        except TimeoutError:
            return

    async def hold(self, gate: Gate) -> None:
        """Wait for a gate to open.

        Raises:
            ClientGone: the client left first.
        """
        if gate.is_open:
            return
        try:
            async with asyncio.timeout(None) as scope:
                with gate.waiting(scope):
                    await self.wait_gone()
        except TimeoutError:
            return

    async def wait_gone(self) -> NoReturn:
        """Wait until the client closes; ended from outside by a timeout or by the simulator closing the socket.

        Raises:
            ClientGone: always.
        """
        while True:
            try:
                data = await self._reader.read(CHUNK_BYTES)
            except ConnectionError as exc:
                raise ClientGone from exc
            if not data:
                raise ClientGone
            # A pipelined request: keep it for the next cycle.
            self._http.receive_data(data)

    async def cut(self) -> None:
        """Close the socket in the middle of a response; what was sent so far still arrives."""
        self._writer.close()

    def next_cycle(self) -> bool:
        """Get ready for another request on this connection; False when it must be closed."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return not self._writer.is_closing()

    def abort(self) -> None:
        """Drop the connection now."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close the connection and wait until it is."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return

    async def _next_event(self) -> h11.Event:
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Event):
                return event
            if event is h11.PAUSED:
                raise ClientGone
            if self._http.they_are_waiting_for_100_continue:
                self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
            try:
                self._http.receive_data(await self._reader.read(CHUNK_BYTES))
            except ConnectionError as exc:
                raise ClientGone from exc

    async def _receive_body(self, limit: int) -> bytes | None:
        parts: list[bytes] = []
        size = 0
        while True:
            event = await self._next_event()
            if isinstance(event, h11.EndOfMessage):
                return b"".join(parts) if size <= limit else None
            if not isinstance(event, h11.Data):
                raise ClientGone
            size += len(event.data)
            # Beyond the limit the rest is read and dropped: a refusal sent into a full socket would be lost.
            if size <= limit:
                parts.append(bytes(event.data))
            else:
                parts.clear()

    def _write(self, data: bytes | None) -> None:
        if data:
            self._writer.write(data)

    async def _look_up(self) -> None:
        """One step of the loop between two pieces: other streams move on, and a closed socket is noticed.

        Not done after the last piece: a client that closes once it has everything has not left early.
        """
        await asyncio.sleep(0)
        if self._reader.at_eof() or self._writer.is_closing():
            raise ClientGone
