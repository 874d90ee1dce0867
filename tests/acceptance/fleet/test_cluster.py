"""The essentials of abort and crash on a replicated stream of three servers, one of them with its leader killed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nexofork import ForkStatus
from nexofork.bus.jetstream import call as api
from nexofork.run.turns import INTERRUPTED
from nexofork.wire import messages as wire
from nexofork.wire.streams import log_stream
from tests.support.conversation import call, says
from tests.support.fleet import asked, epochs, finals, lines_in, open_fleet
from tests.support.parents import results_in
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nexofork import ForkHandle
    from nexofork.simulator import Simulator
    from tests.support.fleet import Fleet, Nursery
    from tests.support.nats import Cluster

DONE = "Scope: all\nResult: done"
HELD = {"text": DONE, "hold": {"gate": "held", "after_events": 3}}

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def replicated(cluster: Cluster, sim: Simulator, nursery: Nursery, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet on three servers, all of them up."""
    for server in cluster.servers.values():
        if server.ended():
            server.spawn()
            await eventually(server.ready)
    async with open_fleet(cluster.urls, sim=sim, nursery=nursery, folder=tmp_path, lease_s=2.0) as opened:
        info = await api(opened.bus, f"STREAM.INFO.{log_stream(opened.pool)}")
        assert info["config"]["num_replicas"] == 3
        yield opened


async def kill_leader(fleet: Fleet, cluster: Cluster) -> None:
    """Crash the server that leads the log."""
    info = await api(fleet.bus, f"STREAM.INFO.{log_stream(fleet.pool)}")
    cluster.servers[info["cluster"]["leader"]].kill()


async def test_an_abort_in_mid_stream_ends_the_child(replicated: Fleet) -> None:
    """The same as on one server: socket closed, reason kept, sibling completed."""
    await replicated.daemon()
    async with replicated.connect() as forks:
        params = await replicated.params(says("apple", HELD))
        sibling, handle = await forks.fork(params), await forks.fork(params)
        await replicated.sim.begun(3)

        await handle.abort("enough")
        result = await handle.result()
        await replicated.sim.closed_early(1)
        replicated.sim.release("held")
        other = await sibling.result()

    assert (result.status, result.error) == (ForkStatus.ABORTED, "enough")
    assert other.status is ForkStatus.COMPLETED


async def test_aborts_that_race_with_the_end_leave_one_end(replicated: Fleet) -> None:
    """Thirty runs are aborted while they finish: each log has one final report, and it is what the parent sees."""
    await replicated.daemons(2, slots=32)
    async with replicated.connect() as forks:
        handles = await forks.fork_each(
            await replicated.params("x"), [says(f"birch {number}", DONE) for number in range(30)]
        )
        async with asyncio.TaskGroup() as tasks:
            for handle in handles:
                tasks.create_task(_abort(handle))
        results = [await handle.result() for handle in handles]

    assert {result.status for result in results} <= {ForkStatus.COMPLETED, ForkStatus.ABORTED}
    for result in results:
        ends = finals(await replicated.reports(result.run_id))
        if ends or result.status is ForkStatus.COMPLETED:  # what was aborted in the queue may not be reported yet
            assert [end.status for end in ends] == [result.status.value]


async def test_a_killed_daemon_loses_nothing(replicated: Fleet, tmp_path: Path) -> None:
    """Killed inside a tool: another daemon goes on, pays nothing twice and repeats no side effect."""
    tally = tmp_path / "tally"
    await replicated.daemons(2)
    async with replicated.connect() as forks:
        long = call(command=f"echo ran >> {tally}; exec sleep 60")
        handle = await forks.fork(await replicated.params(says("cedar", {"tools": [long]}, DONE)))
        await eventually(lambda: lines_in(tally) == 1)
        claim = next(report for report in await replicated.reports(handle.run_id) if isinstance(report, wire.Claimed))

        await replicated.owner(claim.daemon.name).kill()
        result = await handle.result()

    assert (result.status, result.attempts) == (ForkStatus.COMPLETED, 2)
    assert lines_in(tally) == 1
    assert asked(replicated.sim, "cedar") == [1, 2]
    last = replicated.sim.log[-1].index
    assert [block["content"] for block in results_in(replicated.sim, last)] == [INTERRUPTED]


@pytest.mark.ops
async def test_runs_and_aborts_survive_the_loss_of_the_leader(replicated: Fleet, cluster: Cluster) -> None:
    """The log's leader is killed in mid-run: one child is aborted, one completes, each with one end."""
    await replicated.daemons(2)
    async with replicated.connect() as forks:
        params = await replicated.params("x")
        tool = {"tools": [call(command="true")], "hold": {"gate": "held", "after_events": 3}}
        kept, doomed = await forks.fork_each(params, [says("drum", tool, DONE), says("ebony", HELD)])
        await replicated.sim.begun(3)

        await kill_leader(replicated, cluster)
        await doomed.abort("while the leader was lost")
        aborted = await doomed.result()
        replicated.sim.release("held")
        result = await kept.result()
        later = await (await forks.fork(params.with_directive("after the election"))).result()

    assert (aborted.status, aborted.error) == (ForkStatus.ABORTED, "while the leader was lost")
    assert (result.status, later.status) == (ForkStatus.COMPLETED, ForkStatus.COMPLETED)
    reports = await replicated.reports(kept.run_id)
    assert epochs(reports) == sorted(epochs(reports))
    assert len(finals(reports)) == len(finals(await replicated.reports(doomed.run_id))) == 1


@pytest.mark.ops
async def test_daemon_and_leader_lost_together(replicated: Fleet, cluster: Cluster) -> None:
    """The second daemon finds the run on the two servers that are left and finishes it."""
    lost = await replicated.daemon()
    async with replicated.connect() as forks:
        turns = ({"tools": [call(command="true")]}, {"text": DONE, "hold": "second"})
        handle = await forks.fork(await replicated.params(says("fern", *turns)))
        await replicated.sim.received(3)

        await kill_leader(replicated, cluster)
        await lost.kill()
        replicated.sim.release("second")
        await replicated.daemon("heir")
        result = await handle.result()

    assert (result.status, result.daemon, result.attempts) == (ForkStatus.COMPLETED, "heir", 2)
    assert asked(replicated.sim, "fern") == [1, 2, 2]


async def _abort(handle: ForkHandle) -> None:
    await handle.abort("race")
