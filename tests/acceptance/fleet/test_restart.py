"""The nats-server goes away and comes back: runs go on, and nobody misses or repeats anything."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from nexofork import ForkStatus
from nexofork.run.events import (
    FanOutDecided,
    ForkClaimed,
    ForkEnded,
    ForkStarted,
    ToolFinished,
    ToolStarted,
    TurnFinished,
)
from nexofork.wire import messages as wire
from tests.support.conversation import call, says
from tests.support.fleet import asked, finals, lines_in, open_fleet
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nexofork import ForkHandle
    from nexofork.run.events import ForkEvent
    from nexofork.simulator import Simulator
    from tests.support.fleet import Fleet, Nursery, RestartableServer

DONE = "Scope: all\nResult: done"


@pytest.fixture
async def fragile(
    restartable: RestartableServer, sim: Simulator, nursery: Nursery, tmp_path: Path
) -> AsyncIterator[Fleet]:
    """A fleet on a server that may go away."""
    async with open_fleet((restartable.url,), sim=sim, nursery=nursery, folder=tmp_path, lease_s=2.0) as opened:
        yield opened


async def watched(handle: ForkHandle) -> list[ForkEvent]:
    """Everything a watcher sees, from the start to the end."""
    return [event async for event in handle.events()]


async def test_runs_go_on_through_a_restart_in_mid_stream(fragile: Fleet, restartable: RestartableServer) -> None:
    """Both runs complete on the daemon that had them; the model is asked once each."""
    await fragile.daemon()
    async with fragile.connect() as forks:
        held = {"text": DONE, "hold": {"gate": "held", "after_events": 3}}
        handles = await forks.fork_each(await fragile.params("x"), [says("apple", held), says("birch", held)])
        await fragile.sim.begun(3)

        await restartable.restart()
        fragile.sim.release("held")
        results = [await handle.result() for handle in handles]

    assert [(result.status, result.attempts) for result in results] == [(ForkStatus.COMPLETED, 1)] * 2
    assert asked(fragile.sim, "apple") == asked(fragile.sim, "birch") == [1]


async def test_a_turn_that_ends_while_nats_is_away_is_recorded_when_it_is_back(
    fragile: Fleet, restartable: RestartableServer
) -> None:
    """The reply waits for the log; the tool it asks for is not run before it is announced there."""
    await fragile.daemon()
    tally = fragile.folder / "tally"
    async with fragile.connect() as forks:
        turns = ({"tools": [call(command=f"echo ran >> {tally}")], "hold": "answer"}, DONE)
        handle = await forks.fork(await fragile.params(says("cedar", *turns)))
        await fragile.sim.received(2)

        restartable.down()
        fragile.sim.release("answer")
        await fragile.sim.finished(2)
        assert lines_in(tally) == 0
        restartable.up()
        result = await handle.result()

    assert result.status is ForkStatus.COMPLETED
    assert lines_in(tally) == 1
    assert asked(fragile.sim, "cedar") == [1, 2]
    assert len(finals(await fragile.reports(handle.run_id))) == 1


async def test_a_watcher_sees_every_report_once_and_in_order(fragile: Fleet, restartable: RestartableServer) -> None:
    """With the server restarted again and again in the middle, the events are those of an undisturbed run."""
    turns = 6
    door = fragile.folder / "door"
    await fragile.daemon()
    async with fragile.connect() as forks, fragile.connect() as others, asyncio.TaskGroup() as watching:
        steps = [
            {"tools": [call(command=f"until [ -e {door}{number} ]; do sleep 0.02; done")]} for number in range(turns)
        ]
        handle = await forks.fork(await fragile.params(says("drum", *steps, DONE)))
        attached = await others.attach(handle.run_id)
        mine, theirs = watching.create_task(watched(handle)), watching.create_task(watched(attached))
        for number in range(turns):
            await fragile.sim.finished(2 + number)
            if number % 2:
                restartable.down()
                (door.parent / f"{door.name}{number}").touch()  # the tool ends while nobody can be told
                restartable.up()
                await restartable.ready()
            else:
                (door.parent / f"{door.name}{number}").touch()
        result = await handle.result()

    per_turn = [TurnFinished, ToolStarted, ToolFinished]
    expected = [ForkClaimed, FanOutDecided, *per_turn * turns, TurnFinished, ForkEnded]
    assert result.status is ForkStatus.COMPLETED
    assert [type(event) for event in mine.result()] == [ForkStarted, *expected]
    assert [type(event) for event in theirs.result()] == expected
    numbers = [event.turn for event in mine.result() if isinstance(event, TurnFinished)]
    assert numbers == list(range(1, turns + 2))


async def test_a_daemon_lost_while_nats_was_away_is_replaced(fragile: Fleet, restartable: RestartableServer) -> None:
    """Server and daemon die together; the next daemon finds the run in the store and finishes it."""
    lost = await fragile.daemon()
    async with fragile.connect() as forks:
        turns = ({"tools": [call(command="true")]}, {"text": DONE, "hold": "second"})
        handle = await forks.fork(await fragile.params(says("ebony", *turns)))
        await fragile.sim.received(3)

        restartable.down()
        await lost.kill()
        restartable.up()
        await restartable.ready()
        fragile.sim.release("second")
        await fragile.daemon("heir")
        result = await handle.result()

    assert (result.status, result.daemon, result.attempts) == (ForkStatus.COMPLETED, "heir", 2)
    assert asked(fragile.sim, "ebony") == [1, 2, 2]


async def test_new_forks_after_a_restart_are_taken_at_once(fragile: Fleet, restartable: RestartableServer) -> None:
    """An idle daemon pulls again by itself; a parent's fork that met the outage goes through."""
    await fragile.daemon()
    async with fragile.connect() as forks:
        params = await fragile.params("first")
        await (await forks.fork(params)).result()

        restartable.down()
        async with asyncio.TaskGroup() as tasks:
            during = tasks.create_task(forks.fork(params.with_directive("during")))
            await asyncio.sleep(0)
            restartable.up()
        results = [await during.result().result(), await (await forks.fork(params.with_directive("after"))).result()]

    assert [result.status for result in results] == [ForkStatus.COMPLETED] * 2


