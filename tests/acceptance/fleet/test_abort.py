"""A parent aborts: wherever the child is, it ends, and nothing else does."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

from nexofork import AbortToken, ForkStatus, PathWorkspace
from nexofork.bus.pickup import Delivery, Pickup
from nexofork.client.runs import list_runs
from nexofork.errors import BadMessage
from nexofork.run.abort import AbortReason
from nexofork.wire import messages as wire
from nexofork.wire.subjects import events, inbox
from tests.support.conversation import call, says
from tests.support.fleet import asked, finals, group_of, lines_in, open_fleet
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nexofork import ForkResult
    from nexofork.bus.embedded import EmbeddedServer
    from nexofork.simulator import Simulator
    from tests.support.fleet import Fleet, Nursery, RestartableServer

DONE = "Scope: all\nResult: done"
HELD = {"text": DONE, "hold": {"gate": "held", "after_events": 3}}


def says_why(result: ForkResult, note: str) -> bool:
    """Whether the result says that the parent ended it, with this note."""
    cause = result.abort
    return (result.status, result.error) == (ForkStatus.ABORTED, note) and (
        cause is not None and (cause.reason, cause.note) == (AbortReason.PARENT, note)
    )


async def test_an_abort_before_any_daemon_is_there_prevents_the_start(fleet: Fleet) -> None:
    """The handle ends at once; the daemon that comes later reports it and asks the model nothing."""
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params("apple"))

        await handle.abort("not needed")
        async with asyncio.timeout(PATIENCE_S):
            result = await handle.result()

    assert says_why(result, "not needed")
    await fleet.daemon()
    await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.Final))
    assert [report.status for report in await fleet.reports(handle.run_id)] == ["aborted"]
    assert asked(fleet.sim, "apple") == []


async def test_an_abort_in_the_queue_prevents_the_start(fleet: Fleet) -> None:
    """A run that waits for a slot is aborted; the one that has the slot goes on and completes."""
    await fleet.daemon(slots=1)
    async with fleet.connect() as forks:
        params = await fleet.params(says("busy", HELD))
        first = await forks.fork(params)
        await fleet.sim.begun(2)
        queued = await forks.fork(params.with_directive("banana"))

        await queued.abort("changed my mind")
        result = await queued.result()
        fleet.sim.release("held")
        other = await first.result()

    assert says_why(result, "changed my mind")
    assert other.status is ForkStatus.COMPLETED
    assert asked(fleet.sim, "banana") == []


async def test_an_abort_in_mid_stream_closes_the_socket(fleet: Fleet) -> None:
    """The provider sees the connection closed; the sibling on the same daemon completes."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        params = await fleet.params(says("cherry", HELD))
        sibling, handle = await forks.fork(params), await forks.fork(params.with_directive(says("doomed", HELD)))
        await fleet.sim.begun(3)

        await handle.abort("enough")
        result = await handle.result()
        await fleet.sim.closed_early(1)
        fleet.sim.release("held")
        other = await sibling.result()

    assert says_why(result, "enough")
    assert other.status is ForkStatus.COMPLETED
    assert sum(record.closed_early for record in fleet.sim.log) == 1


async def test_an_abort_in_a_tool_ends_its_whole_process_group(fleet: Fleet, tmp_path: Path) -> None:
    """The shell, its child and its background job are gone when the run is over."""
    pids = tmp_path / "pids"
    await fleet.daemon()
    async with fleet.connect() as forks:
        command = f"sleep 61 & echo $! >> {pids}; echo $$ >> {pids}; sleep 62; echo never >> {pids}"
        handle = await forks.fork(await fleet.params(says("date", {"tools": [call(command=command)]}, DONE)))
        await eventually(lambda: lines_in(pids) == 2)
        group = os.getpgid(int(pids.read_text().split()[1]))
        await eventually(lambda: len(group_of(group)) == 4)  # the shell, two sleeps, and the guard

        await handle.abort("stop the tool")
        result = await handle.result()

    assert says_why(result, "stop the tool")
    assert group_of(group) == []
    assert lines_in(pids) == 2
    assert asked(fleet.sim, "date") == [1]


