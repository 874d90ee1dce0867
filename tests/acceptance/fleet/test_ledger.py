"""The ledger against the server's own log: every call is there once, and confirmed ones agree to the token."""

from __future__ import annotations

import re
import signal
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkStatus
from nexofork.bus.ledger import check_ledger, read_bookings, read_ledger
from nexofork.economics.ledger import distinct, price_calls, total
from nexofork.wire import messages as wire
from tests.support.conversation import MODEL, call, says
from tests.support.fleet import finals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork import ForkHandle
    from nexofork.simulator.log import RequestRecord
    from nexofork.wire.ledger import BookedCall
    from tests.support.fleet import Fleet

FORKS = 42
DONE = "Scope: all\nResult: done"
_PIECE = re.compile(rb"piece-(\d+)-")


def script(number: int) -> tuple[dict[str, Any] | str, ...]:
    """What the model does for one child: each kind of trouble in turn."""
    tool = {"tools": [call(command="true")]}
    slow = {"text": "a long report", "delay_s": 0.4}
    match number % 7:
        case 0:
            return (DONE,)
        case 1:
            return ({**tool, "fault": {"status": 529, "times": 2}}, DONE)
        case 2:
            return (tool, {"text": DONE, "fault": {"cut_after_events": 4, "times": 1}})
        case 3:
            return (tool, slow, DONE)
        case 4:
            return ({"text": DONE, "hold": {"gate": "first", "after_events": 3}},)
        case 5:
            return (tool, {"text": DONE, "hold": {"gate": "second", "after_events": 0}})
        case _:
            return ({"text": DONE, "hold": {"gate": "never", "after_events": 3}},)


async def live_through(fleet: Fleet, count: int) -> list[ForkHandle]:
    """Fork so many; abort the ones that would never end, and kill two daemons with calls in flight."""
    doomed = await fleet.daemons(3, slots=count)
    async with fleet.connect() as forks:
        params = await fleet.params("x")
        asked = [says(f"piece-{number}-", *script(number)) for number in range(count)]
        handles = await forks.fork_each(params, asked, group="trouble")
        for round_, gate in enumerate(("first", "second")):
            # By then every child has made a call, and those in front of the gates wait in theirs.
            await fleet.sim.received(1 + count + round_ * count // 7)
            await doomed[round_].kill()
            await fleet.daemon()
            fleet.sim.release(gate)
        for handle in handles[6::7]:
            await handle.abort("enough")
        results = [await handle.result() for handle in handles]
    ends = Counter(result.status for result in results)
    assert ends == {ForkStatus.COMPLETED: count - len(handles[6::7]), ForkStatus.ABORTED: len(handles[6::7])}
    assert any(result.attempts > 1 for result in results)
    return handles


def matched(records: Sequence[RequestRecord], calls: Sequence[BookedCall]) -> list[BookedCall]:
    """Find the ledger's call for each of a run's requests, and return the calls that no request is left for."""
    left = list(calls)
    nameless = []
    for record in records:
        named = [one for one in left if one.message_id and one.message_id == record.message_id]
        if not named:
            nameless.append(record)
            continue
        (one,) = named
        left.remove(one)
        assert one.billed is not None
        assert one.billed[:4] == (record.fresh, record.read, record.write_5m, record.write_1h)
        if one.outcome == "confirmed":
            assert one.billed[4] == record.output
    for record in nameless:
        # Refused, or its daemon died before it heard of the answer.
        outcomes = ("unconfirmed",) if record.status in (None, 200) else ("failed", "unconfirmed")
        fits = [one for outcome in outcomes for one in left if one.outcome == outcome and one.billed is None]
        assert fits, f"nothing is booked for request {record.index} ({record.status}): {calls}"
        left.remove(fits[0])
    return left


async def check(fleet: Fleet, handles: Sequence[ForkHandle]) -> None:
    """Match the ledger with the simulator's log, call by call."""
    checked = await check_ledger(fleet.bus, await read_bookings(fleet.bus), pool=fleet.pool)
    assert (checked.disputed, checked.unverified, checked.unchecked) == ([], [], set())
    booked = distinct(checked.counted)
    calls: dict[str, list[BookedCall]] = defaultdict(list)
    for one in booked:
        calls[one.run_id].append(one)
    records: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in fleet.sim.log[1:]:
        found = _PIECE.search(fleet.sim.body(record.index) or b"")
        assert found is not None
        records[handles[int(found[1])].run_id].append(record)

    unsent: list[BookedCall] = []
    for handle in handles:
        unsent += matched(records[handle.run_id], calls.pop(handle.run_id, []))
    assert not calls, "calls of runs that were never asked for"
    assert {one.outcome for one in unsent} <= {"unconfirmed", "failed"}, "confirmed calls that the server does not know"
    assert all(one.billed is None for one in unsent)
    assert len(unsent) < len(handles) / 4, "an announced call is hardly ever not sent"
    outcomes = Counter(one.outcome for one in booked)
    assert outcomes["confirmed"] > len(handles)
    assert outcomes["failed"] > 0
    assert outcomes["unconfirmed"] > 0
    assert {one.group for one in booked} == {"trouble"}
    confirmed = total(price_calls(one for one in booked if one.outcome == "confirmed"))
    ids = {one.message_id for one in booked if one.outcome == "confirmed"}
    billed = sum(record.price_usd for record in fleet.sim.log if record.message_id in ids)
    assert confirmed.money.billed == pytest.approx(billed)


@pytest.mark.timeout(120)
async def test_the_ledger_agrees_with_the_server_after_crashes_and_retries(fleet: Fleet) -> None:
    """Refusals, cuts, aborts and two killed daemons: nothing is missing, nothing counted twice."""
    await check(fleet, await live_through(fleet, FORKS))


@pytest.mark.ops
@pytest.mark.timeout(900)
async def test_the_ledger_agrees_with_the_server_after_five_hundred_forks(fleet: Fleet) -> None:
    """The same with more of everything."""
    await check(fleet, await live_through(fleet, 500))


async def test_a_lost_call_is_booked_by_whoever_ends_the_run(fleet: Fleet) -> None:
    """Killed in its call and aborted before anybody claims it again: the call is there, as unconfirmed."""
    doomed = await fleet.daemon()
    async with fleet.connect() as forks:
        stalled = says("lost", {"text": DONE, "hold": {"gate": "never", "after_events": 3}})
        handle = await forks.fork(await fleet.params(stalled))
        await fleet.sim.begun(2)
        await doomed.kill()
        await handle.abort("enough")
        await fleet.daemon()
        await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.Final))

    assert [end.status for end in finals(await fleet.reports(handle.run_id))] == ["aborted"]
    (one,) = [one for one in await read_ledger(fleet.bus) if one.run_id == handle.run_id]
    assert (one.outcome, one.billed, one.epoch, one.host) == ("unconfirmed", None, 1, doomed.name)
    assert one.prefix
    assert "lost" in one.error


