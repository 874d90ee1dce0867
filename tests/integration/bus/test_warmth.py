from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from nexofork.bus.jetstream import store
from nexofork.bus.provisioning import provision
from nexofork.bus.reading import last_of
from nexofork.bus.warmth import FleetWarmth
from nexofork.run.prefix_gate import Warmth
from nexofork.wire.messages import Warming, encode
from nexofork.wire.streams import WARM
from nexofork.wire.subjects import warm
from tests.support.decisions import LEADER_FIRST
from tests.support.fleet import RestartableServer, restartable
from tests.support.nats import SMALL, AccountsServer, connected
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from nexofork.bus.connection import Bus
    from nexofork.bus.embedded import EmbeddedServer
    from nexofork.bus.warmth import Standing

    Asking = Coroutine[None, None, Standing]

__all__ = ["restartable"]

LIMIT_S = 20.0


@asynccontextmanager
async def boards(server: EmbeddedServer, count: int) -> AsyncIterator[list[FleetWarmth]]:
    """The boards of so many daemons, each with a connection of its own."""
    async with AsyncExitStack() as stack:
        opened = []
        for number in range(count):
            bus = await stack.enter_async_context(connected(server.url))
            await provision(bus, max_bytes=SMALL)  # whichever test is the first on this server
            opened.append(await stack.enter_async_context(FleetWarmth(bus, by=f"d{number}")))
        yield opened


def ask(board: FleetWarmth, key: str, *, patience_s: float = PATIENCE_S, limit_s: float = LIMIT_S) -> Asking:
    """Ask to lead."""
    return board.claim(key, patience_s=patience_s, limit_s=limit_s)


async def state_of(bus: Bus, key: str) -> Warming:
    """What the stream says about a prefix."""
    stored = await last_of(bus, WARM, warm(key))
    assert stored is not None
    return Warming.model_validate_json(stored.data)


async def until_state(bus: Bus, key: str, state: str) -> None:
    """Return when the stream says so."""
    async with asyncio.timeout(PATIENCE_S):
        while (await state_of(bus, key)).state != state:  # noqa: ASYNC110 - the stream is asked, it does not tell
            await asyncio.sleep(0.01)


async def test_one_of_many_leads_and_the_others_start_when_it_says_warm(nats_server: EmbeddedServer, bus: Bus) -> None:
    """Of ten daemons that ask at once one leads; its word reaches the nine, with the time that is left."""
    key = secrets.token_hex(8)
    async with boards(nats_server, 10) as all_:
        async with asyncio.TaskGroup() as tasks:
            asked = {tasks.create_task(ask(board, key)): board for board in all_}
            (first,), waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            assert first.result().leads
            asked[first].warm(key, for_s=300.0, ttl_s=300.0)
        standings = [task.result() for task in waiting]

    assert [standing.leads for standing in standings] == [False] * 9
    assert all(290 < (standing.warm_s or 0) <= 300 for standing in standings)
    assert (await state_of(bus, key)).state == "warm"


async def test_a_warm_prefix_is_nobodys_to_lead(nats_server: EmbeddedServer, bus: Bus) -> None:
    """Who asks later is told at once."""
    key = secrets.token_hex(8)
    async with boards(nats_server, 2) as (one, other):
        assert (await ask(one, key)).leads
        one.warm(key, for_s=300.0, ttl_s=300.0)
        await until_state(bus, key, "warm")

        standing = await ask(other, key)

    assert (standing.leads, standing.waited) == (False, False)
    assert standing.warm_s is not None


async def test_a_leader_that_gives_up_hands_over(nats_server: EmbeddedServer) -> None:
    """The next one leads as soon as it says so."""
    key = secrets.token_hex(8)
    async with boards(nats_server, 2) as (one, other):
        assert (await ask(one, key)).leads
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(ask(other, key))
            one.release(key)

        assert waiting.result().leads


async def test_a_leader_that_falls_silent_is_replaced(nats_server: EmbeddedServer, bus: Bus) -> None:
    """A daemon that was lost renews nothing; after three seconds of silence another one leads."""
    key = secrets.token_hex(8)
    async with boards(nats_server, 1) as (board,):
        await store(bus, warm(key), encode(Warming(state="warming", by="lost", since=board.clock.now())))

        standing = await ask(board, key)

    assert standing.leads
    assert standing.waited


async def test_a_living_leader_is_not_replaced_before_its_time(nats_server: EmbeddedServer) -> None:
    """One that renews is waited for until the limit, beyond the silence that would replace a lost one."""
    key = secrets.token_hex(8)
    async with boards(nats_server, 2) as (one, other):
        assert (await ask(one, key)).leads

        standing = await ask(other, key, patience_s=PATIENCE_S, limit_s=4.0)

    assert (standing.leads, standing.warm_s, standing.waited) == (False, None, True)


async def test_a_slow_leader_gets_another_beside_it(nats_server: EmbeddedServer, bus: Bus) -> None:
    """When patience ends the next one leads; what the slow one says later counts all the same."""
    key = secrets.token_hex(8)
    async with boards(nats_server, 3) as (slow, next_, third):
        assert (await ask(slow, key)).leads
        assert (await ask(next_, key, patience_s=0.2, limit_s=LIMIT_S)).leads
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(ask(third, key))
            slow.warm(key, for_s=300.0, ttl_s=300.0)

        assert waiting.result().warm_s is not None


