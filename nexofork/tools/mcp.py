"""Tools of MCP servers that the operator configured on this host.

A server is started when a run first needs it and started again when it died; all end with the daemon. One task owns a
server's session from its beginning to its end, because the SDK's scopes may not change hands; calls are made from the
tasks of their runs. A call that its server did not survive is not repeated: it may have done something.

The SDK is an extra and takes long to load, so it is imported where a server is first needed.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

from nexofork.errors import ForkRefused, NexoforkError
from nexofork.tools.dispatch import ToolOutcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from types import TracebackType

    import httpx2
    from mcp import Client

    from nexofork.tools.dispatch import ToolCall
    from nexofork.tools.mcp_config import ServerSpec

__all__ = ["McpServers", "McpTools"]

log = logging.getLogger(__name__)

_PREFIX = "mcp__"
_START_S = 20.0
_CONNECT_S = 10.0
_CALL_S = 600.0
_UNAVAILABLE_S = 30.0
_PAGES = 100
_ANSWER_BYTES = 16 * 2**20
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")


class _Gone(NexoforkError):
    """The server could not be had, or was lost; the text is for the model."""


class _Server:
    """One server: started when it is wanted, kept until it dies."""

    def __init__(self, spec: ServerSpec) -> None:
        self.name = spec.name
        self.tools: dict[str, bool] | None = None
        """Its tools, and whether each only reads; None until it was asked."""
        self._spec = spec
        self._wanted = asyncio.Event()
        self._changed = asyncio.Event()
        self._lost = asyncio.Event()
        self._client: Client | None = None
        self._problem: tuple[str, float] | None = None

    async def keep(self) -> None:
        """Own the session: start it when it is wanted, end it when it is lost, for ever."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            self._lost.clear()
            try:
                await self._one_session()
            except Exception as exc:  # noqa: BLE001
                # The SDK and whatever the server sends may raise anything, also in groups.
                log.warning("the MCP server %s failed: %s", self.name, _innermost(exc))
                if self._client is None and not self._lost.is_set():
                    self._fail(_innermost(exc))
            finally:
                self._client = None

    async def call(self, tool: str, arguments: dict[str, Any]) -> ToolOutcome:
        """Call a tool.

        Raises:
            _Gone: The server cannot be started, or died in the call.
        """
        for _ in range(2):
            client = await self._session()
            try:
                async with asyncio.timeout(_CALL_S):
                    return _outcome(await client.call_tool(tool, arguments))
            except TimeoutError:
                raise _Gone(f"The MCP server {self.name} did not answer within {_CALL_S:g} s.") from None
            except Exception as exc:  # noqa: BLE001 - likewise
                if not self._forgotten(exc):
                    return self._failed(exc)
            # It was started anew and knows nothing of our session, so it did not run the call either.
            self._lost.set()
        raise _Gone(f"The MCP server {self.name} forgets its sessions.")

    def _failed(self, exc: Exception) -> ToolOutcome:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        if isinstance(exc, MCPError) and exc.code != CONNECTION_CLOSED and not self._lost.is_set():
            return ToolOutcome(content=f"The MCP server {self.name} refused the call: {exc}", is_error=True)
        self._lost.set()
        raise _Gone(
            f"The MCP server {self.name} was lost in the call ({_innermost(exc)}); it may have run in part or in full. "
            "Look before you repeat it."
        ) from exc

    async def listed(self) -> dict[str, bool]:
        """Return its tools; none where it cannot be had now."""
        try:
            await self._session()
        except _Gone as exc:
            log.warning("%s", exc)
        return self.tools or {}

    async def _session(self) -> Client:
        """Return an open session, starting the server if there is none; a failed start is not tried again at once."""
        deadline = asyncio.get_running_loop().time() + _START_S
        while self._client is None or self._lost.is_set():
            now = asyncio.get_running_loop().time()
            if self._problem is not None and now < self._problem[1]:
                raise _Gone(f"The MCP server {self.name} is not available: {self._problem[0]}")
            if now > deadline:
                raise _Gone(f"The MCP server {self.name} did not start within {_START_S:g} s.")
            self._wanted.set()
            self._changed.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return self._client

    async def _one_session(self) -> None:
        await asyncio.to_thread(import_module, "mcp")  # a second's work that the other runs need not wait for
        from mcp import Client

        async with (
            asyncio.timeout(_START_S) as starting,
            Client(_transport(self._spec, self._lost), cache=None) as client,
        ):
            self.tools = {tool.name: _only_reads(tool) async for tool in _all_tools(client)}
            starting.reschedule(None)
            self._client, self._problem = client, None
            self._wanted.clear()
            self._changed.set()
            await self._lost.wait()
        log.info("the MCP server %s ended; it is started again when it is needed", self.name)

    def _fail(self, problem: str) -> None:
        self._problem = (problem, asyncio.get_running_loop().time() + _UNAVAILABLE_S)
        self._changed.set()

    def _forgotten(self, exc: Exception) -> bool:
        return "Session terminated" in str(exc) and bool(self._spec.url)


