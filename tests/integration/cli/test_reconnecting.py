"""Commands that follow something go on when NATS goes away and comes back."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nexofork.bus.jetstream import store
from nexofork.bus.provisioning import provision
from nexofork.wire.messages import AbortEvent, Payload, Requested, encode
from nexofork.wire.subjects import events
from tests.support.nats import connected
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.fleet import RestartableServer

_NEXOFORK = str(Path(sys.executable).with_name("nexofork"))


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command; it is gone at the end of the block."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(_NEXOFORK, *arguments, stdout=pipe, stderr=pipe)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def next_object(process: asyncio.subprocess.Process) -> dict[str, Any]:
    """The next line of a command's output."""
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        line = await process.stdout.readline()
    found: dict[str, Any] = json.loads(line)
    return found


async def put(url: str, run_id: str, message: Requested | AbortEvent) -> None:
    """Put an event on a run's log."""
    async with connected(url) as bus:
        await provision(bus, lease_s=None)
        await store(bus, events(run_id), encode(message))


@pytest.mark.parametrize("command", ["logs", "ps"])
async def test_a_server_that_comes_back_is_followed_on(restartable: RestartableServer, command: str) -> None:
    """What was there is not shown again, what happened meanwhile is, and stderr says what the matter was."""
    run_id = f"r{secrets.token_hex(4)}"
    await put(restartable.url, run_id, Requested(snapshot=Payload(text="{}"), directive="wait"))
    words = ["logs", "-f", run_id] if command == "logs" else ["ps", "--watch"]

    async with started(*words, "--json", "--nats", restartable.url) as process:
        first = await next_object(process)
        restartable.down()
        if command == "logs":
            assert process.stderr is not None
            async with asyncio.timeout(PATIENCE_S):
                while b"NATS is not reached" not in await process.stderr.readline():
                    pass
        restartable.up()
        await restartable.ready()
        await put(restartable.url, run_id, AbortEvent(note="meanwhile"))
        second = await next_object(process)
        if command == "ps":
            process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            code = await process.wait()

    if command == "logs":
        assert [first["event"], second["event"], second["note"]] == ["requested", "abort", "meanwhile"]
        assert second["status"] == "aborted", "an abort before any claim is the end, so there is nothing to follow"
    else:
        assert [first["event"], second["event"]] == ["state", "run"]
        assert [first["runs"][0]["status"], second["status"]] == ["queued", "aborted"]
    assert code == 0
