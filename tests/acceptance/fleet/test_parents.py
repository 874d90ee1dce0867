"""Parents come and go: what becomes of their children, and who gets the results."""

from __future__ import annotations

import asyncio
import gc
import signal
from typing import TYPE_CHECKING

import pytest

from nexofork import ForkStatus
from nexofork.errors import ForkRefused
from nexofork.wire import messages as wire
from tests.support.conversation import says
from tests.support.fleet import asked, finals
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.support.fleet import Fleet

DONE = "Scope: all\nResult: done"
HELD = {"text": DONE, "hold": {"gate": "held", "after_events": 3}}


async def test_the_children_of_a_killed_parent_go_on_and_their_results_wait(fleet: Fleet) -> None:
    """Restarted, the parent attaches by run id: one child finished meanwhile, one still runs."""
    await fleet.daemon()
    parent, (quick, slow) = await fleet.parent_process(["apple", says("birch", HELD)])
    await fleet.sim.begun(3)

    await parent.kill()
    await fleet.until_logged(quick, lambda report: isinstance(report, wire.Final))
    async with fleet.connect() as forks:
        first = await (await forks.attach(quick)).result()
        second = await forks.attach(slow)
        fleet.sim.release("held")
        last = await second.result()

    assert [(result.status, result.attempts) for result in (first, last)] == [(ForkStatus.COMPLETED, 1)] * 2
    assert first.directive == "apple"
    assert asked(fleet.sim, "birch") == [1]


async def test_a_policy_of_abort_ends_the_children_of_a_killed_parent(fleet: Fleet) -> None:
    """Within a few heartbeats the child is aborted, and its report says why."""
    await fleet.daemon()
    parent, (run_id,) = await fleet.parent_process([says("cedar", HELD)], on_parent_gone="abort", heartbeat_s=1.0)
    await fleet.sim.begun(2)

    await parent.kill()
    async with asyncio.timeout(PATIENCE_S):
        await fleet.sim.closed_early(1)
    async with fleet.connect() as forks:
        result = await (await forks.attach(run_id)).result()

    assert (result.status, result.error) == (ForkStatus.ABORTED, "its parent is gone")


async def test_a_living_parent_keeps_its_children(fleet: Fleet) -> None:
    """As long as the heartbeats come, the policy of abort aborts nothing, for longer than silence would be borne."""
    await fleet.daemon()
    async with fleet.connect(parent_id="alive", on_parent_gone="abort", heartbeat_s=1.0) as forks:
        handle = await forks.fork(await fleet.params(says("drum", HELD)))
        await fleet.sim.begun(2)

        await fleet.until_heard("alive", beats=5)
        fleet.sim.release("held")
        result = await handle.result()

    assert result.status is ForkStatus.COMPLETED


async def test_a_child_taken_over_after_its_parent_died_is_aborted_too(fleet: Fleet) -> None:
    """Parent and daemon die together; the next daemon notices that nobody is left."""
    lost = await fleet.daemon()
    parent, (run_id,) = await fleet.parent_process([says("ebony", HELD)], on_parent_gone="abort", heartbeat_s=1.0)
    await fleet.sim.begun(2)

    await parent.kill()
    await lost.kill()
    await fleet.daemon("heir")
    async with fleet.connect() as forks:
        result = await (await forks.attach(run_id)).result()

    assert (result.status, result.error) == (ForkStatus.ABORTED, "its parent is gone")


async def test_an_orderly_exit_aborts_what_was_not_detached(fleet: Fleet) -> None:
    """A parent process that leaves ends its child; the socket to the provider is closed."""
    await fleet.daemon()
    parent, (run_id,) = await fleet.parent_process([says("fern", HELD)])
    await fleet.sim.begun(2)

    parent.signal(signal.SIGTERM)
    code = await parent.gone()
    await fleet.sim.closed_early(1)
    async with fleet.connect() as forks:
        result = await (await forks.attach(run_id)).result()

    assert (code, result.status, result.error) == (0, ForkStatus.ABORTED, "the parent left")


async def test_an_orderly_exit_leaves_detached_children_alone(fleet: Fleet) -> None:
    """The child goes on without anybody waiting, and its result is there for whoever attaches."""
    await fleet.daemon()
    parent, (run_id,) = await fleet.parent_process([says("grape", HELD)], detach=True)
    await fleet.sim.begun(2)

    parent.signal(signal.SIGTERM)
    assert await parent.gone() == 0
    fleet.sim.release("held")
    async with fleet.connect() as forks:
        result = await (await forks.attach(run_id)).result()

    assert result.status is ForkStatus.COMPLETED


async def test_a_dropped_handle_aborts_its_child_alone(fleet: Fleet) -> None:
    """Nobody wants the result, so nobody pays for it; the sibling completes."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        params = await fleet.params(says("hazel", HELD))
        kept, dropped = await forks.fork(params), await forks.fork(params)
        run_id = dropped.run_id
        await fleet.sim.begun(3)

        del dropped
        gc.collect()
        await fleet.sim.closed_early(1)
        fleet.sim.release("held")
        result = await kept.result()
        other = await (await forks.attach(run_id)).result()

    assert result.status is ForkStatus.COMPLETED
    assert (other.status, other.error) == (ForkStatus.ABORTED, "its handle was dropped unused")


async def test_who_attached_does_not_own_the_run(fleet: Fleet) -> None:
    """Dropping the handle, or leaving, does not end a run that was attached to."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(says("iris", HELD)))
        await fleet.sim.begun(2)
        async with fleet.connect() as others:
            attached = await others.attach(handle.run_id)
            del attached
            gc.collect()
        fleet.sim.release("held")
        result = await handle.result()

    assert result.status is ForkStatus.COMPLETED


async def test_attaching_to_a_run_of_ones_own_changes_nothing_about_it(fleet: Fleet) -> None:
    """The run still counts as this parent's: leaving aborts it, and leaving does not hang."""
    await fleet.daemon()
    async with asyncio.timeout(PATIENCE_S):
        async with fleet.connect() as forks:
            handle = await forks.fork(await fleet.params(says("juniper", HELD)))
            await fleet.sim.begun(2)
            attached = await forks.attach(handle.run_id)
            assert attached.status is ForkStatus.RUNNING
        async with fleet.connect() as forks:
            result = await (await forks.attach(handle.run_id)).result()

    assert (result.status, result.error) == (ForkStatus.ABORTED, "the parent left")


async def test_leaving_while_a_child_ends_does_not_disturb_it(fleet: Fleet) -> None:
    """A parent that leaves after its results have nothing to abort: the logs end with the result."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        handles = await forks.fork_each(await fleet.params("x"), [f"part {number}" for number in range(5)])
        results = [await handle.result() for handle in handles]

    assert {result.status for result in results} == {ForkStatus.COMPLETED}
    for handle in handles:
        messages = [entry.message for entry in await fleet.entries(handle.run_id)]
        assert isinstance(messages[-1], wire.Final)
        assert len(finals(messages)) == 1


async def test_there_is_nothing_to_attach_to_under_an_unknown_id(fleet: Fleet) -> None:
    """The error says which id and which pool."""
    async with fleet.connect() as forks:
        with pytest.raises(ForkRefused, match=f"no run 'nobody' in pool '{fleet.pool}'"):
            await forks.attach("nobody")