class McpServers:
    """All MCP servers of a daemon; an async context that ends those it started."""

    def __init__(self, specs: Sequence[ServerSpec]) -> None:
        """Take note of the servers; none is started yet.

        Raises:
            ForkRefused: There are some, and the package to talk to them is not installed.
        """
        if specs and find_spec("mcp") is None:
            raise ForkRefused("MCP servers need the package `mcp`; install it with `pip install 'nexofork[mcp]'`.")
        self._servers = {spec.name: _Server(spec) for spec in specs}
        self._tasks: asyncio.TaskGroup | None = None
        self._keeping: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        self._keeping = [self._tasks.create_task(server.keep()) for server in self._servers.values()]
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        for task in self._keeping:
            task.cancel()
        await self._tasks.__aexit__(None, None, None)

    async def tools(self, wanted: Sequence[str]) -> McpTools:
        """Return the tools for a run.

        Args:
            wanted: What the run's schema calls tools that nobody else here has. Only for a name without a prefix do
                the servers have to be asked what they have.
        """
        if any(not name.startswith(_PREFIX) for name in wanted) and self._servers:
            async with asyncio.TaskGroup() as tasks:
                for server in self._servers.values():
                    if server.tools is None:
                        tasks.create_task(server.listed())
        return McpTools(self._servers)


