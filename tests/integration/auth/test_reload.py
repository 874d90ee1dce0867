"""Keys that change under a running server: it reads its configuration again, and nobody else notices."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nexofork.auth.folder import add_user, extend, finish_rotation, remove_user, start_rotation
from nexofork.bus.connection import BusSettings, open_bus
from nexofork.bus.failures import BusDenied, NoResponders
from nexofork.bus.provisioning import provision
from nexofork.bus.run_log import RunLog
from tests.support.nats import SMALL, a_claim, a_request, a_turn, connected, run_accounts_server
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nexofork.bus.connection import Bus
    from tests.support.nats import AccountsServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AccountsServer]:
    """A server of this test's own."""
    with run_accounts_server(tmp_path) as started:
        yield started


async def until_let_in(server: AccountsServer, seed: Path, *, expected: bool = True) -> None:
    """Return when the server has read its configuration again."""
    async with asyncio.timeout(PATIENCE_S):
        while await is_let_in(server, seed) is not expected:
            pass


async def until_served(bus: Bus) -> None:
    """Return when a client that stayed connected is answered; while the server links its accounts anew, nobody does."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                assert await bus.stream_fill("FORK") < 1
            except NoResponders:
                continue
            return


async def is_let_in(server: AccountsServer, seed: Path) -> bool:
    """Whether the server knows a key."""
    try:
        async with open_bus(BusSettings(urls=(server.url,), nkey_seed=seed, connect_timeout_s=2.0)):
            return True
    except BusDenied:
        return False


async def test_a_key_is_changed_and_the_others_stay_connected(
    server: AccountsServer, run_id: str, tmp_path: Path
) -> None:
    """Both keys work until the end of the grace, then the new one alone; a run goes on all the while."""
    old = tmp_path / "old.nk"
    old.write_text(server.seeds["observer"].read_text())
    async with (
        connected(server.url, seed=server.seeds["parent"]) as parent,
        connected(server.url, seed=server.seeds["daemon"]) as daemon,
    ):
        seq = await RunLog(parent, run_id).request(a_request())
        new = start_rotation(server.folder, "observer", "default")
        server.reload()
        await until_let_in(server, new)
        assert await is_let_in(server, old)

        seq = await RunLog(daemon, run_id).append(a_claim(), after=seq)
        kept = finish_rotation(server.folder, "observer", "default")
        server.reload()
        await until_let_in(server, old, expected=False)
        assert await is_let_in(server, kept)
        await RunLog(daemon, run_id).append(a_turn(), after=seq)
        assert len(await RunLog(parent, run_id).entries()) == 3
        assert (parent.reconnects, daemon.reconnects) == (0, 0)


async def test_a_user_is_added_and_removed_while_the_server_runs(server: AccountsServer) -> None:
    """The new one gets in after a reload, works, and is out after another; its connection is closed, no other is."""
    async with connected(server.url, seed=server.seeds["parent"]) as parent:
        seed = add_user(server.folder, "daemon", "host2")
        assert not await is_let_in(server, seed)
        server.reload()
        await until_let_in(server, seed)
        async with connected(server.url, seed=seed) as second:
            await second.request(f"presence.{second.identity}.i", b"{}")
            remove_user(server.folder, "daemon", "host2")
            server.reload()
            await eventually(lambda: not second.connected)
        await until_served(parent)
        assert parent.reconnects == 0


async def test_a_tenant_and_a_pool_are_added_while_the_server_runs(server: AccountsServer, run_id: str) -> None:
    """After two reloads the new tenant provisions and works, and so does the new pool of the old one.

    The server (2.15) makes new accounts at the first reload and connects them to each other at the second.
    """
    async with connected(server.url, seed=server.seeds["parent"]) as parent:
        extend(server.folder, tenants=("blue",), pools=("gpu",))
        server.reload()
        await until_let_in(server, server.seeds_of("blue")["admin"])
        seed = add_user(server.folder, "observer", "last", tenant="blue")
        server.reload()
        await until_let_in(server, seed)
        for tenant in ("default", "blue"):
            async with connected(server.url, seed=server.seeds_of(tenant)["admin"]) as admin:
                await provision(admin, pool="gpu", max_bytes=SMALL)
        await RunLog(parent, run_id, pool="gpu").request(a_request())
        async with connected(server.url, seed=server.seeds_of("blue")["parent"]) as other:
            assert await RunLog(other, run_id, pool="gpu").entries() == []
        assert len(await RunLog(parent, run_id, pool="gpu").entries()) == 1
        assert parent.reconnects == 0
