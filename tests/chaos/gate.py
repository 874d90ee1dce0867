"""The way from the daemons to the provider: it knows every call, and can make calls fail.

Each daemon has a port of its own, so the gate knows who calls. A call is named by the mark in its directive and by how
many assistant messages follow it.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

__all__ = ["Call", "Gate", "ProviderFault", "mark_of"]

_MARK = re.compile(r"chaos-run-([0-9a-z-]+?)-mark")
_MESSAGE_ID = re.compile(rb'"id":\s*"(msg_[A-Za-z0-9_]+)"')
_HOP = {"host", "content-length", "transfer-encoding", "connection", "content-encoding", "date", "server"}


def mark_of(run_id: str) -> str:
    """Return the words that name a run in its directive."""
    return f"chaos-run-{run_id}-mark"


@dataclass(slots=True, kw_only=True)
class Call:
    """One request to the provider; times are Unix times."""

    daemon: str
    run_id: str
    turn: int
    received_at: float
    status: int = 0
    message_id: str = ""
    ended_at: float = 0.0
    """0 while it is open."""
    end: str = ""
    """``complete``, ``refused``, ``cut`` by the provider, or ``left`` by the daemon."""


class _LeftError(Exception):
    """The daemon has closed its side."""


@dataclass(slots=True, kw_only=True)
class ProviderFault:
    """What goes wrong with calls while it is in force."""

    kind: str
    """``status``, ``cut``, ``hang`` or ``slow``."""
    status: int = 0
    retry_after_s: float | None = None
    left: int = 1 << 30
    """How many more calls it may hit."""
    daemon: str = ""
    """Whose calls; empty means everyone's."""
    hits: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, daemon: str) -> bool:
        """Whether a daemon's next call is hit."""
        if not self.left or (self.daemon and self.daemon != daemon):
            return False
        self.left -= 1
        self.hits += 1
        return True


class Gate:
    """All daemons' way to the provider."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self.calls: list[Call] = []
        self._open: dict[int, Call] = {}
        self.faults: list[ProviderFault] = []
        self._runners: list[web.AppRunner] = []
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Gate:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        for runner in self._runners:
            await runner.cleanup()
        assert self._session is not None
        await self._session.close()

    async def open(self, daemon: str) -> str:
        """Return the base URL for a daemon."""

        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._handle(daemon, request)

        app = web.Application(client_max_size=1 << 28, handler_args={"access_log": None})
        app.router.add_route("*", "/{path:.*}", handle)
        # A handler is cancelled the moment that the daemon closes its side, so the end of a call has its true time.
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._runners.append(runner)
        assert site._server is not None
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        return f"http://127.0.0.1:{port}"

    def open_calls(self) -> list[Call]:
        """The calls that have not ended."""
        return list(self._open.values())

    async def _handle(self, daemon: str, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        run_id, turn = _named(body)
        call = Call(daemon=daemon, run_id=run_id, turn=turn, received_at=time.time())
        self.calls.append(call)
        self._open[id(call)] = call
        try:
            return await self._answer(request, body, call)
        except (asyncio.CancelledError, _LeftError):
            call.end = call.end or "left"
            raise
        finally:
            call.ended_at = time.time()
            del self._open[id(call)]

    async def _answer(self, request: web.Request, body: bytes, call: Call) -> web.StreamResponse:
        fault = next((one for one in self.faults if one.take(call.daemon)), None)
        if fault is not None and fault.kind == "status":
            call.status, call.end = fault.status, "refused"
            said = {"type": "error", "error": {"type": _TYPES.get(fault.status, "api_error"), "message": "injected"}}
            after = {} if fault.retry_after_s is None else {"retry-after": f"{fault.retry_after_s:g}"}
            return web.json_response(said, status=fault.status, headers=after)
        if fault is not None and fault.kind == "hang":
            await fault.over.wait()
            return self._cut(request, call)
        assert self._session is not None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        try:
            async with self._session.request(
                request.method, self._upstream + request.rel_url.raw_path_qs, data=body, headers=headers
            ) as answer:
                return await self._pass(request, answer, call, fault)
        except aiohttp.ClientError:
            return self._cut(request, call)

    async def _pass(
        self, request: web.Request, answer: aiohttp.ClientResponse, call: Call, fault: ProviderFault | None
    ) -> web.StreamResponse:
        call.status = answer.status
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
        response = web.StreamResponse(status=answer.status, headers=kept)
        await response.prepare(request)
        head = b""
        async for chunk in answer.content.iter_any():
            if not call.message_id:
                head += chunk
                found = _MESSAGE_ID.search(head)
                call.message_id = found[1].decode() if found else ""
            await _written(response, chunk)
            if fault is not None and fault.kind == "cut":
                return self._cut(request, call)
            if fault is not None and fault.kind == "slow":
                await asyncio.sleep(0.2)
        await _written(response, b"")
        call.end = "complete" if answer.status == 200 else "refused"
        return response

    def _cut(self, request: web.Request, call: Call) -> web.StreamResponse:
        call.end = "cut"
        if request.transport is not None:
            request.transport.abort()
        raise asyncio.CancelledError


async def _written(response: web.StreamResponse, chunk: bytes) -> None:
    """Write to the daemon; no bytes mean the end."""
    try:
        await (response.write(chunk) if chunk else response.write_eof())
    except ConnectionError as gone:
        raise _LeftError from gone


_TYPES = {429: "rate_limit_error", 529: "overloaded_error", 500: "api_error"}


def _named(body: bytes) -> tuple[str, int]:
    try:
        messages: list[Any] = json.loads(body)["messages"]
    except (ValueError, KeyError, TypeError):
        return "", 0
    for at in range(len(messages) - 1, -1, -1):
        found = _MARK.search(json.dumps(messages[at].get("content", "")))
        if found:
            return found[1], 1 + sum(message.get("role") == "assistant" for message in messages[at:])
    return "", 0
