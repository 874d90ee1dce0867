"""A wait in the foreground moves to the background: the fork does not notice, the parent loses nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from nexofork import DelegateMode, ForkStatus
from nexofork.run.events import (
    FanOutDecided,
    ForkClaimed,
    ForkEnded,
    ForkStarted,
    ToolFinished,
    ToolStarted,
    TurnFinished,
)
from tests.support.conversation import call, says
from tests.support.fleet import asked
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from tests.support.fleet import Fleet

DONE = "Scope: all\nResult: done"
WHOLE = [ForkStarted, ForkClaimed, FanOutDecided, TurnFinished, ToolStarted, ToolFinished, TurnFinished, ForkEnded]
TURNS = ({"tools": [call(command="true")], "hold": "first"}, {"text": DONE, "hold": "second"})


@pytest.mark.parametrize("moment", ["queued", "first call", "second call"])
async def test_moving_a_wait_to_the_background_loses_and_restarts_nothing(fleet: Fleet, moment: str) -> None:
    """Whenever it is moved, the handle has every event from the start, and each turn was asked for once."""
    if moment != "queued":
        await fleet.daemon()
    async with fleet.connect() as forks, asyncio.TaskGroup() as tasks:
        params = replace(await fleet.params(says("apple", *TURNS)), mode=DelegateMode.SYNC)
        waiting = tasks.create_task(forks.fork(params, run_id=f"sync-{fleet.pool}"))
        if moment != "queued":
            await fleet.sim.received(2)
        if moment == "second call":
            fleet.sim.release("first")
            await fleet.sim.received(3)

        await eventually(forks.background)
        handle = await waiting
        assert handle.status is ForkStatus.RUNNING
        if moment == "queued":
            await fleet.daemon()
        fleet.sim.release("first")
        fleet.sim.release("second")
        events = [event async for event in handle.events()]
        result = await handle.result()

    assert (result.status, result.attempts) == (ForkStatus.COMPLETED, 1)
    assert [type(event) for event in events] == WHOLE
    assert asked(fleet.sim, "apple") == [1, 2]


async def test_a_wait_moves_to_the_background_by_itself_when_enabled(fleet: Fleet) -> None:
    """After the time set the call returns with the fork running."""
    await fleet.daemon()
    async with fleet.connect(auto_background_s=0.3) as forks:
        params = replace(await fleet.params(says("birch", *TURNS)), mode=DelegateMode.SYNC)

        async with asyncio.timeout(PATIENCE_S):
            handle = await forks.fork(params)
        before = handle.status
        fleet.sim.release("first")
        fleet.sim.release("second")
        result = await handle.result()

    assert (before, result.status, result.attempts) == (ForkStatus.RUNNING, ForkStatus.COMPLETED, 1)
    assert asked(fleet.sim, "birch") == [1, 2]


async def test_a_wait_in_the_foreground_ends_with_the_fork(fleet: Fleet) -> None:
    """Not moved, the call returns when the result is there."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        handle = await forks.fork(replace(await fleet.params("cedar"), mode=DelegateMode.SYNC))

        assert handle.status is ForkStatus.COMPLETED


async def test_a_cancelled_wait_aborts_the_fork_and_nothing_else(fleet: Fleet) -> None:
    """Who cancels the call ends its child; the cancellation goes on, a sibling completes."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        params = await fleet.params(says("drum", *TURNS))
        sibling = await forks.fork(params)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(
                forks.fork(replace(params, mode=DelegateMode.SYNC, prompt_messages=says("ebony", *TURNS)))
            )
            await fleet.sim.received(2)
            waiting.cancel()
        fleet.sim.release("first")
        fleet.sim.release("second")
        result = await sibling.result()

    assert waiting.cancelled()
    assert result.status is ForkStatus.COMPLETED
