"""Tools of MCP servers that are programs of their own, over their standard streams and over HTTP."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
import subprocess
import sys
import tracemalloc
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from nexofork import ParentContext
from nexofork.tools.dispatch import ToolCall
from nexofork.tools.mcp import McpServers
from nexofork.tools.mcp_config import ServerSpec
from tests.integration.rawserver import Flood, raw_server
from tests.support.fleet import lines_in
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nexofork.tools.dispatch import ToolOutcome
    from nexofork.tools.mcp import McpTools

SERVER = str(Path(__file__).parents[1] / "support/mcp_server.py")


def program(name: str = "probe", **values: str | Path) -> ServerSpec:
    """The server as a program."""
    return ServerSpec(name=name, command=sys.executable, args=(SERVER,), values=values)


@asynccontextmanager
async def address() -> AsyncIterator[ServerSpec]:
    """The server at an address, which takes its sessions with it when it ends."""
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    process = await asyncio.create_subprocess_exec(sys.executable, SERVER, str(port), stderr=subprocess.DEVNULL)
    try:
        await eventually(lambda: _listens(port))
        yield ServerSpec(name="probe", url=f"http://127.0.0.1:{port}/mcp")
    finally:
        process.kill()
        await process.wait()


def _listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def running() -> list[str]:
    """The servers that this process has started and that have not ended."""
    found = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", SERVER], capture_output=True, text=True, check=False)
    return found.stdout.split()


def a_call(tool: str, **arguments: Any) -> ToolCall:
    """A call as the model would make it."""
    return ToolCall(run_id="r", id="c", name=tool, input=arguments, context=ParentContext())


async def outcome(tools: McpTools, tool: str, **arguments: Any) -> ToolOutcome:
    """What comes of a call."""
    return await tools.dispatch(a_call(tool, **arguments))


async def test_a_program_is_started_when_it_is_needed_and_ends_with_the_daemon(tmp_path: Path) -> None:
    """Nothing runs before the first call; secrets come from files; afterwards no process is left."""
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    async with McpServers([program(PLAIN="open", SECRET=secret)]) as servers:
        tools = await servers.tools([])
        assert tools.names() == []
        assert (await outcome(tools, "mcp__probe__environment", name="SECRET")).content == "s3cret"
        assert (await outcome(tools, "mcp__probe__environment", name="PLAIN")).content == "open"
        assert (await outcome(tools, "mcp__probe__environment", name="ANTHROPIC_API_KEY")).content == "not set"
        assert len(running()) == 1

    assert running() == []


@pytest.mark.parametrize("kind", ["program", "address"])
async def test_calls_results_and_errors(kind: str) -> None:
    """What works and what does not, by the full name and by the plain one; what only reads is known to."""
    async with asyncio.timeout(PATIENCE_S), _server(kind) as spec, McpServers([spec]) as servers:
        tools = await servers.tools(["add"])

        assert "mcp__probe__add" in tools.names()
        assert (await outcome(tools, "add", a=1, b=2)).content == "3"
        assert (await outcome(tools, "mcp__probe__add", a=1, b=2)).content == "3"
        assert len((await outcome(tools, "long", count=300_000)).content) == 300_000
        for name, arguments in (("add", {"a": "x"}), ("fail", {}), ("mcp__probe__nope", {})):
            assert (await outcome(tools, name, **arguments)).is_error, name
        assert tools.read_only(a_call("add"))
        assert not tools.read_only(a_call("fail"))
        assert not tools.takes(a_call("nope"))
        assert not tools.takes(a_call("mcp__other__add"))
        assert tools.gates_inside("add") is False


async def test_a_server_learns_which_trace_a_call_is_part_of() -> None:
    """So that what it does can be traced with the fork that asked for it."""
    context = SpanContext(trace_id=0xABC, span_id=0xDEF, is_remote=False, trace_flags=TraceFlags(1))
    async with McpServers([program()]) as servers:
        tools = await servers.tools([])
        with use_span(NonRecordingSpan(context)):
            found = await outcome(tools, "mcp__probe__trace")

    assert found.content == f"00-{0xABC:032x}-{0xDEF:016x}-01"


@asynccontextmanager
async def _server(kind: str) -> AsyncIterator[ServerSpec]:
    if kind == "program":
        yield program()
    else:
        async with address() as spec:
            yield spec


async def test_a_server_that_dies_is_started_again_and_the_call_is_not_repeated(tmp_path: Path) -> None:
    """The call that killed it ran once and says so; the next one finds a new server."""
    tally = tmp_path / "tally"
    async with McpServers([program()]) as servers:
        tools = await servers.tools(["add"])
        lost = await outcome(tools, "die", tally=str(tally))
        again = await outcome(tools, "add", a=1, b=2)

    assert lost.is_error
    assert "was lost in the call" in str(lost.content)
    assert again.content == "3"
    assert lines_in(tally) == 1


async def test_a_server_that_cannot_be_started_is_an_answer(tmp_path: Path) -> None:
    """Others work meanwhile, and what is wrong is named."""
    broken = ServerSpec(name="broken", command=str(tmp_path / "missing"))
    keyless = ServerSpec(name="keyless", command=sys.executable, values={"TOKEN": tmp_path / "no-token"})
    async with McpServers([broken, keyless, program()]) as servers:
        tools = await servers.tools(["add"])

        assert (await outcome(tools, "add", a=1, b=2)).content == "3"
        said = await outcome(tools, "mcp__broken__x")
        assert said.is_error
        assert "broken is not available: FileNotFoundError" in str(said.content)
        assert "no-token: No such file" in str((await outcome(tools, "mcp__keyless__x")).content)


async def test_a_plain_name_that_two_servers_have_is_nobodys() -> None:
    """By its full name each can be called."""
    async with McpServers([program("one"), program("two")]) as servers:
        tools = await servers.tools(["add"])

        assert not tools.takes(a_call("add"))
        assert (await outcome(tools, "mcp__two__add", a=1, b=2)).content == "3"


async def test_a_call_that_is_cancelled_leaves_the_session_alive() -> None:
    """An aborted fork does not cost the others their server."""
    async with McpServers([program()]) as servers:
        tools = await servers.tools(["add"])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await outcome(tools, "long", count=10)

        assert (await outcome(tools, "add", a=1, b=2)).content == "3"


@pytest.mark.parametrize("packed", [False, True])
async def test_an_answer_over_http_is_bounded(packed: bool) -> None:
    """One that does not end is left at its limit, and one that is compressed unasked is not unpacked."""
    encoding = "content-encoding: gzip\r\n" if packed else ""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{encoding}connection: close\r\n\r\n".encode()
    piece = gzip.compress(bytes(2**24)) if packed else b" " * 2**20
    flood = Flood(head=head, piece=piece, times=100)
    async with raw_server(flood) as server:
        async with McpServers([ServerSpec(name="probe", url=f"{server.url}/mcp")]) as servers:
            tracemalloc.start()
            try:
                found = await outcome(await servers.tools([]), "mcp__probe__add")
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()

        assert found.is_error
        assert ("compress" if packed else "bytes") in str(found.content)
        assert peak < 2**26
        assert packed or server.pieces < flood.times * len(server.heads)
