"""One child of the whole fleet writes a prefix that nobody has written; the others read it, on whichever host."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from nexofork import CacheSafeParams, ForkParams
from nexofork.bus.ledger import read_ledger
from nexofork.economics.ledger import distinct
from nexofork.wire import messages as wire
from tests.support.conversation import says

if TYPE_CHECKING:
    from typing import Any

    from nexofork.simulator.log import RequestRecord
    from tests.support.fleet import Fleet

HELD = {"text": "Scope: all\nResult: done", "hold": "first byte"}
DONE = {"text": "Scope: all\nResult: done"}


async def cold(fleet: Fleet) -> CacheSafeParams:
    """The conversation as a file would hold it: nobody knows whether it was ever sent."""
    known = await fleet.snapshot()
    assert known.reply is not None
    system = [{"type": "text", "text": f"You are another agent of {fleet.pool}."}]
    body = await fleet.agent.ask(system=system)
    fleet.sim.reset()
    return replace(body, sent_at=None)


def children(fleet: Fleet) -> list[RequestRecord]:
    """The requests of the children."""
    return list(fleet.sim.log)


async def started_calls(fleet: Fleet, run_id: str) -> list[Any]:
    """The calls that were announced on a run's log."""
    return [report for report in await fleet.reports(run_id) if isinstance(report, wire.CallStarted)]


async def test_of_nine_cold_children_on_three_hosts_one_writes(fleet: Fleet) -> None:
    """Nobody sends before the leader's first byte, everybody reads what it wrote, and each log says how it started."""
    await fleet.daemons(3, slots=4)
    params = ForkParams(cache_safe=await cold(fleet), prompt_messages="")
    async with fleet.connect() as forks:
        handles = await forks.fork_each(params, [says(f"Part {n}.", HELD) for n in range(9)])
        await fleet.sim.received(1)
        for handle in handles:
            await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.Claimed))
        assert fleet.sim.request_count == 1

        fleet.sim.release("first byte")
        results = [await handle.result() for handle in handles]

    assert {result.daemon for result in results} == {"d0", "d1", "d2"}
    written = sorted(record.write_5m for record in children(fleet))
    assert written[:8] == [0] * 8
    assert written[8] > 5_000
    roles = sorted(result.decision["role"] for result in results if result.decision)
    assert roles == ["follower"] * 8 + ["leader"]
    (call,) = await started_calls(fleet, handles[0].run_id)
    assert (call.turn, call.attempt) == (1, 1)
    assert call.decision["plan"] == "leader_first"
    assert call.decision["siblings"] == 9
    assert call.decision["all_at_once"] > call.decision["leader_first"]


async def test_a_prewarm_is_one_write_for_three_hosts(fleet: Fleet) -> None:
    """Every child reads it, and the leader's result has it on its bill."""
    await fleet.daemons(3, slots=4)
    params = ForkParams(cache_safe=await cold(fleet), prompt_messages="", warm_up="prewarm")
    async with fleet.connect() as forks:
        handles = await forks.fork_each(params, [says(f"Part {n}.", {**DONE, "delay_s": 0.1}) for n in range(6)])
        results = [await handle.result() for handle in handles]

    assert [result.error for result in results] == [None] * 6
    prewarm, *others = children(fleet)
    assert (prewarm.prewarm, prewarm.write_5m > 5_000) == (True, True)
    assert [record.write_5m for record in others] == [0] * 6
    (leader,) = [result for result in results if result.calls[0].turn == 0]
    assert leader.usage.cache_write_tokens == prewarm.write_5m


async def test_a_call_that_can_go_at_once_is_announced_with_the_claim(fleet: Fleet) -> None:
    """The second child finds snapshot and prefix ready: one message says that it is taken and calls."""
    await fleet.daemon()
    params = await fleet.params(says("Part 1.", DONE))
    async with fleet.connect() as forks:
        first = await (await forks.fork(params)).result()
        second = await (await forks.fork(params.with_directive(says("Part 2.", DONE)))).result()

    reports = await fleet.reports(second.run_id)
    assert [report.kind for report in reports] == ["claimed", "turn", "final"]
    call = wire.announced_call(reports[0])
    assert call is not None
    assert (call.turn, call.attempt, call.model) == (1, 1, second.model)
    assert call.prefix == (await started_calls(fleet, first.run_id))[0].prefix
    assert second.decision == call.decision
    assert (second.decision or {})["plan"] == "all_at_once"


