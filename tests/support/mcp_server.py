"""A small MCP server, run as a program: over its standard streams, or over HTTP on the port it is given."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("probe")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def environment(name: str) -> str:
    """Say what a variable is."""
    return os.environ.get(name, "not set")


@server.tool()
def trace(ctx: Context) -> str:
    """Say which trace the call is part of."""
    return str((ctx.request_context.meta or {}).get("traceparent"))


@server.tool()
def long(count: int) -> str:
    """Say a lot."""
    return "x" * count


@server.tool()
def die(tally: str) -> str:
    """End in the middle of the call."""
    with Path(tally).open("a") as file:
        file.write(f"{os.getpid()}\n")
    os._exit(3)


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("bad luck")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
