"""A parent that gives up while a fork is being asked for leaves no child behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nexofork import ForkStatus
from nexofork.client.runs import list_runs
from nexofork.wire import messages as wire
from tests.support.conversation import says

if TYPE_CHECKING:
    from tests.support.fleet import Fleet


async def test_a_fork_that_is_cancelled_while_it_is_asked_for_does_not_run_on(fleet: Fleet) -> None:
    """Whenever the caller is cancelled, before, while or after the request is stored, the run is aborted."""
    await fleet.daemon(slots=64)
    params = await fleet.params(says("apple", {"text": "Scope: a\nResult: late", "hold": "apple"}))
    cancelled = 0
    async with fleet.connect() as forks:
        await (await forks.fork(params)).abort("only to ship the snapshot")
        for steps in (*range(40), *range(20)):  # early ones twice: how far a fork gets in so many steps varies
            async with asyncio.TaskGroup() as tasks:
                forking = tasks.create_task(forks.fork(params))
                for _ in range(steps):
                    await asyncio.sleep(0)
                forking.cancel()
            cancelled += forking.cancelled()
            del forking
    assert cancelled > 10

    rows = await list_runs(fleet.bus, fleet.pool)
    assert len(rows) > 1
    for row in rows:
        await fleet.until_logged(row.run_id, lambda report: isinstance(report, wire.Final))
    assert {row.status for row in await list_runs(fleet.bus, fleet.pool)} == {ForkStatus.ABORTED}