async def test_a_living_parent_is_not_taken_for_gone_because_of_a_restart(
    fragile: Fleet, restartable: RestartableServer
) -> None:
    """Its heartbeats cannot arrive while the server is away; its children are not aborted for that."""
    await fragile.daemon()
    async with fragile.connect(parent_id="alive", on_parent_gone="abort", heartbeat_s=1.0) as forks:
        handle = await forks.fork(await fragile.params(says("fern", {"text": DONE, "hold": "held"})))
        await fragile.sim.received(2)

        restartable.down()
        await asyncio.sleep(3.5)  # longer than three heartbeats: there is no event for silence
        restartable.up()
        await restartable.ready()
        await eventually(lambda: "restored" in fragile.processes[0].log)
        await fragile.until_heard("alive", beats=5)
        fragile.sim.release("held")
        result = await handle.result()

    assert result.status is ForkStatus.COMPLETED
    assert not any(isinstance(entry.message, wire.AbortEvent) for entry in await fragile.entries(handle.run_id))


@pytest.mark.ops
async def test_a_daemon_told_to_stop_while_nats_is_away_ends_within_its_limit(
    fragile: Fleet, restartable: RestartableServer
) -> None:
    """It cannot hand over what it runs, so it lets go: the lease runs out and another daemon finishes the run."""
    leaving = await fragile.daemon()
    async with fragile.connect() as forks:
        handle = await forks.fork(await fragile.params(says("grape", {"text": DONE, "hold": "held"})))
        await fragile.sim.received(2)

        restartable.down()
        leaving.signal(signal.SIGTERM)
        async with asyncio.timeout(12):
            code = await leaving.gone()
        restartable.up()
        await restartable.ready()
        fragile.sim.release("held")
        await fragile.daemon("heir")
        result = await handle.result()

    assert (code, result.status, result.daemon) == (0, ForkStatus.COMPLETED, "heir")
