"""A key that is changed or removed under whoever uses it: they say so, and end instead of waiting for ever."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nexofork import CacheSafeParams, ForkParams, ForkStatus, connect
from nexofork.auth.book import Server, Tls
from nexofork.auth.folder import add_user, create, finish_rotation, remove_user, seed_file, start_rotation
from nexofork.bus.connection import BusSettings, open_bus
from nexofork.bus.failures import BusDenied
from nexofork.bus.provisioning import provision
from tests.integration.auth.test_reload import until_let_in
from tests.support.certificates import make_authority, make_certificate
from tests.support.nats import SMALL, ServerProcess, run_accounts_server, running
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from nexofork.errors import BusError
    from tests.support.nats import AccountsServer

_NEXOFORK = str(Path(sys.executable).with_name("nexofork"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AccountsServer]:
    """A server of this test's own."""
    with run_accounts_server(tmp_path) as started:
        yield started


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command; it is gone at the end of the block."""
    pipe = asyncio.subprocess.PIPE
    environment = {**os.environ, "ANTHROPIC_API_KEY": "sk-sim-team"}
    process = await asyncio.create_subprocess_exec(_NEXOFORK, *arguments, stdout=pipe, stderr=pipe, env=environment)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def first_line(process: asyncio.subprocess.Process) -> bytes:
    """What a command prints first."""
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        return await process.stdout.readline()


async def last_words(process: asyncio.subprocess.Process) -> str:
    """What a command said on stderr when it has ended."""
    async with asyncio.timeout(PATIENCE_S):
        return (await process.communicate())[1].decode()


async def test_a_removed_key_is_named_once_and_works_again_when_it_is_back(
    server: AccountsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """After its patience every request fails at once with the server's words; a connection that is let in goes on."""
    seed = add_user(server.folder, "observer", "guest")
    rendered = server.folder / "nats-server.conf"
    with_guest = rendered.read_text()
    server.reload()
    shut_out: list[BusError] = []
    settings = BusSettings(urls=(server.url,), nkey_seed=seed, denied_s=1.0)
    await until_let_in(server, seed)
    async with open_bus(settings) as guest:
        guest.on_shut_out(shut_out.append)
        caplog.set_level(logging.WARNING)
        remove_user(server.folder, "observer", "guest")
        server.reload()
        await eventually(lambda: shut_out)

        with pytest.raises(BusDenied, match=r"(?i)authorization violation, for .* which was let in before"):
            await guest.stream_fill("FORK")
        told = [record.message for record in caplog.records if "does not let" in record.message]
        assert len(told) == 1
        assert guest.identity in told[0]

        rendered.write_text(with_guest)
        server.reload()
        await eventually(lambda: guest.connected)
        assert await guest.stream_fill("FORK") < 1


async def test_a_changed_key_ends_at_once_who_has_the_old_one(server: AccountsServer) -> None:
    """Where the file holds the new key by now there is nothing to wait for: it takes a new start."""
    seed = server.seeds["observer"]
    shut_out: list[BusError] = []
    async with open_bus(BusSettings(urls=(server.url,), nkey_seed=seed, denied_s=3600.0)) as observer:
        observer.on_shut_out(shut_out.append)
        start_rotation(server.folder, "observer", "default")
        finish_rotation(server.folder, "observer", "default")
        server.reload()
        await eventually(lambda: shut_out)

    assert f"{seed} holds another key by now: start again" in str(shut_out[0])


async def test_a_command_that_follows_ends_when_it_is_shut_out(server: AccountsServer) -> None:
    """With the reason and exit code 3, instead of trying for ever."""
    seed = add_user(server.folder, "observer", "guest")
    server.reload()
    await until_let_in(server, seed)
    async with started("ps", "--watch", "--json", "--nats", server.url, "--nkey", str(seed)) as process:
        assert await first_line(process)
        remove_user(server.folder, "observer", "guest")
        server.reload()
        said = await last_words(process)

    assert process.returncode == 3
    assert "Error: NATS did not accept the credentials: Authorization Violation" in said


async def test_a_daemon_whose_key_was_changed_says_so_and_ends(tmp_path: Path) -> None:
    """Over TLS too: exit code 3, so that a supervisor starts it with the new key; nothing else is on stderr."""
    ca = make_authority(tmp_path)
    pair = make_certificate(tmp_path, ca, not_after="20990101000000Z")
    made = tmp_path / "auth"
    tls = Tls(cert=str(pair.cert), key=str(pair.key))
    create(made, Server(port=-1, monitor_port=-1, store=str(tmp_path / "store"), tls=tls))
    admin, seed = (seed_file(made, "default", role, "default") for role in ("admin", "daemon"))
    configuration = ServerProcess('include "../auth/nats-server.conf"', folder=tmp_path / "server")
    with running(configuration) as server:
        async with open_bus(BusSettings(urls=(server.url,), nkey_seed=admin, ca=ca.cert)) as bus:
            await provision(bus, max_bytes=SMALL)
        at = ("--nats", server.url, "--nats-ca", str(ca.cert), "--nkey", str(seed))
        folder = ("--sandbox", "none", "--allow-root", "--state-dir", str(tmp_path / "state"))
        async with started("daemon", *at, *folder) as process:
            assert await first_line(process) == b"ready\n"
            start_rotation(made, "daemon", "default")
            finish_rotation(made, "daemon", "default")
            os.kill(server.pid, signal.SIGHUP)
            said = await last_words(process)

    assert process.returncode == 3
    assert "does not let U" in said
    assert "holds another key by now" in said
    assert "eof_received" not in said


async def test_a_parent_that_is_shut_out_does_not_wait_for_ever(server: AccountsServer) -> None:
    """Its handle ends, with the reason and how to get the result after all; the run itself may go on."""
    seed = add_user(server.folder, "parent", "guest")
    server.reload()
    await until_let_in(server, seed)
    body = {"model": "claude-opus-4-8", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello."}]}
    params = ForkParams(cache_safe=CacheSafeParams.from_parent_request(body), prompt_messages="Look.")
    async with connect(server.url, nkey_seed=seed) as forks:
        handle = await forks.fork(params)
        remove_user(server.folder, "parent", "guest")
        server.reload()
        result = await handle.result()

    assert (result.status, result.end) == (ForkStatus.FAILED, "shut_out")
    assert "Authorization Violation" in (result.error or "")
    assert f"nexofork wait {handle.run_id}" in (result.error or "")
