"""A parent speaks to a child on another host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexofork import ForkStatus
from nexofork.wire import messages as wire
from tests.support.conversation import call, says
from tests.support.fleet import asked
from tests.support.parents import body_of

if TYPE_CHECKING:
    from tests.support.fleet import Fleet

DONE = "Scope: all\nResult: done"


async def test_a_message_reaches_a_child_on_another_host(fleet: Fleet) -> None:
    """It is read behind the next tool results, and the log says so before the model sees it."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        turns = ({"tools": [call(command="true")], "hold": "answer"}, DONE)
        handle = await forks.fork(await fleet.params(says("walnut", *turns)))
        await fleet.sim.received(2)

        await handle.message("mind the tests")
        fleet.sim.release("answer")

        assert (await handle.result()).status is ForkStatus.COMPLETED
        content = body_of(fleet.sim, 2)["messages"][-1]["content"]
        assert "mind the tests" in content[-1]["text"]
        delivered = [report for report in await fleet.reports(handle.run_id) if isinstance(report, wire.Delivered)]
        assert [report.texts for report in delivered] == [["mind the tests"]]


async def test_a_delivered_message_survives_its_daemon(fleet: Fleet) -> None:
    """The daemon that takes over sends the same message in the same place, once."""
    first = await fleet.daemon("first")
    async with fleet.connect() as forks:
        turns = ({"tools": [call(command="true")], "hold": "answer"}, {"text": DONE, "hold": "end"})
        handle = await forks.fork(await fleet.params(says("hazel", *turns)))
        await fleet.sim.received(2)
        await handle.message("mind the tests")
        fleet.sim.release("answer")
        await fleet.sim.received(3)

        await first.kill()
        await fleet.daemon("second")
        await fleet.sim.received(4)
        fleet.sim.release("end")
        result = await handle.result()

        assert (result.status, result.attempts) == (ForkStatus.COMPLETED, 2)
        before, after = asked(fleet.sim, "hazel")[1:]
        assert fleet.sim.body(before) == fleet.sim.body(after)