async def test_who_waits_for_a_leader_here_hears_of_one_elsewhere(nats_server: EmbeddedServer) -> None:
    """Two lead beside each other: the first byte of either starts everybody."""
    key = secrets.token_hex(8)
    async with boards(nats_server, 2) as (here, elsewhere):
        warmth, slow = Warmth(board=here, wait_s=10 * PATIENCE_S), replace(LEADER_FIRST, first_byte_s=10 * PATIENCE_S)
        assert (await warmth.enter(key, slow)).role == "leader"
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(warmth.enter(key, slow))
            await asyncio.sleep(0)
            elsewhere.warm(key, for_s=300.0, ttl_s=300.0)

    assert waiting.result().role == "follower"


async def test_a_limit_holds_although_nats_is_away(restartable: RestartableServer) -> None:
    """Nobody waits for an answer about the cache longer than for the cache."""
    async with connected(restartable.url, request_timeout_s=10 * PATIENCE_S) as bus:
        board = FleetWarmth(bus, by="d1")  # it has not asked the server for its time yet
        restartable.down()
        async with asyncio.timeout(PATIENCE_S):
            standing = await ask(board, "prefix", limit_s=0.5)

    assert standing.warm_s is None


async def test_garbage_is_written_over(nats_server: EmbeddedServer, bus: Bus) -> None:
    """Warmth is advice: what cannot be read is no leader."""
    key = secrets.token_hex(8)
    await store(bus, warm(key), b"\xff garbage")
    async with boards(nats_server, 1) as (board,):
        assert (await ask(board, key)).leads


@pytest.mark.parametrize("until_s", [2 * 3600.0, 1e300])
async def test_warmth_beyond_what_a_cache_keeps_is_written_over(
    nats_server: EmbeddedServer, bus: Bus, until_s: float
) -> None:
    """No entry lives longer than an hour; one that says so would make daemons pay for writes for ever."""
    key = secrets.token_hex(8)
    await store(bus, warm(key), encode(Warming(state="warm", by="liar", until=time.time() + until_s)))
    async with boards(nats_server, 2) as (board, other):
        told: list[str] = []
        other.listen(lambda name, _for_s, _cached: told.append(name))
        standing = await ask(board, key)
        assert standing.leads
        await store(bus, warm(key), encode(Warming(state="warm", by="liar", until=time.time() + until_s)))
        await store(bus, warm(f"{key}-true"), encode(Warming(state="warm", by="d", until=time.time() + 300)))
        async with asyncio.timeout(PATIENCE_S):
            while f"{key}-true" not in told:  # noqa: ASYNC110 - it is told by a callback
                await asyncio.sleep(0.01)

    assert key not in told


async def test_expired_warmth_is_cold(nats_server: EmbeddedServer, bus: Bus) -> None:
    """After the entry's time the next one leads."""
    key = secrets.token_hex(8)
    async with boards(nats_server, 1) as (board,):
        await store(bus, warm(key), encode(Warming(state="warm", until=board.clock.now() - 1)))
        assert (await ask(board, key)).leads


async def test_the_servers_time_is_told_whatever_our_own_clock_says(bus: Bus) -> None:
    """The difference to the server's clock on this machine is none worth mentioning."""
    async with FleetWarmth(bus, by="d1") as board:
        assert abs(board.clock.ahead_s) < 2


@pytest.mark.parametrize("skew_s", [-600.0, 600.0])
async def test_a_host_whose_clock_is_minutes_off_tells_and_is_told_the_right_time(
    nats_server: EmbeddedServer, bus: Bus, skew_s: float
) -> None:
    """Times on the board are the server's, so an entry of five minutes is one on every host."""
    keys = secrets.token_hex(8), secrets.token_hex(8)
    async with (
        FleetWarmth(bus, by="right") as right,
        FleetWarmth(bus, by="off", clock=lambda: time.time() + skew_s) as off,
    ):
        for key, teller, asker in zip(keys, (off, right), (right, off), strict=True):
            assert (await ask(teller, key)).leads
            teller.warm(key, for_s=300.0, ttl_s=300.0)
            await until_state(bus, key, "warm")

            standing = await ask(asker, key)

            assert standing.warm_s is not None
            assert 290 < standing.warm_s < 302


async def test_daemons_with_a_role_of_their_own_share_warmth(accounts_server: AccountsServer) -> None:
    """The permissions of a daemon suffice."""
    key = secrets.token_hex(8)
    async with (
        connected(accounts_server.url, seed=accounts_server.seeds["daemon"]) as one_bus,
        connected(accounts_server.url, seed=accounts_server.seeds["daemon"]) as other_bus,
        FleetWarmth(one_bus, by="d1") as one,
        FleetWarmth(other_bus, by="d2") as other,
    ):
        assert (await ask(one, key)).leads
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(ask(other, key))
            one.warm(key, for_s=300.0, ttl_s=300.0)

    assert waiting.result().warm_s is not None