async def test_a_call_announced_with_its_claim_is_booked_when_its_daemon_dies(fleet: Fleet) -> None:
    """Nobody heard the end of it, so whoever takes the run over books it as unconfirmed."""
    doomed = await fleet.daemon("doomed")
    params = await fleet.params(says("Part 1.", DONE))
    async with fleet.connect() as forks:
        await (await forks.fork(params)).result()
        handle = await forks.fork(params.with_directive(says("Part 2.", HELD)))
        await fleet.sim.received(3)
        await doomed.kill()
        await fleet.daemon("heir")
        fleet.sim.release("first byte")
        result = await handle.result()

    assert (result.ok, result.daemon) == (True, "heir")
    booked = [call for call in distinct(await read_ledger(fleet.bus)) if call.run_id == handle.run_id]
    assert sorted((call.epoch, call.outcome, call.host) for call in booked) == [
        (1, "unconfirmed", "doomed"),
        (2, "confirmed", "heir"),
    ]


@pytest.mark.parametrize("skew_s", [-900.0, 900.0])
async def test_a_parent_whose_clock_is_off_is_as_warm_as_it_is(fleet: Fleet, skew_s: float) -> None:
    """Its entry is a moment old whatever its clock says: the age is what it says between its own two times."""
    await fleet.daemon()
    snapshot = await fleet.snapshot()
    assert snapshot.reply is not None
    assert snapshot.sent_at is not None
    request = wire.Requested(
        at=time.time() + skew_s,
        sent_at=snapshot.sent_at + skew_s,
        snapshot=wire.Payload(text=snapshot.body.decode()),
        reply=wire.Payload(text=snapshot.reply.to_wire().decode()),
        headers=dict(snapshot.headers),
        directive=says("apple", DONE),
    )
    await fleet.log("skewed").request(request)
    await fleet.until_logged("skewed", lambda report: isinstance(report, wire.CallStarted))

    (call,) = await started_calls(fleet, "skewed")
    assert snapshot.reply.usage.cache_write_tokens == call.decision["warm_tokens"] > 0


async def test_an_old_parent_is_cold_whatever_its_clock_says(fleet: Fleet) -> None:
    """Six minutes between its call and its fork are six minutes, also for a daemon to whom they lie ahead."""
    await fleet.daemon()
    snapshot = await fleet.snapshot()
    assert snapshot.reply is not None
    ahead_s = 900.0
    request = wire.Requested(
        at=time.time() + ahead_s,
        sent_at=time.time() + ahead_s - 360.0,
        snapshot=wire.Payload(text=snapshot.body.decode()),
        reply=wire.Payload(text=snapshot.reply.to_wire().decode()),
        headers=dict(snapshot.headers),
        directive=says("apple", DONE),
    )
    await fleet.log("idle").request(request)
    await fleet.until_logged("idle", lambda report: isinstance(report, wire.CallStarted))

    (call,) = await started_calls(fleet, "idle")
    assert call.decision["warm_tokens"] == 0


async def test_a_killed_leader_is_replaced_before_its_run_comes_back(fleet: Fleet) -> None:
    """The daemon that leads dies before the first byte; another child writes, once, and the lost run is run again."""
    await fleet.daemons(3, slots=4)
    params = ForkParams(cache_safe=await cold(fleet), prompt_messages="")
    async with fleet.connect() as forks:
        lead = await forks.fork(replace(params, prompt_messages=says("Lead.", {"fault": "hang"})))
        await fleet.sim.received(1)
        (claim,) = [report for report in await fleet.reports(lead.run_id) if isinstance(report, wire.Claimed)]
        others = await forks.fork_each(params, [says(f"Part {n}.", DONE) for n in range(5)])
        for handle in others:
            await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.Claimed))

        fleet.owner(claim.daemon.name).signal(signal.SIGKILL)
        results = [await handle.result() for handle in others]

    assert all(result.ok for result in results)
    assert sum(record.write_5m > 0 for record in children(fleet)) == 1
