"""A parent steers children on other hosts: speaks to them, wakes them, lists them, and takes results as they come."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nexofork import ForkStatus, as_completed
from nexofork.bus.jetstream import store
from nexofork.errors import CannotWake, ForkIsOver
from nexofork.wire import messages as wire
from nexofork.wire.subjects import inbox, inbox_filter
from tests.support.conversation import call, says
from tests.support.parents import body_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fleet import Fleet

DONE = "Scope: all\nResult: done"


async def test_a_message_that_comes_after_the_last_look_is_reported(fleet: Fleet) -> None:
    """It lies in the inbox when the daemon reports: the result of whoever sent it names it, once."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        held = {"text": DONE, "hold": "end"}
        handle = await forks.fork(await fleet.params(says("walnut", held), max_turns=1))
        other = await forks.attach(handle.run_id)
        await fleet.sim.received(2)
        await handle.message("too late to act on")
        await other.message("so is this")

        fleet.sim.release("end")
        results = [await one.result() for one in (handle, other)]

        expected = ["so is this", "too late to act on"]
        assert [sorted(result.undelivered) for result in results] == [expected, expected]
        assert results[0].status is ForkStatus.COMPLETED
        with pytest.raises(ForkIsOver, match="`wake`"):
            await handle.message("and this")
        with pytest.raises(ForkIsOver, match="is over"):
            await (await forks.attach(handle.run_id)).message("and this")


async def test_a_message_stored_behind_the_final_report_is_an_error_to_its_sender(fleet: Fleet) -> None:
    """The sender learns that nobody will read it: the run was over when its message came to lie there."""
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params("hazel"))
        log = fleet.log(handle.run_id)
        (asked,) = await log.entries()
        claimed = await log.append(wire.Claimed(epoch=1, daemon=wire.Daemon(name="d")), after=asked.seq)
        await handle.message("in time")
        told = wire.Answer(kind="message", text="from elsewhere")
        await store(fleet.bus, inbox(handle.run_id, told.id, fleet.pool), wire.encode(told))

        # A daemon whose last look was before all of them.
        payload = wire.Payload(text='{"status":"completed","end":"end_turn"}')
        await log.append(wire.Final(epoch=1, status="completed", result=payload), after=claimed)
        result = await handle.result()

        assert result.undelivered == ("in time",)


async def test_a_message_that_meets_the_end_on_its_way_is_an_error_and_in_the_result(fleet: Fleet) -> None:
    """Stored just before the final report, and looked for just after it: nobody read it, and everybody says so."""
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params("rowan"))
        log = fleet.log(handle.run_id)
        (asked,) = await log.entries()
        claimed = await log.append(wire.Claimed(epoch=1, daemon=wire.Daemon(name="d")), after=asked.seq)
        payload = wire.Payload(text='{"status":"completed","end":"end_turn"}')
        posted = asyncio.Event()
        seen = await fleet.bus.subscribe(inbox_filter(handle.run_id, fleet.pool), lambda _: posted.set())

        sending = handle.message("on its way")
        await log.append(wire.Final(epoch=1, status="completed", result=payload), after=claimed)
        outcome = None
        try:
            await sending
        except ForkIsOver as exc:
            outcome = exc
        result = await handle.result()
        await seen.unsubscribe()

        assert result.undelivered == ("on its way",) or (outcome is not None and not posted.is_set())


async def test_a_woken_run_goes_on_from_the_log(fleet: Fleet, tmp_path: Path) -> None:
    """Any parent with the run id wakes it on another daemon: the same bytes, 99% read, its limits taken over, again."""
    note = tmp_path / "note"
    first = await fleet.daemon("first")
    async with fleet.connect() as forks:
        turns = ({"tools": [call(command=f"echo ran > {note}")]}, {"tools": [call(command="echo two")]}, DONE)
        params = await fleet.params(says("almond", *turns), fork_label="worker", max_turns=7)
        handle = await forks.fork(params, group="g")
        assert (await handle.result()).ok
    first.signal(15)
    await first.gone()
    await fleet.daemon("second")
    run_id = handle.run_id

    async with fleet.connect() as forks:
        for number in range(2):
            last = fleet.sim.log[-1]
            woken = await forks.wake(run_id, says(f"More {number}.", {"tools": [call(command="echo three")]}, DONE))
            result = await woken.result()
            began = fleet.sim.log[last.index + 1]

            assert (result.status, result.daemon, result.label) == (ForkStatus.COMPLETED, "second", "worker")
            assert began.read >= 0.99 * (last.read + last.write_5m + last.fresh)
            request = (await fleet.entries(woken.run_id))[0].message
            assert isinstance(request, wire.Requested)
            assert (request.continues, request.max_turns, request.group) == (run_id, 7, "g")
            run_id = woken.run_id


