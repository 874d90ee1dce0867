from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nexofork.bus.failures import NotPermitted
from nexofork.bus.jetstream import call, store
from nexofork.bus.presence import PresenceBoard
from nexofork.wire.messages import Daemon, Presence, encode
from tests.support.nats import AccountsServer, connected

if TYPE_CHECKING:
    from nexofork.bus.connection import Bus


def a_presence(pool: str, instance: str, **more: object) -> Presence:
    """A daemon of a pool."""
    return Presence(daemon=Daemon(instance=instance, host="h1"), pool=pool, slots=4, **more)  # type: ignore[arg-type]


async def test_daemons_of_a_pool_are_seen(bus: Bus, pool: str) -> None:
    """Each daemon shows its newest word, in its own pool only."""
    board = PresenceBoard(bus)
    await board.announce(a_presence(pool, f"{pool}-1", running=1))
    await board.announce(a_presence(pool, f"{pool}-2"))
    await board.announce(a_presence(f"{pool}x", f"{pool}-3"))
    newest = a_presence(pool, f"{pool}-1", running=2)
    await board.announce(newest)

    found = await board.daemons(pool)

    assert {presence.daemon.instance for presence in found} == {f"{pool}-1", f"{pool}-2"}
    assert newest in found


async def test_a_daemon_that_says_goodbye_is_gone(bus: Bus, pool: str) -> None:
    """Withdrawn at once; draining with work left it is still shown."""
    board = PresenceBoard(bus)
    leaving = a_presence(pool, f"{pool}-1", running=1, draining=True)
    await board.announce(leaving)
    assert await board.daemons(pool) == [leaving]

    await board.withdraw(leaving)

    assert await board.daemons(pool) == []


async def test_a_daemon_that_stops_speaking_is_forgotten(bus: Bus, pool: str) -> None:
    """The stream drops a presence after its age, here a second instead of thirty."""
    config = (await call(bus, "STREAM.INFO.FORK_PRESENCE"))["config"]
    await call(bus, "STREAM.UPDATE.FORK_PRESENCE", {**config, "max_age": 10**9})
    try:
        board = PresenceBoard(bus)
        await board.announce(a_presence(pool, f"{pool}-1"))
        assert len(await board.daemons(pool)) == 1
        while await board.daemons(pool):  # the test's own limit ends this
            pass
    finally:
        await call(bus, "STREAM.UPDATE.FORK_PRESENCE", config)


async def test_more_daemons_than_one_answer_holds(bus: Bus, pool: str) -> None:
    """Over a thousand daemons are all seen."""
    board = PresenceBoard(bus)
    async with asyncio.TaskGroup() as tasks:
        for number in range(1100):
            tasks.create_task(board.announce(a_presence(pool, f"{pool}-{number}")))

    assert len(await board.daemons(pool)) == 1100


async def test_rubbish_and_strangers_are_not_shown(bus: Bus, pool: str) -> None:
    """What cannot be read, or speaks for another daemon, is left out."""
    await store(bus, f"presence.local.{pool}-1", b"rubbish")
    await store(bus, f"presence.local.{pool}-2", encode(a_presence(pool, "somebody-else")))

    assert await PresenceBoard(bus).daemons(pool) == []


async def test_a_daemon_can_speak_for_itself_only(accounts_server: AccountsServer, pool: str) -> None:
    """With accounts the server refuses a presence under another key."""
    async with connected(accounts_server.url, seed=accounts_server.seeds["daemon"]) as daemon:
        own = Presence(daemon=Daemon(nkey=daemon.identity, instance="i1"), pool=pool, slots=1)
        await PresenceBoard(daemon).announce(own)
        assert await PresenceBoard(daemon).daemons(pool) == [own]

        with pytest.raises(NotPermitted, match=r"presence\.OTHER\.i1"):
            await store(daemon, "presence.OTHER.i1", encode(own))