class McpTools:
    """The servers' tools as a route: ``mcp__SERVER__TOOL``, and the plain name where one server alone has it."""

    def __init__(self, servers: dict[str, _Server]) -> None:
        self._servers = servers
        owners: dict[str, list[_Server]] = {}
        for server in servers.values():
            for tool in server.tools or ():
                owners.setdefault(tool, []).append(server)
        self._plain = {tool: having[0] for tool, having in owners.items() if len(having) == 1}

    def names(self) -> Sequence[str]:
        """Return what is known of the servers' tools."""
        return [f"{_PREFIX}{server.name}__{tool}" for server in self._servers.values() for tool in server.tools or ()]

    def takes(self, call: ToolCall) -> bool:
        """Whether the name says a server, or is a tool that one alone has."""
        return self._found(call.name) is not None

    def gates_inside(self, name: str) -> bool | None:
        """No server asks our filter."""
        return None if self._found(name) is None else False

    def bubbles(self, call: ToolCall) -> bool:
        """It runs here."""
        return False

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Call the server."""
        found = self._found(call.name)
        assert found is not None
        server, tool = found
        try:
            return await server.call(tool, call.input)
        except _Gone as exc:
            return ToolOutcome(content=str(exc), is_error=True)

    def parallel(self, call: ToolCall) -> bool:
        """Whether the server says that it only reads."""
        return self.read_only(call)

    def read_only(self, call: ToolCall) -> bool:
        """Whether the server says so; the operator chose to trust it."""
        found = self._found(call.name)
        return found is not None and (found[0].tools or {}).get(found[1], False)

    def _found(self, name: str) -> tuple[_Server, str] | None:
        if name.startswith(_PREFIX):
            server, separator, tool = name.removeprefix(_PREFIX).partition("__")
            known = self._servers.get(server)
            return (known, tool) if known is not None and separator and tool else None
        plain = self._plain.get(name)
        return None if plain is None else (plain, name)


@asynccontextmanager
async def _transport(spec: ServerSpec, lost: asyncio.Event) -> AsyncIterator[tuple[Any, Any]]:
    """Open the streams to a server."""
    import httpx2
    from mcp.client.stdio import StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client

    values = spec.resolved()
    if spec.url:
        async with (
            httpx2.AsyncClient(
                # Not compressed: a few bytes could stand for more than the host has memory for.
                headers={**values, "accept-encoding": "identity"},
                timeout=httpx2.Timeout(_CONNECT_S, read=_CALL_S),
                event_hooks={"response": [_bound]},
            ) as http,
            streamable_http_client(spec.url, http_client=http) as streams,
        ):
            yield streams
    else:
        parameters = StdioServerParameters(command=spec.command, args=list(spec.args), env=values, cwd=spec.cwd)
        async with stdio_client(parameters) as (read, write):
            yield _Heard(read, lost), write


async def _bound(response: httpx2.Response) -> None:
    """Let a response be read only as far as it is plain and not too large; the SDK itself bounds single events."""
    import httpx2

    assert isinstance(response.stream, httpx2.AsyncByteStream)
    stream: httpx2.AsyncByteStream = response.stream
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    events = "text/event-stream" in response.headers.get("content-type", "").lower()

    class Bounded(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            if encoding not in ("", "identity"):
                raise httpx2.StreamError("the answer is compressed, and no compression was asked for")
            size = 0
            async for chunk in stream:
                size += len(chunk)
                if size > _ANSWER_BYTES and not events:
                    raise httpx2.StreamError(f"the answer is over {_ANSWER_BYTES:,} bytes")
                yield chunk

        async def aclose(self) -> None:
            await stream.aclose()

    response.stream = Bounded()


class _Heard:
    """A stream of what a server says, which says when the server says no more."""

    def __init__(self, stream: Any, lost: asyncio.Event) -> None:
        self._stream = stream
        self._lost = lost

    async def receive(self) -> Any:
        try:
            return await self._stream.receive()
        except Exception:
            self._lost.set()
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except Exception:
            self._lost.set()
            raise

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *ended: Any) -> bool | None:
        closed: bool | None = await self._stream.__aexit__(*ended)
        return closed


async def _all_tools(client: Client) -> AsyncIterator[Any]:
    cursor = None
    for _ in range(_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            yield tool
        cursor = page.next_cursor
        if not cursor:
            return


def _only_reads(tool: Any) -> bool:
    return bool(tool.annotations is not None and tool.annotations.read_only_hint)


def _outcome(result: Any) -> ToolOutcome:
    """Return a server's result as content the model's API takes."""
    blocks = [_block(part) for part in result.content]
    if not blocks:
        structured = result.structured_content
        said = "It returned nothing." if structured is None else json.dumps(structured, ensure_ascii=False)
        return ToolOutcome(content=said, is_error=result.is_error)
    if all(block["type"] == "text" for block in blocks):
        return ToolOutcome(content="\n".join(block["text"] for block in blocks), is_error=result.is_error)
    return ToolOutcome(content=blocks, is_error=result.is_error)


def _block(part: Any) -> dict[str, Any]:
    match part.type:
        case "text":
            return _text(part.text)
        case "image" if part.mime_type in _IMAGES:
            source = {"type": "base64", "media_type": part.mime_type, "data": part.data}
            return {"type": "image", "source": source}
        case "resource_link":
            return _text(f"[{part.name}: {part.uri}]")
        case "resource" if (text := getattr(part.resource, "text", None)) is not None:
            return _text(text)
        case _:
            kind = getattr(part, "mime_type", None) or part.type
            return _text(f"[The result has a part of the kind {kind}, which cannot be shown here.]")


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _innermost(exc: BaseException) -> str:
    """Say what happened, without the groups that the SDK wraps it in."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