async def test_what_cannot_be_woken_is_named(fleet: Fleet) -> None:
    """A run that goes on, one nobody knows, and one without transcript."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        waits = says("pecan", {"text": DONE, "hold": "end"})
        held = await forks.fork(await fleet.params(waits, warm_up="all_at_once"))
        quiet = await forks.fork(await fleet.params("Look.", skip_transcript=True, warm_up="all_at_once"))
        assert (await quiet.result()).ok

        for run_id, why in ((held.run_id, "not over"), ("nobody", "no such run"), (quiet.run_id, "no transcript")):
            with pytest.raises(CannotWake, match=why):
                await forks.wake(run_id, "More.")
        fleet.sim.release("end")
        assert (await held.result()).ok


async def test_a_run_whose_contents_are_gone_cannot_be_woken(fleet: Fleet) -> None:
    """The log outlived what it refers to: the error says so, and nothing is sent."""
    async with fleet.connect() as forks:
        lost = wire.Payload(blob=wire.BlobRef(owner="parent", name="gone", sha256="ab" * 32, size=5, chunks=1))
        log = fleet.log("lost")
        asked = await log.request(wire.Requested(snapshot=lost, directive="x"))
        await log.append(
            wire.Final(epoch=1, status="completed", result=wire.Payload(text='{"status":"completed"}')), after=asked
        )
        with pytest.raises(CannotWake, match="not to be had any more"):
            await forks.wake("lost", "More.")


async def test_children_of_earlier_connections_are_listed(fleet: Fleet) -> None:
    """By the parent's id, with where each of them is; another parent's are not among them."""
    await fleet.daemon("d1")
    async with fleet.connect(parent_id="me") as forks:
        done = await forks.fork(await fleet.params(says("fig", DONE), fork_label="l"), group="g")
        await done.result()
    async with fleet.connect(parent_id="me") as forks, fleet.connect(parent_id="other") as others:
        held = await forks.fork(await fleet.params(says("date", {"text": DONE, "hold": "end"})))
        foreign = await others.fork(await fleet.params(says("kiwi", DONE)))
        await foreign.result()
        await fleet.until_logged(held.run_id, lambda report: isinstance(report, wire.Claimed))

        rows = await forks.children()
        grouped = await forks.children(group="g")
        fleet.sim.release("end")
        await held.result()

    assert [(row.run_id, row.status) for row in rows] == [(held.run_id, "running"), (done.run_id, "completed")]
    assert [(row.run_id, row.label, row.group, row.daemon, row.turns) for row in grouped] == [
        (done.run_id, "l", "g", "d1", 1)
    ]
    assert "fig" in grouped[0].directive


async def test_results_come_as_they_end_wherever_the_forks_run(fleet: Fleet) -> None:
    """The slow one is last, though it was started first."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        slow = says("slow", {"text": "Scope: s\nResult: slow", "hold": "slow"})
        quick = says("quick", "Scope: s\nResult: quick")
        handles = await forks.fork_each(await fleet.params("x", warm_up="all_at_once"), [slow, quick], group="g")
        order = []
        async for result in as_completed(forks.group("g")):
            order.append(result.report.result)
            fleet.sim.release("slow")

    assert len(handles) == 2
    assert order == ["quick", "slow"]


async def test_a_message_extends_a_run_that_has_not_reported(fleet: Fleet) -> None:
    """Said while the model gives its last answer, it is read in a turn more."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        turns = ({"text": DONE, "hold": "end"}, "Scope: all\nResult: more")
        handle = await forks.fork(await fleet.params(says("olive", *turns)))
        await fleet.sim.received(2)
        await handle.message("one more thing")
        fleet.sim.release("end")
        result = await handle.result()

    assert (result.turns, result.report.result, result.undelivered) == (2, "more", ())
    assert "one more thing" in body_of(fleet.sim, 2)["messages"][-1]["content"][0]["text"]
