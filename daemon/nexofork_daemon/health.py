"""Answer over HTTP how the daemon is: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for a supervisor.

``/healthz`` answers as long as the event loop turns: a daemon that has lost NATS is not helped by a restart.
``/readyz`` says whether it takes work. A request is one line and some headers; the answer ends the connection.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from nexofork.errors import ForkRefused
from nexofork.telemetry import names
from nexofork.telemetry.prometheus import CONTENT_TYPE
from nexofork.telemetry.sdk import open_telemetry
from nexofork.telemetry.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nexofork.bus.connection import Bus
    from nexofork.telemetry.sdk import Telemetry
    from nexofork_daemon.settings import DaemonSettings

__all__ = ["Health", "open_health"]

log = logging.getLogger(__name__)

_HEAD_BYTES = 16 * 1024
_CLIENT_S = 5.0
_PLAIN = "text/plain; charset=utf-8"
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class Health:
    """What the daemon says about itself."""

    def __init__(self, telemetry: Telemetry, stop: asyncio.Event) -> None:
        self.port: int | None = None
        """Where it is said; None where it is not."""
        self._telemetry = telemetry
        self._stop = stop
        self._bus: Bus | None = None
        self.waiting = False
        """Whether the daemon cannot start before NATS answers."""

    def watch(self, bus: Bus) -> None:
        """Say from here on that the daemon takes work, as long as this connection is up and it need not stop."""
        self._bus = bus

    @property
    def starting(self) -> bool:
        """Whether it has not taken work yet."""
        return self._bus is None

    @property
    def problem(self) -> str:
        """Why the daemon takes no work now; empty where it does."""
        if self._stop.is_set():
            return "draining"
        if self._bus is None:
            return "starting: waiting for NATS" if self.waiting else "starting"
        return "" if self._bus.connected else "not connected to NATS"

    def answer(self, method: str, path: str) -> tuple[int, str, str]:
        """Return status, content type and content for a request."""
        if method not in ("GET", "HEAD"):
            return 405, _PLAIN, "Only GET and HEAD are answered here.\n"
        match path.partition("?")[0]:
            case "/metrics":
                return 200, CONTENT_TYPE, self._telemetry.exposition()
            case "/healthz":
                return 200, _PLAIN, "ok\n"
            case "/readyz":
                problem = self.problem
                return (503, _PLAIN, f"{problem}\n") if problem else (200, _PLAIN, "ok\n")
        return 404, _PLAIN, "There are /metrics, /healthz and /readyz here.\n"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        with suppress(OSError, TimeoutError):
            try:
                async with asyncio.timeout(_CLIENT_S):
                    method, status, kind, content = await self._read(reader)
                    body = content.encode("utf-8", "replace")
                    head = (
                        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
                        f"Content-Length: {len(body)}\r\nConnection: close\r\n"
                        + ("Allow: GET, HEAD\r\n" if status == 405 else "")
                        + "\r\n"
                    )
                    writer.write(head.encode() + (b"" if method == "HEAD" else body))
                    await writer.drain()
            finally:
                writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> tuple[str, int, str, str]:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            method, path, version = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            return "", 400, _PLAIN, "This is not an HTTP request.\n"
        if not version.startswith("HTTP/1."):
            return "", 400, _PLAIN, "HTTP/1.1 is spoken here.\n"
        return method, *self.answer(method, path)


@asynccontextmanager
async def open_health(settings: DaemonSettings, stop: asyncio.Event) -> AsyncIterator[Health]:
    """Collect what the daemon does, export it where the environment says, and answer on its health port if it has one.

    Raises:
        ForkRefused: The port cannot be listened on, or the environment asks for an export that is not installed.
    """
    with open_telemetry(
        read_settings(),
        service="nexoforkd",
        attributes={
            names.SERVICE_INSTANCE: settings.instance,
            names.HOST_NAME: settings.host,
            names.DAEMON: settings.name,
            names.POOL: settings.pool,
        },
        labels={"daemon": settings.name, "host": settings.host, "pool": settings.pool},
        scraped=settings.health_port is not None,
    ) as telemetry:
        health = Health(telemetry, stop)
        if settings.health_port is None:
            yield health
            return
        server = await _listening(health, settings.health_host, settings.health_port)
        try:
            yield health
        finally:
            server.close()


async def _listening(health: Health, host: str, port: int) -> asyncio.Server:
    try:
        server = await asyncio.start_server(health.serve, None if host == "*" else host, port, limit=_HEAD_BYTES)
    except OSError as exc:
        raise ForkRefused(
            f"The health endpoint cannot listen on {host}:{port} ({exc.strerror or exc}). "
            "Give another --health-port or --health-host, or end what uses it."
        ) from exc
    health.port = server.sockets[0].getsockname()[1]
    log.info("metrics and health are answered on %s:%d", host, health.port)
    return server
