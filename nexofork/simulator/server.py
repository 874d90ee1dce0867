"""The simulator as a whole: a socket, its connections, and the handle a test holds.

It runs in the event loop of whoever enters it, on a free port of the loopback unless told otherwise, and ends with
the block: sockets are dropped, handlers finish, nothing is left running. Invariant: connection handlers wait only on
their own socket, so dropping the sockets is enough to end them all.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

import h11

from nexofork.simulator.clock import Clock
from nexofork.simulator.config import SimulatorConfig
from nexofork.simulator.control import control
from nexofork.simulator.errors import ERROR_TYPES, error_body
from nexofork.simulator.events import encode_event
from nexofork.simulator.gates import Gates
from nexofork.simulator.http import ClientGone, Connection, HttpRequest
from nexofork.simulator.intake import Intake
from nexofork.simulator.log import RequestLog, RequestRecord
from nexofork.simulator.messages import MessagesEndpoint
from nexofork.simulator.script import Script, parse_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

__all__ = ["Simulator"]

BACKLOG = 2048
READ_BUFFER_BYTES = 1024 * 1024


class Simulator:
    """An Anthropic-compatible provider with strict cache accounting.

    Use it as an async context manager. All methods belong to the event loop it runs in.
    """

    def __init__(
        self, config: SimulatorConfig | None = None, *, on_request: Callable[[RequestRecord], None] | None = None
    ) -> None:
        self.config = config or SimulatorConfig()
        self.clock = Clock(scale=self.config.time_scale)
        self._log = RequestLog(kept_body_bytes=self.config.kept_body_bytes, on_finish=on_request or _ignore)
        self._gates = Gates()
        self._intake = Intake(self.config, self.clock)
        self._endpoint = MessagesEndpoint(intake=self._intake, log=self._log, clock=self.clock, gates=self._gates)
        self._connections: set[Connection] = set()
        self._idle = asyncio.Event()
        self._server: asyncio.Server | None = None
        self.load_script(list(self.config.script))

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._serve, self.config.host, self.config.port, backlog=BACKLOG, limit=READ_BUFFER_BYTES
        )
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        # Before waiting for the server: from Python 3.12 on it waits for its connections.
        while self._connections:
            for connection in self._connections:
                connection.abort()
            self._idle.clear()
            await self._idle.wait()
        if server is not None:
            await server.wait_closed()

    @property
    def url(self) -> str:
        """The base URL for a client."""
        return f"http://{self.config.host}:{self.port}"

    @property
    def port(self) -> int:
        """The port it listens on.

        Raises:
            RuntimeError: it is not running.
        """
        if self._server is None:
            raise RuntimeError("the simulator is not running; use it as `async with Simulator() as sim:`")
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def log(self) -> list[RequestRecord]:
        """Every request to `/v1/messages` so far, in order of arrival."""
        return self._log.records

    @property
    def request_count(self) -> int:
        """How many requests to `/v1/messages` have arrived."""
        return len(self._log.records)

    def body(self, index: int) -> bytes | None:
        """The raw bytes of a request; None when there is none or it was dropped to save memory."""
        return self._log.body(index)

    def script(self, *rules: Mapping[str, Any]) -> None:
        """Replace the rules for what the model says; none leaves the default report.

        Raises:
            ScriptError: naming the field that is wrong.
        """
        self.load_script(list(rules))

    def load_script(self, value: Any) -> None:
        """Replace the rules by parsed JSON: one rule, a list, or `{"rules": […]}`.

        Raises:
            ScriptError: naming the field that is wrong.
        """
        self._intake.script = Script(parse_rules(value))

    def release(self, gate: str) -> None:
        """Open a gate that a script's `hold` waits for; it stays open."""
        self._gates.named(gate).open()

    def reset(self) -> None:
        """Forget cache entries, log, limits, gates and rules; the clock keeps its offset."""
        self._intake.reset()
        self._gates.clear()
        self._log.clear()

    async def received(self, requests: int) -> None:
        """Return when so many requests have arrived in full."""
        await self._log.wait_for(requests, lambda record: True)

    async def begun(self, requests: int) -> None:
        """Return when so many responses have sent their first byte; their entries are readable."""
        await self._log.wait_for(requests, lambda record: record.status == 200)

    async def finished(self, requests: int) -> None:
        """Return when so many requests are over, whatever came of them."""
        await self._log.wait_for(requests, lambda record: record.finished_at is not None)

    async def closed_early(self, requests: int) -> None:
        """Return when so many clients have left before their response was complete."""
        await self._log.wait_for(requests, lambda record: record.closed_early)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        if self._server is None:
            connection.abort()
            return
        self._connections.add(connection)
        try:
            while (http := await connection.receive(self.config.max_body_bytes)) is not None:
                await self._route(http, connection)
                if not connection.next_cycle():
                    break
        except (ClientGone, h11.RemoteProtocolError):
            connection.abort()
        finally:
            await connection.close()
            self._connections.discard(connection)
            self._idle.set()

    async def _route(self, http: HttpRequest, connection: Connection) -> None:
        if http.path.startswith("/_sim/"):
            await control(self, http, connection)
        elif http.path == "/v1/messages" and http.method == "POST":
            await self._endpoint.create(http, connection)
        elif http.path == "/v1/messages/count_tokens" and http.method == "POST":
            await self._endpoint.count_tokens(http, connection)
        else:
            status = 405 if http.path.startswith("/v1/messages") else 404
            text = "Method Not Allowed" if status == 405 else "Not found"
            await connection.respond(status, [("content-type", "application/json")], _error(status, text))


def _error(status: int, text: str) -> bytes:
    return encode_event(error_body(ERROR_TYPES[status], text, "")).partition(b"data: ")[2].strip()


def _ignore(record: RequestRecord) -> None:
    """Nobody asked to be told."""
