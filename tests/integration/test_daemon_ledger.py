"""The daemon's ledger on a real server: few messages, nothing lost in an outage, and no run held up by it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from nexofork.bus.ledger import read_ledger
from nexofork.bus.provisioning import provision
from nexofork.bus.reading import read_subject
from nexofork.core.usage import Usage
from nexofork.run.call_records import CallFacts, CallOwner
from nexofork.wire.messages import Daemon
from nexofork.wire.streams import LEDGER
from nexofork_daemon.ledger import DaemonLedger
from tests.support.fleet import RestartableServer, restartable
from tests.support.nats import connected
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from nexofork.bus.connection import Bus

__all__ = ["restartable"]


def a_call(turn: int = 1) -> CallFacts:
    """A confirmed call."""
    return CallFacts(at=1.7e9, turn=turn, attempt=1, model="m", outcome="confirmed", usage=Usage(output_tokens=turn))


@asynccontextmanager
async def writing(bus: Bus, patience_s: float = PATIENCE_S) -> AsyncIterator[DaemonLedger]:
    """A ledger whose writer runs."""
    ledger = DaemonLedger(bus, Daemon(instance="d1", name="d1"), patience_s=patience_s)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(ledger.write())
        yield ledger
        task.cancel()


async def test_runs_that_end_together_are_booked_together(restartable: RestartableServer) -> None:
    """A hundred runs wait for their own call to be stored, and few messages carry them all."""
    async with connected(restartable.url) as bus:
        await provision(bus)
        async with writing(bus) as ledger:

            async def run(number: int) -> None:
                own = ledger.of_run(CallOwner(run_id=f"r{number}"))
                own.book(a_call())
                await own.flush()
                assert f"r{number}" in {call.run_id for call in await read_ledger(bus)}

            async with asyncio.TaskGroup() as tasks:
                for number in range(100):
                    tasks.create_task(run(number))

        assert len(await read_subject(bus, LEDGER, "ledger.*.*")) < 10


async def test_a_call_is_stored_soon_though_nobody_waits(restartable: RestartableServer) -> None:
    """So that a crash leaves little to guess."""
    async with connected(restartable.url) as bus:
        await provision(bus)
        async with writing(bus) as ledger:
            ledger.of_run(CallOwner(run_id="r")).book(a_call())
            async with asyncio.timeout(PATIENCE_S):
                while not await read_ledger(bus):
                    pass


async def test_more_than_one_message_holds_is_stored_in_several(restartable: RestartableServer) -> None:
    """Long names make a batch too large for the server: smaller ones follow, and nothing stands in the way for good."""
    long = 190 * "\N{GRINNING FACE}"
    async with connected(restartable.url) as bus:
        await provision(bus)
        async with writing(bus) as ledger, asyncio.timeout(PATIENCE_S):
            for number in range(600):
                name = f"{number}{long}"
                owner = CallOwner(run_id=f"r{number}", label=f"l{name}", group=f"g{name}", parent=f"p{name}", host=name)
                own = ledger.of_run(owner)
                own.book(a_call())
            await own.flush()

        assert len({call.run_id for call in await read_ledger(bus)}) == 600


async def test_an_outage_loses_nothing(restartable: RestartableServer) -> None:
    """What is booked while the server is away is stored when it is back, and whoever waits is told then."""
    async with connected(restartable.url, request_timeout_s=1.0) as bus:
        await provision(bus)
        async with writing(bus) as ledger:
            run = ledger.of_run(CallOwner(run_id="r"))
            run.book(a_call(1))
            await run.flush()
            restartable.down()
            run.book(a_call(2))
            async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(run.flush())
                done, _ = await asyncio.wait([waiting], timeout=1.5)
                assert not done
                restartable.up()
                await restartable.ready()

        assert {call.turn for call in await read_ledger(bus)} == {1, 2}


async def test_a_ledger_without_a_leader_is_waited_for(restartable: RestartableServer) -> None:
    """A stream that nobody answers for may be there in a moment: whoever waits is told when the call is stored."""
    async with connected(restartable.url) as bus, writing(bus) as ledger:
        run = ledger.of_run(CallOwner(run_id="r"))
        run.book(a_call())
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(run.flush())
            done, _ = await asyncio.wait([waiting], timeout=0.5)
            assert not done
            await provision(bus)

        assert [call.run_id for call in await read_ledger(bus)] == ["r"]


async def test_no_run_waits_long_for_a_ledger_that_takes_nothing(
    restartable: RestartableServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a stream it is said once, runs go on, and the calls are there once there is one."""
    async with connected(restartable.url) as bus:
        with caplog.at_level(logging.WARNING, "nexofork_daemon"):
            async with writing(bus, patience_s=1.0) as ledger, asyncio.timeout(PATIENCE_S):
                for number in range(5):
                    run = ledger.of_run(CallOwner(run_id=f"r{number}"))
                    run.book(a_call())
                    await run.flush()
        assert [record.levelname for record in caplog.records if "ledger" in record.message] == ["WARNING"]

        await provision(bus)
        await ledger.close()

        assert {call.run_id for call in await read_ledger(bus)} == {f"r{number}" for number in range(5)}
