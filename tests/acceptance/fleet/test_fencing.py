"""A daemon that has lost a run, or may have lost it, stops: its call, its command, and what it was about to send."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nexofork import ForkStatus
from nexofork.wire import messages as wire
from tests.support.conversation import call, says
from tests.support.fleet import finals, group_of, lines_in, open_fleet
from tests.support.nats import Proxy
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork.bus.embedded import EmbeddedServer
    from nexofork.simulator import Simulator
    from tests.support.fleet import Fleet, Nursery

DONE = "Scope: all\nResult: done"


async def taken_away(fleet: Fleet, run_id: str) -> None:
    """Claim a run as another daemon would, without a message that its owner could hear."""
    tip = await fleet.log(run_id).tip()
    assert tip is not None
    claim = wire.Claimed(epoch=2, daemon=wire.Daemon(instance="another", name="another"))
    await fleet.log(run_id).append(claim, after=tip.seq)


async def test_a_daemon_that_lost_its_run_closes_the_model_call(fleet: Fleet) -> None:
    """The next look at the log shows the other daemon's claim, although every renewal was confirmed."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(says("hazel", {"text": DONE, "hold": "never"})))
        await fleet.sim.received(2)

        await taken_away(fleet, handle.run_id)

        await eventually(lambda: fleet.sim.log[1].closed_early)
        await handle.abort()
        fleet.sim.release("never")
    assert finals(await fleet.reports(handle.run_id)) == []


async def test_a_daemon_that_lost_its_run_ends_its_command(fleet: Fleet, tmp_path: Path) -> None:
    """What the command would have done later is not done."""
    tally, started = tmp_path / "tally", tmp_path / "started"
    await fleet.daemon()
    async with fleet.connect() as forks:
        command = f"echo $$ > {started}; sleep 600; echo ran >> {tally}"
        handle = await forks.fork(await fleet.params(says("ivy", {"tools": [call(command=command)]}, DONE)))
        await eventually(lambda: lines_in(started) == 1)
        group = int(started.read_text())

        await taken_away(fleet, handle.run_id)

        await eventually(lambda: group_of(group) == [])
        await handle.abort()
    assert lines_in(tally) == 0


async def test_a_call_is_not_repeated_by_a_daemon_that_lost_its_run_in_the_pause(fleet: Fleet) -> None:
    """The provider asked for a pause; the run is another daemon's when it is over, so nothing is sent or announced."""
    await fleet.daemon(lease_s=60.0)  # the look at the log comes after the pause
    async with fleet.connect() as forks:
        fault = {"status": 429, "retry_after": 2, "times": 1}
        handle = await forks.fork(await fleet.params(says("jasmine", {"text": DONE, "fault": fault})))
        await eventually(lambda: len(fleet.sim.log) == 2 and fleet.sim.log[1].status == 429)
        refused = time.monotonic()
        await eventually(lambda: time.monotonic() > refused + 1)  # in the middle of the pause
        await taken_away(fleet, handle.run_id)
        daemon = fleet.processes[0]

        await eventually(lambda: f"run {handle.run_id}: let go" in daemon.log)
        await handle.abort()
    assert len(fleet.sim.log) == 2
    started = [report for report in await fleet.reports(handle.run_id) if isinstance(report, wire.CallStarted)]
    assert [report.attempt for report in started] in ([], [1])


async def test_a_timeout_during_an_append_ends_the_run_once_and_by_its_own_name(
    nats_server: EmbeddedServer, sim: Simulator, nursery: Nursery, tmp_path: Path
) -> None:
    """The report lands although its writer was cancelled; the same daemon ends the run and names the limit given."""
    async with (
        Proxy(nats_server.url) as wire_to_nats,
        open_fleet((nats_server.url,), sim=sim, nursery=nursery, folder=tmp_path) as fleet,
    ):
        fleet.urls = (wire_to_nats.url,)
        await fleet.daemon()
        fleet.urls = (nats_server.url,)
        async with fleet.connect() as forks:
            wire_to_nats.hold_answers_to(b'"kind":"turn"')
            turns = ({"tools": [call(command="true")]}, {"text": DONE, "hold": "second"})
            handle = await forks.fork(await fleet.params(says("kiwi", *turns), timeout=1.5))
            await wire_to_nats.withheld.wait()
            await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.Turn))
            stored = time.monotonic()  # after the claim, so by then the time is up
            await eventually(lambda: time.monotonic() > stored + 1.5)
            wire_to_nats.release_answers()
            result = await handle.result()
            sim.release("second")

        assert (result.status, result.attempts, result.error) == (ForkStatus.TIMED_OUT, 1, "no end within 1.5 s")
        [final] = finals(await fleet.reports(handle.run_id))
        assert final.epoch == 1


async def test_a_timeout_does_not_hide_an_abort_that_refused_the_append_before_it(
    nats_server: EmbeddedServer, sim: Simulator, nursery: Nursery, tmp_path: Path
) -> None:
    """The daemon learns of the refusal after the time is up. The log has the abort, and the end says so."""
    async with (
        Proxy(nats_server.url) as wire_to_nats,
        open_fleet((nats_server.url,), sim=sim, nursery=nursery, folder=tmp_path) as fleet,
    ):
        fleet.urls = (wire_to_nats.url,)
        await fleet.daemon(lease_s=60.0)
        fleet.urls = (nats_server.url,)
        async with fleet.connect() as forks:
            handle = await forks.fork(await fleet.params(says("lemon", {"text": DONE, "hold": "answer"}), timeout=3.0))
            await sim.received(2)
            wire_to_nats.hold_answers()
            await handle.abort("changed my mind")
            sim.release("answer")
            released = time.monotonic()
            await eventually(lambda: time.monotonic() > released + 3)  # the claim came before, so the time is up
            wire_to_nats.release_answers()
            result = await handle.result()

        assert (result.status, result.error) == (ForkStatus.ABORTED, "changed my mind")