async def test_an_abort_after_the_end_changes_nothing(fleet: Fleet) -> None:
    """The result stays, and the log gets no further entry."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params("elder"))
        before = await handle.result()
        entries = await fleet.entries(handle.run_id)

        await handle.abort("too late")

        assert await handle.result() is before
    assert before.status is ForkStatus.COMPLETED
    assert await fleet.entries(handle.run_id) == entries


async def test_the_first_of_two_aborts_counts(fleet: Fleet) -> None:
    """The second is a no-op: one abort, one end, the first note."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(says("fig", HELD)))
        await fleet.sim.begun(2)

        await handle.abort("first")
        await handle.abort("second")
        result = await handle.result()

    assert says_why(result, "first")
    messages = [entry.message for entry in await fleet.entries(handle.run_id)]
    assert sum(isinstance(message, wire.AbortEvent) for message in messages) == 1
    assert len(finals(messages)) == 1


async def test_whoever_attached_can_abort(fleet: Fleet) -> None:
    """Another process with the run id ends the run for everybody."""
    await fleet.daemon()
    async with fleet.connect() as forks, fleet.connect() as others:
        handle = await forks.fork(await fleet.params(says("grape", HELD)))
        await fleet.sim.begun(2)
        attached = await others.attach(handle.run_id)

        await attached.abort("from outside")
        mine, theirs = await handle.result(), await attached.result()

    assert says_why(mine, "from outside")
    assert theirs == mine


