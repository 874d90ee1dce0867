"""What belongs to a run or to a pool, and not to whichever daemon happens to have it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nexofork import ForkStatus
from nexofork.bus.jetstream import call as api_call
from nexofork.run.events import TextStreamed
from nexofork.wire import messages as wire
from nexofork.wire.streams import CONSUMER, log_stream
from tests.support.conversation import says
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from nexofork.run.events import ForkEvent
    from tests.support.fleet import Fleet

DONE = "Scope: all\nResult: done"


async def test_an_abort_by_another_process_ends_a_run_that_nobody_has(fleet: Fleet) -> None:
    """Whoever waits for a queued run learns that somebody else aborted it, without any daemon."""
    async with fleet.connect() as mine, fleet.connect() as theirs:
        handle = await mine.fork(await fleet.params("queued"))

        await (await theirs.attach(handle.run_id)).abort("not needed")
        async with asyncio.timeout(PATIENCE_S):
            result = await handle.result()

    assert (result.status, result.error) == (ForkStatus.ABORTED, "not needed")


async def test_a_later_daemon_does_not_shorten_the_lease_of_the_pool(fleet: Fleet) -> None:
    """Its own wish gives way to what the others renew by."""
    await fleet.daemon("first", lease_s=4.0)
    await fleet.daemon("second", lease_s=1.0)

    info = await api_call(fleet.bus, f"CONSUMER.INFO.{log_stream(fleet.pool)}.{CONSUMER}")

    assert info["config"]["ack_wait"] == 4 * 10**9


async def test_the_timeout_of_a_run_counts_from_its_first_daemon(fleet: Fleet) -> None:
    """A daemon that takes over has only what is left, and reports how long the whole run took."""
    first = await fleet.daemon("first")
    async with fleet.connect() as forks:
        turn = {"text": DONE, "hold": "never"}
        handle = await forks.fork(await fleet.params(says("clock", turn), timeout=8.0))
        await fleet.sim.received(2)
        await first.kill()
        await fleet.daemon("second")
        result = await handle.result()

    assert (result.status, result.attempts) == (ForkStatus.TIMED_OUT, 2)
    begun, taken_over = [report.at for report in await fleet.reports(handle.run_id) if isinstance(report, wire.Claimed)]
    assert result.duration_ms >= 8000
    assert result.duration_ms < (taken_over - begun) * 1000 + 8000


async def test_what_an_aborted_call_was_billed_is_in_the_result(fleet: Fleet) -> None:
    """The response had begun, so its prompt was paid for."""
    await fleet.daemon()
    seen: list[ForkEvent] = []
    async with fleet.connect() as forks:
        turn = {"text": DONE, "deltas": 4, "hold": {"gate": "rest", "after_events": 5}}
        handle = await forks.fork(await fleet.params(says("bill", turn), on_message=seen.append))
        await eventually(lambda: any(isinstance(event, TextStreamed) for event in seen))
        await handle.abort("enough")
        result = await handle.result()

    billed = fleet.sim.log[1]
    assert result.status is ForkStatus.ABORTED
    assert (result.turns, result.usage.prompt_tokens) == (0, billed.prompt_tokens)
    assert result.usage.cache_read_tokens == billed.read


async def test_a_run_that_is_given_up_keeps_what_it_reached(fleet: Fleet) -> None:
    """The turns that were recorded, and paid for, are in the result of a run at the epoch limit."""
    fleet.forged = True
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params("unlucky"))
        log = (await fleet.entries(handle.run_id))[-1]
        run_log = fleet.log(handle.run_id)
        seq = log.seq
        content = wire.Payload(text='[{"type":"text","text":"so far"}]')
        for epoch in (1, 2, 3):
            seq = await run_log.append(wire.Claimed(epoch=epoch, daemon=wire.Daemon(name="lost")), after=seq)
            if epoch == 1:
                turn = wire.Turn(epoch=1, turn=1, content=content, stop_reason="tool_use", usage={"input_tokens": 7})
                seq = await run_log.append(turn, after=seq)
        await fleet.daemon(epoch_limit=3)
        result = await handle.result()

    assert (result.status, result.end, result.attempts) == (ForkStatus.FAILED, "epoch_limit", 3)
    assert (result.turns, result.usage.input_tokens, result.final_text) == (1, 7, "so far")
