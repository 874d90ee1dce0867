"""A small coding agent for the terminal whose children run on other hosts: ``python -m examples.parent_agent``.

It works in the git repository of the current folder, talks to NATS at ``--nats`` or ``NATS_URL``, and to the Messages
API with ``ANTHROPIC_API_KEY`` (and ``ANTHROPIC_BASE_URL``). No child outlives it: Ctrl-C, leaving, a closed terminal
and even ``kill -9`` end them all.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from anthropic import AsyncAnthropic

from examples.parent.children import Children
from examples.parent.commands import Commands
from examples.parent.conversation import Conversation
from examples.parent.session import Session
from examples.parent.terminal import Terminal
from nexofork import (
    AgentRegistry,
    AgentTool,
    FleetSettings,
    GitWorkspace,
    NexoforkError,
    ParentContext,
    Permissions,
    QuerySource,
    capture,
    connect,
)
from nexofork.agents.context import read_context
from nexofork.bus.connection import BusSettings
from nexofork.errors import BusError
from nexofork.workspace.capture import locate

if TYPE_CHECKING:
    from nexofork import ForkParams

_MODEL = "claude-opus-4-8"
_BAD_INPUT, _NO_NATS = 2, 3


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="parent_agent", description="A coding agent whose children run elsewhere.")
    parser.add_argument("--nats", default=os.environ.get("NATS_URL", "nats://127.0.0.1:4222"), metavar="URL")
    parser.add_argument("--nkey", type=Path, metavar="FILE", help="the parent's seed, where NATS wants one")
    parser.add_argument("--nats-ca", type=Path, metavar="FILE", help="who signed the certificate of NATS")
    parser.add_argument("--pool", default="fork", help="whose daemons run the children")
    parser.add_argument("--model", default=_MODEL)
    parser.add_argument(
        "--allow", action="append", default=[], metavar="RULE", help="as 'Bash(git commit *)'; not asked"
    )
    return parser.parse_args()


async def main(chosen: argparse.Namespace) -> int:
    """Open everything and talk; returns the exit code."""
    root = (await locate(Path.cwd())).top
    permissions = Permissions(mode="bubble", allow=chosen.allow)
    context = ParentContext(query_source=QuerySource.MAIN_LOOP)
    parent_id = f"agent-{secrets.token_hex(6)}"
    bus = BusSettings(urls=tuple(chosen.nats.split(",")), nkey_seed=chosen.nkey, ca=chosen.nats_ca, name=parent_id)
    settings = FleetSettings(pool=chosen.pool, parent_id=parent_id, on_parent_gone="abort")
    async with (
        AsyncAnthropic() as client,
        connect(chosen.nats, nkey_seed=chosen.nkey, ca=chosen.nats_ca, settings=settings) as forks,
        asyncio.TaskGroup() as tasks,
    ):
        children, captured = Children(forks, tasks), capture(client, query_source=QuerySource.MAIN_LOOP)
        terminal = Terminal(who=children.name)

        def equip(params: ForkParams) -> ForkParams:
            """Give every child a checkout of its own, and somebody to ask."""
            workspace = GitWorkspace(root)
            return replace(
                params, workspace=workspace, permissions=permissions, on_permission=terminal.ask, parent_ctx=context
            )

        registry, known = AgentRegistry.load(root), await read_context(root)
        async with AgentTool(children, captured, agents=registry, context=known, equip=equip) as agents:
            conversation = Conversation(
                client,
                terminal,
                model=chosen.model,
                root=root,
                agents=agents,
                context=context,
                permissions=permissions,
            )
            commands = Commands(
                terminal,
                children,
                forks,
                root=root,
                source=captured,
                client=client,
                bus=bus,
                parent_id=parent_id,
                bill=conversation.bill,
            )
            terminal.show(f"In {root}, with children on {chosen.nats}. /help shows the commands.")
            return await Session(terminal, conversation, agents, children, commands).run()


def run() -> int:
    """Run the agent; what is expected to go wrong is one line and an exit code."""
    chosen = options()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print("parent_agent: this is a conversation; run it at a terminal.", file=sys.stderr)
        return _BAD_INPUT
    if not (os.environ.get("ANTHROPIC_API_KEY") or os.environ.get("ANTHROPIC_AUTH_TOKEN")):
        print("parent_agent: set ANTHROPIC_API_KEY.", file=sys.stderr)
        return _BAD_INPUT
    logging.basicConfig(level=logging.WARNING, format="[%(message)s]")
    try:
        return asyncio.run(main(chosen))
    except NexoforkError as exc:
        print(f"parent_agent: {exc}", file=sys.stderr)
        return _NO_NATS if isinstance(exc, BusError) else _BAD_INPUT


if __name__ == "__main__":
    sys.exit(run())