async def test_a_group_is_aborted_together(fleet: Fleet) -> None:
    """Its members end, others do not."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        params = await fleet.params(says("hazel", HELD))
        group = [await forks.fork(params, group="research") for _ in range(3)]
        other = await forks.fork(params, group="writing")
        await fleet.sim.begun(5)

        count = await forks.abort_group("research", "wrong idea")
        results = [await handle.result() for handle in group]
        fleet.sim.release("held")
        kept = await other.result()

    assert count == 3
    assert all(says_why(result, "wrong idea") for result in results)
    assert kept.status is ForkStatus.COMPLETED


async def test_the_callers_token_aborts_and_is_never_aborted(fleet: Fleet) -> None:
    """Throwing it ends the fork; a fork that fails, times out or is aborted by its handle leaves it alone."""
    await fleet.daemon()
    token, used = AbortToken(), AbortToken()
    async with fleet.connect() as forks:
        params = await fleet.params(says("iris", HELD), external_abort=token)
        bad_request = says("bad", {"fault": {"status": 400}})
        failing = await forks.fork(params.with_directive(bad_request))
        slow = await fleet.params(says("slow", HELD), external_abort=token, timeout=0.3)
        timed, aborted = await forks.fork(slow), await forks.fork(params)
        thrown = await forks.fork(await fleet.params(says("thrown", HELD), external_abort=used))
        await aborted.abort("only this one")

        assert (await failing.result()).status is ForkStatus.FAILED
        assert (await timed.result()).status is ForkStatus.TIMED_OUT
        assert (await aborted.result()).status is ForkStatus.ABORTED
        assert token.cause is None

        used.abort(note="the caller is done")
        assert says_why(await thrown.result(), "the caller is done")


@pytest.fixture
async def fragile(
    restartable: RestartableServer, sim: Simulator, nursery: Nursery, tmp_path: Path
) -> AsyncIterator[Fleet]:
    """A fleet on a server that may go away."""
    async with open_fleet((restartable.url,), sim=sim, nursery=nursery, folder=tmp_path) as opened:
        yield opened


async def test_an_abort_while_nats_is_away_arrives_when_it_is_back(
    fragile: Fleet, restartable: RestartableServer
) -> None:
    """The abort waits for the reconnect and then ends the child in the middle of its stream."""
    await fragile.daemon()
    async with fragile.connect() as forks:
        handle = await forks.fork(await fragile.params(says("juniper", HELD)))
        await fragile.sim.begun(2)

        restartable.down()
        under_way = handle.abort("while away")
        restartable.up()
        await restartable.ready()
        await under_way
        result = await handle.result()
        await fragile.sim.closed_early(1)

    assert says_why(result, "while away")


async def test_an_abort_that_a_disconnected_daemon_missed_is_found_on_reconnect(
    fragile: Fleet, restartable: RestartableServer
) -> None:
    """A daemon that slept through the abort and a restart of the server still ends its run as aborted."""
    deaf = await fragile.daemon(lease_s=20.0)
    async with fragile.connect() as forks:
        handle = await forks.fork(await fragile.params(says("kale", HELD)))
        await fragile.sim.begun(2)
        deaf.signal(signal.SIGSTOP)
        await handle.abort("you were away")
        await restartable.restart()

        deaf.signal(signal.SIGCONT)
        result = await handle.result()

    assert says_why(result, "you were away")


async def statuses(fleet: Fleet, run_id: str) -> list[str]:
    """What a list of runs says of one."""
    return [row.status for row in await list_runs(fleet.bus, fleet.pool, ids=[run_id])]


async def test_an_abort_before_any_claim_is_the_end_without_a_daemon(fleet: Fleet) -> None:
    """Lists and handles of other processes say so at once, and a daemon that comes later contradicts nothing."""
    async with fleet.connect() as forks, fleet.connect() as others:
        handle = await forks.fork(await fleet.params("lemon"))
        watcher = await others.attach(handle.run_id)
        await fleet.log(handle.run_id).abort(wire.AbortEvent(note="from elsewhere"))

        assert await statuses(fleet, handle.run_id) == ["aborted"]
        async with asyncio.timeout(PATIENCE_S):
            results = [await one.result() for one in (handle, watcher, await others.attach(handle.run_id))]
        assert all(says_why(result, "from elsewhere") for result in results)
        assert handle.status is ForkStatus.ABORTED

        await fleet.daemon()
        assert (await (await forks.fork(await fleet.params("mango"))).result()).ok
    await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.Final))
    assert [report.kind for report in await fleet.reports(handle.run_id)] == ["final"]
    assert await statuses(fleet, handle.run_id) == ["aborted"]
    assert asked(fleet.sim, "lemon") == []


@pytest.mark.parametrize("first", ["request", "abort"])
async def test_a_request_that_comes_after_the_abort_is_not_started(fleet: Fleet, first: str) -> None:
    """Asking again by a plain message does not undo the abort, and no daemon calls the model for it."""
    fleet.forged = True
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params("nectarine"))
        await handle.abort("changed my mind")
    (request, _) = [entry.raw.data for entry in await fleet.entries(handle.run_id)]
    run_id = handle.run_id if first == "request" else "later"
    if first == "abort":
        await fleet.bus.request(events(run_id, fleet.pool), wire.encode(wire.AbortEvent(note="changed my mind")))
    await fleet.bus.request(events(run_id, fleet.pool), request)
    await fleet.bus.request(events(run_id, fleet.pool), b"noise")
    assert [row.status for row in await list_runs(fleet.bus, fleet.pool) if row.run_id == run_id] == ["aborted"]

    await fleet.daemon()
    await fleet.until_logged(run_id, lambda report: isinstance(report, wire.Final))
    async with fleet.connect() as forks:
        assert says_why(await (await forks.attach(run_id)).result(), "changed my mind")
    written = [report for report in await fleet.reports(run_id) if not isinstance(report, BadMessage)]
    assert [report.kind for report in written] == ["final"]
    assert asked(fleet.sim, "nectarine") == []


async def test_an_abort_in_the_inbox_is_the_end_of_an_unclaimed_run(fleet: Fleet) -> None:
    """An abort that found the log full stands there: lists and handles know it, and no daemon starts the run."""
    async with fleet.connect() as forks, fleet.connect() as others:
        elsewhere = PathWorkspace(fleet.folder / "nowhere")
        handles = [
            await forks.fork(await fleet.params("olive")),
            await forks.fork(await fleet.params("olive", workspace=elsewhere)),
        ]
        for handle in handles:
            posted = wire.Answer(kind="abort", text="no room")
            await fleet.bus.request(inbox(handle.run_id, "abort", fleet.pool), wire.encode(posted))
        assert [await statuses(fleet, handle.run_id) for handle in handles] == [["aborted"]] * 2
        attached = [await others.attach(handle.run_id) for handle in handles]
        async with asyncio.timeout(PATIENCE_S):
            results = [await handle.result() for handle in (*handles, *attached)]
        assert all(says_why(result, "no room") for result in results)

    await fleet.daemon()
    for handle in handles:
        await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.Final))
        assert [report.status for report in await fleet.reports(handle.run_id)] == ["aborted"]
    assert asked(fleet.sim, "olive") == []


async def test_an_aborted_run_whose_daemon_is_gone_says_so_until_one_ends_it(fleet: Fleet) -> None:
    """The list and every handle show that it is aborting without a daemon; the next daemon ends it."""
    async with fleet.connect() as forks, fleet.connect() as others:
        handle = await forks.fork(await fleet.params("peach"))
        log = fleet.log(handle.run_id)
        tip = await log.tip()
        assert tip is not None
        await log.append(wire.Claimed(epoch=1, daemon=wire.Daemon(name="dead"), request=tip.seq), after=tip.seq)
        assert (await statuses(fleet, handle.run_id), handle.status) == (["running"], ForkStatus.RUNNING)

        await handle.abort("too late for it")
        watcher = await others.attach(handle.run_id)
        assert await statuses(fleet, handle.run_id) == ["aborting (no daemon)"]
        unattended = ForkStatus.ABORTING_NO_DAEMON
        await eventually(lambda: (handle.status, watcher.status) == (unattended, unattended))
        assert not handle.status.over

        await fleet.daemon()
        assert says_why(await handle.result(), "too late for it")
        assert says_why(await watcher.result(), "too late for it")
    assert await statuses(fleet, handle.run_id) == ["aborted"]
    assert asked(fleet.sim, "peach") == []


async def test_an_abort_that_other_events_follow_still_reaches_the_child(fleet: Fleet) -> None:
    """Requests and noise that a plain client adds right after it do not hide it from the daemon."""
    fleet.forged = True
    await fleet.daemon()
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(says("quince", HELD)))
        await fleet.sim.begun(2)
        request = (await fleet.entries(handle.run_id))[0].raw.data
        for data in (wire.encode(wire.AbortEvent(note="hidden")), request, b"noise"):
            await fleet.bus.publish(events(handle.run_id, fleet.pool), data)

        assert says_why(await handle.result(), "hidden")
        await fleet.sim.closed_early(1)


@pytest.mark.parametrize("claimed_for", [None, 10**6])
async def test_an_abort_ends_a_run_whose_request_is_gone_from_the_queue(
    nats_server: EmbeddedServer, sim: Simulator, nursery: Nursery, tmp_path: Path, claimed_for: int | None
) -> None:
    """A daemon claimed it and acknowledged the request, or had others do so, and is not there any more."""
    async with (
        open_fleet((nats_server.url,), sim=sim, nursery=nursery, folder=tmp_path, lease_s=0.5) as fleet,
        fleet.connect() as forks,
        asyncio.timeout(PATIENCE_S),
    ):
        handle = await forks.fork(await fleet.params("rowan"))
        claim = wire.Claimed(epoch=1, daemon=wire.Daemon(instance="gone", name="gone"), request=claimed_for)
        await fleet.log(handle.run_id).append(claim, after=(await fleet.entries(handle.run_id))[-1].seq)
        if claimed_for is None:
            taken: asyncio.Queue[Delivery] = asyncio.Queue()
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                pickup = Pickup(fleet.bus, pool=fleet.pool, free_slots=lambda: 1, deliver=taken.put_nowait)
                tasks.create_task(pickup.run(stop))
                await (await taken.get()).ack()
                stop.set()
        await handle.abort("never mind")
        await fleet.daemon()

        assert says_why(await handle.result(), "never mind")
        assert [final.status for final in finals(await fleet.reports(handle.run_id))] == ["aborted"]
        assert asked(fleet.sim, "rowan") == []