async def test_a_run_that_is_handed_over_books_on_both_daemons(fleet: Fleet) -> None:
    """The cut-off call has the bill of its beginning under the first daemon, the repeated one its own."""
    leaving = await fleet.daemon()
    async with fleet.connect() as forks:
        held = says("moved", {"text": DONE, "hold": {"gate": "first", "after_events": 3}})
        handle = await forks.fork(await fleet.params(held))
        await fleet.sim.begun(2)
        await fleet.daemon()
        leaving.signal(signal.SIGTERM)
        await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.HandedOver))
        fleet.sim.release("first")
        assert (await handle.result()).ok

    found = distinct(one for one in await read_ledger(fleet.bus) if one.run_id == handle.run_id)
    assert [(one.outcome, one.epoch, one.host == leaving.name) for one in found] == [
        ("unconfirmed", 1, True),
        ("confirmed", 2, False),
    ]
    assert found[0].billed is not None
    assert [one.message_id for one in found] == [record.message_id for record in fleet.sim.log[1:]]


async def test_a_call_that_was_not_sent_before_a_hand_over_is_not_booked(fleet: Fleet) -> None:
    """A daemon that hands over has booked what it sent; the next one adds nothing for what was only announced."""
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(says("early", DONE)))
        log = fleet.log(handle.run_id)
        tip = await log.tip()
        assert tip is not None
        claim = wire.Claimed(epoch=1, daemon=wire.Daemon(instance="leaving", name="leaving"))
        seq = await log.append(claim, after=tip.seq)
        seq = await log.append(wire.CallStarted(epoch=1, turn=1, attempt=1, model=MODEL), after=seq)
        await log.append(wire.HandedOver(epoch=1), after=seq)
        await fleet.daemon()
        assert (await handle.result()).ok

    found = distinct(one for one in await read_ledger(fleet.bus) if one.run_id == handle.run_id)
    assert [(one.epoch, one.outcome) for one in found] == [(2, "confirmed")]
