from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

from nexofork import AbortToken, ForkStatus
from nexofork.run.events import ForkEnded
from tests.support.conversation import says
from tests.support.parents import Parent, fork

if TYPE_CHECKING:
    from nexofork import AnthropicProvider, CacheSafeParams, DefaultForkSubagent
    from nexofork.run.events import ForkEvent
    from nexofork.simulator import Simulator

STALLS = says("Wait.", {"text": "a long report", "fault": {"hang_after_events": 4}})
HELD = says("Wait.", {"text": "a b c", "hold": {"gate": "rest", "after_events": 3}})


class Ending:
    """An observer that remembers how the fork ended."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.event: ForkEnded | None = None

    def __call__(self, event: ForkEvent) -> None:
        """Look for the end."""
        if isinstance(event, ForkEnded):
            self.event = event
            self.over.set()


@pytest.fixture
async def snapshot(parent: Parent) -> CacheSafeParams:
    """A parent that has made one call."""
    return await parent.ask()


async def test_dropping_an_unused_handle_aborts_the_fork_and_nothing_else(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Nobody wants the result, so it is not paid for; the caller's token and the sibling go on."""
    token, ending = AbortToken(), Ending()
    sibling = await forks.fork(fork(snapshot, llm, HELD, external_abort=token))
    handle = await forks.fork(fork(snapshot, llm, STALLS, external_abort=token, on_message=ending))
    await sim.begun(3)

    del handle
    gc.collect()

    async with asyncio.timeout(10):
        await ending.over.wait()
        await sim.closed_early(1)
    assert ending.event is not None
    assert ending.event.result.status is ForkStatus.ABORTED
    assert ending.event.result.error == "its handle was dropped unused"
    assert token.cause is None
    sim.release("rest")
    assert (await sibling.result()).ok


async def test_a_detached_fork_outlives_its_handle(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Detaching is explicit and keeps the child running."""
    ending = Ending()
    handle = await forks.fork(fork(snapshot, llm, HELD, on_message=ending))
    await sim.begun(2)

    handle.detach()
    del handle
    gc.collect()
    sim.release("rest")

    async with asyncio.timeout(10):
        await ending.over.wait()
    assert ending.event is not None
    assert ending.event.result.ok


async def test_a_fork_whose_result_was_asked_for_outlives_the_asking(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Giving up a wait for the result is no abort."""
    ending = Ending()
    handle = await forks.fork(fork(snapshot, llm, HELD, on_message=ending))
    await sim.begun(2)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await handle.result()

    del handle
    gc.collect()
    sim.release("rest")

    async with asyncio.timeout(10):
        await ending.over.wait()
    assert ending.event is not None
    assert ending.event.result.ok


async def test_the_result_can_be_asked_for_many_times_and_by_many(
    snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Everybody gets the same result."""
    handle = await forks.fork(fork(snapshot, llm))

    async with asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(handle.result()) for _ in range(3)]

    assert {id(task.result()) for task in asking} == {id(await handle.result())}


async def test_the_status_is_running_until_the_end(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A handle can be looked at without waiting."""
    handle = await forks.fork(fork(snapshot, llm, HELD))
    await sim.begun(2)
    seen = [handle.status]

    sim.release("rest")
    await handle.result()

    assert [*seen, handle.status] == [ForkStatus.RUNNING, ForkStatus.COMPLETED]


async def test_run_ids_are_unique(
    snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Siblings with the same directive are different runs."""
    handles = await forks.fork_each(fork(snapshot, llm), ["Same.", "Same."])

    assert len({(await handle.result()).run_id for handle in handles} | {one.run_id for one in handles}) == 2
