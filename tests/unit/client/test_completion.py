"""Results of several forks come in the order the forks end."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from nexofork import ForkStatus, as_completed
from tests.support.conversation import says
from tests.support.parents import Parent, fork
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from nexofork import AnthropicProvider, CacheSafeParams, DefaultForkSubagent
    from nexofork.simulator import Simulator


@pytest.fixture
async def snapshot(parent: Parent) -> CacheSafeParams:
    """A parent that has made one call."""
    return await parent.ask()


def held(name: str) -> str:
    """A directive whose answer waits for the gate of its name."""
    return says(name, {"text": f"Scope: s\nResult: {name}", "hold": name})


async def test_results_come_as_the_forks_end(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Not in the order the forks were started, and what is over already comes first."""
    handles = await forks.fork_each(
        fork(snapshot, llm, warm_up="all_at_once"), [held(name) for name in "def"], group="g"
    )
    order = []

    sim.release("e")
    async for result in as_completed(forks.group("g")):
        order.append(result.report.result)
        sim.release({"e": "f", "f": "d"}.get(order[-1], "d"))

    assert order == ["e", "f", "d"]
    assert (forks.group("g"), forks.group("other")) == (handles, [])
    assert [result.ok async for result in as_completed(handles)] == [True] * 3


async def test_leaving_the_loop_early_neither_aborts_nor_detaches(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """While their handles are held the others go on; dropped unused, they are aborted as ever."""
    handles = await forks.fork_each(fork(snapshot, llm), [held(name) for name in "xyz"])
    sim.release("x")
    async for result in as_completed(handles):
        assert result.report.result == "x"
        break

    kept = handles[1]
    assert kept.status is ForkStatus.RUNNING
    del handles, result
    gc.collect()
    sim.release("y")

    assert (await kept.result()).ok
    await eventually(lambda: gc.collect() or any(record.closed_early for record in sim.log))
