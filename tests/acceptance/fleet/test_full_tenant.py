"""A tenant whose store one daemon's key has filled: what still goes in, and what does not."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from nexofork.bus.failures import JetStreamRefused, StoreFull
from nexofork.bus.jetstream import call, store
from nexofork.bus.run_log import RunLog
from nexofork.wire.messages import AbortEvent
from nexofork.wire.streams import stream_settings
from nexofork.wire.subjects import blob, inbox, ledger, presence, reports, warm
from tests.support.conversation import says
from tests.support.fleet import open_fleet
from tests.support.nats import AccountsServer, a_claim, a_request, connected, run_accounts_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from nexofork.bus.connection import Bus
    from nexofork.simulator import Simulator
    from tests.support.fleet import Nursery

LOG_BYTES = 8 << 20
ACCOUNT_BYTES = 48 << 20
HELD = {"text": "Scope: all\nResult: done", "hold": {"gate": "held", "after_events": 3}}


def cramped(text: str) -> str:
    """The rendered configuration with an account that is soon full."""
    assert "max_file: 8GB" in text
    return text.replace("max_file: 8GB", f"max_file: {ACCOUNT_BYTES}")


@pytest.fixture
def small_tenant(tmp_path: Path) -> Iterator[AccountsServer]:
    """A server whose one tenant has little room."""
    with run_accounts_server(tmp_path / "nats", change=cramped, max_bytes=LOG_BYTES) as server:
        yield server


async def flood(bus: Bus) -> None:
    """Store all that a daemon's key may, in every stream, until not one byte more goes in."""
    number = itertools.count()
    makers: tuple[Callable[[], str], ...] = (
        lambda: ledger(bus.identity, f"flood{next(number)}"),
        lambda: blob("daemon", f"flood{next(number)}", 0),
        lambda: reports(f"flood{next(number)}"),
        lambda: warm(f"flood{next(number)}"),
        lambda: presence(bus.identity, f"flood{next(number)}"),
    )
    for size, subject in itertools.product((1_000_000, 60_000, 4_000, 250, 0), makers):
        for _ in range(2 * ACCOUNT_BYTES // 1_000_000):  # where the oldest gives way, none is ever refused
            try:
                await store(bus, subject(), b"x" * size)
            except (StoreFull, JetStreamRefused):
                break


@asynccontextmanager
async def roles(server: AccountsServer) -> AsyncIterator[tuple[Bus, Bus, Bus]]:
    """An admin, a parent and a daemon."""
    async with (
        connected(server.url, seed=server.seeds["admin"]) as admin,
        connected(server.url, seed=server.seeds["parent"]) as parent,
        connected(server.url, seed=server.seeds["daemon"]) as daemon,
    ):
        yield admin, parent, daemon


async def test_an_abort_is_stored_in_a_tenant_that_is_full_to_the_last_byte(
    small_tenant: AccountsServer,
) -> None:
    """The ledger, the blobs and the log take nothing more, and the daemon of the run reads the abort."""
    async with roles(small_tenant) as (admin, parent, daemon):
        run_id = "doomed"
        requested = await RunLog(parent, run_id).request(a_request())
        await RunLog(daemon, run_id).append(a_claim(), after=requested)
        await flood(daemon)
        for subject in (ledger(daemon.identity, "more"), blob("daemon", "more", 0), reports("more")):
            with pytest.raises(StoreFull):
                await store(daemon, subject, b"")

        event = AbortEvent(note="stop", by="parent")
        outcome = await RunLog(parent, run_id).abort(event)

        assert outcome.how == "inbox"
        assert await RunLog(daemon, run_id).inbox_abort() == event
        for wanted in stream_settings(max_bytes=LOG_BYTES):
            info = await call(admin, f"STREAM.INFO.{wanted['name']}")
            assert info["state"]["bytes"] <= wanted["max_bytes"]


async def test_an_account_without_room_is_called_full(small_tenant: AccountsServer) -> None:
    """Where a ledger of the version before, without a limit, has taken it all, the error names the reason."""
    async with roles(small_tenant) as (admin, parent, daemon):
        settings = (await call(admin, "STREAM.INFO.FORK_LEDGER"))["config"]
        await call(admin, "STREAM.UPDATE.FORK_LEDGER", {**settings, "max_bytes": -1, "max_msgs": -1})
        await flood(daemon)

        with pytest.raises(StoreFull, match="resource limits exceeded for account"):
            await store(parent, inbox("other", "1"), b"x" * 1_000_000)


async def test_a_child_obeys_an_abort_while_the_tenant_is_full(
    small_tenant: AccountsServer, sim: Simulator, nursery: Nursery, tmp_path: Path
) -> None:
    """The stream to the provider is closed, although the log takes no entry and another key's flood came first."""
    async with open_fleet(
        (small_tenant.url,),
        sim=sim,
        nursery=nursery,
        folder=tmp_path,
        pool="fork",
        seeds=small_tenant.seeds,
        max_bytes=LOG_BYTES,
    ) as fleet:
        fleet.forged = True
        await fleet.daemon()
        async with fleet.connect() as forks:
            handle = await forks.fork(await fleet.params(says("ebony", HELD)))
            await sim.begun(2)
            async with connected(small_tenant.url, seed=small_tenant.seeds["daemon"]) as hostile:
                await flood(hostile)

            await handle.abort("while all is full")
            await sim.closed_early(1)
            handle.detach()
