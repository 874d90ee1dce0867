from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from nexofork.bus.failures import NotPermitted
from nexofork.bus.jetstream import store
from nexofork.bus.ledger import append_calls, read_ledger
from nexofork.errors import BusError
from nexofork.wire.ledger import BookedCall, encode_calls
from nexofork.wire.messages import Daemon
from tests.support.nats import AccountsServer, connected

if TYPE_CHECKING:
    from nexofork.bus.connection import Bus

OLD = 1_700_000_000.0


def a_call(pool: str, run: str = "a", **more: object) -> BookedCall:
    """A call of a pool."""
    return BookedCall(**{"at": time.time(), "run_id": run, "pool": pool, "billed": (1, 2, 3, 4, 5), **more})  # type: ignore[arg-type]


async def booked_in(bus: Bus, pool: str, since: float | None = None) -> list[BookedCall]:
    """What the ledger has of a pool."""
    return [call for call in await read_ledger(bus, since) if call.pool == pool]


async def test_calls_are_read_as_they_were_booked(bus: Bus, pool: str) -> None:
    """In the order of the stream, from every daemon."""
    calls = [a_call(pool, run) for run in "abc"]
    await append_calls(bus, Daemon(instance=f"{pool}-1"), calls[:2])
    await append_calls(bus, Daemon(instance=f"{pool}-2"), calls[2:])

    assert await booked_in(bus, pool) == calls


async def test_what_was_stored_before_is_not_read(bus: Bus, pool: str) -> None:
    """By the time a call was sent, whenever it was booked; clocks may differ by minutes."""
    daemon = Daemon(instance=f"{pool}-1")
    old, ahead = a_call(pool, "old", at=OLD), a_call(pool, "ahead", at=time.time() + 300)
    await append_calls(bus, daemon, [old, ahead])

    assert await booked_in(bus, pool) == [old, ahead]
    assert await booked_in(bus, pool, OLD + 1) == [ahead]
    assert await booked_in(bus, pool, time.time() + 200) == [ahead]
    assert await booked_in(bus, pool, time.time() + 9_000) == []


async def test_noise_and_other_peoples_calls_are_left_out(bus: Bus, pool: str) -> None:
    """A message that names another daemon than its subject does is not shown."""
    forged = encode_calls(Daemon(instance="honest"), [a_call(pool)], at=0.0)
    for data in (b"", b"{}", b"\xff\xfe", b'{"kind":"calls","daemon":{}}', forged):
        await store(bus, f"ledger.local.{pool}", data)
    mine = a_call(pool, "mine")
    await append_calls(bus, Daemon(instance=pool), [mine])

    assert await booked_in(bus, pool) == [mine]


async def test_daemons_write_and_others_read(accounts_server: AccountsServer, pool: str) -> None:
    """Under its own key alone; parents and observers read, and nobody else writes."""
    seeds = accounts_server.seeds
    async with connected(accounts_server.url, seed=seeds["daemon"]) as daemon:
        call = a_call(pool)
        await append_calls(daemon, Daemon(nkey=daemon.identity, instance="d1"), [call])
        with pytest.raises(NotPermitted):
            await store(daemon, "ledger.UABC.d1", b"{}")
        with pytest.raises(BusError):
            await read_ledger(daemon)
    for role in ("parent", "observer"):
        async with connected(accounts_server.url, seed=seeds[role]) as reader:
            assert await booked_in(reader, pool) == [call]
            assert await booked_in(reader, pool, call.at - 5) == [call]
            with pytest.raises(NotPermitted):
                await append_calls(reader, Daemon(nkey=reader.identity, instance="d1"), [call])


async def test_a_long_ledger_is_read_page_by_page(bus: Bus, pool: str) -> None:
    """More messages than the server gives at once."""
    daemon = Daemon(instance=pool)
    async with asyncio.TaskGroup() as tasks:
        for number in range(1_100):
            tasks.create_task(append_calls(bus, daemon, [a_call(pool, f"r{number}")]))

    assert len(await booked_in(bus, pool, time.time() - 60)) == 1_100
