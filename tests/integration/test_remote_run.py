"""A watcher misses nothing, even when the feed is back before it knows that the feed was away."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from nexofork.bus.blobs import BlobStore
from nexofork.bus.provisioning import provision
from nexofork.bus.run_log import RunLog
from nexofork.client.handle import ForkRecord
from nexofork.client.remote_run import RemoteRun
from nexofork.run.events import FanOutDecided, ForkClaimed, ForkEnded, TextStreamed, TurnFinished
from nexofork.run.result import ForkResult, ForkStatus
from nexofork.wire.messages import CallStarted, Final, Payload
from nexofork.wire.subjects import delta
from tests.support.nats import a_claim, a_final, a_request, a_turn, bus, nats_server, run_id
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from nexofork.bus.connection import Bus
    from nexofork.run.events import ForkEvent
    from nexofork.wire.messages import Asked

__all__ = ["bus", "nats_server", "run_id"]


async def nobody_asks(run: RemoteRun, asked: Asked) -> None:
    """Nothing is asked here."""
    raise AssertionError(f"{run.record.run_id} asked for {asked.what}")


async def test_a_report_missed_by_the_feed_is_read_before_the_next_one_counts(bus: Bus, run_id: str) -> None:
    """What was written before the watcher listened comes first, each report once."""
    await provision(bus)
    log = RunLog(bus, run_id)
    asked = await log.request(a_request())
    claimed = await log.append(a_claim(), after=asked)
    record = ForkRecord(run_id=run_id, label="fork")
    run = RemoteRun(bus, BlobStore(bus, "parent"), record, pool="fork", parent_id="p", on_asked=nobody_asks)

    await run.listen()
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(run.follow(after=asked, known=True))
        turned = await log.append(a_turn(), after=claimed)
        await log.append(a_final(), after=turned)

    assert [type(event) for event in record.events] == [ForkClaimed, TurnFinished, ForkEnded]


async def test_how_the_fan_out_started_is_told_once_and_kept_in_the_result(bus: Bus, run_id: str) -> None:
    """It stands on the log with the first call; later calls and the final report do not repeat it."""
    await provision(bus)
    log, decision = RunLog(bus, run_id), {"plan": "leader_first", "role": "follower"}
    seq = await log.request(a_request())
    result = ForkResult(run_id=run_id, label="", directive="", model="", status=ForkStatus.COMPLETED, end="end_turn")
    for report in (
        a_claim(),
        CallStarted(epoch=1, turn=1, decision=decision),
        CallStarted(epoch=1, turn=1, attempt=2),
        a_turn(),
        Final(epoch=1, status="completed", result=Payload(text=result.to_wire().decode())),
    ):
        seq = await log.append(report, after=seq)
    record = ForkRecord(run_id=run_id, label="fork")
    run = RemoteRun(bus, BlobStore(bus, "parent"), record, pool="fork", parent_id="p", on_asked=nobody_asks)

    await run.listen()
    async with asyncio.timeout(PATIENCE_S):
        await run.follow()

    assert [type(event) for event in record.events] == [ForkClaimed, FanOutDecided, TurnFinished, ForkEnded]
    assert record.result is not None
    assert record.result.decision == decision


async def test_an_event_has_the_time_of_its_entry(bus: Bus, run_id: str) -> None:
    """However late it is read; a time that no clock can have said is replaced by when it was seen."""
    await provision(bus)
    log = RunLog(bus, run_id)
    seq = await log.request(a_request())
    for report, at in ((a_claim(), 1_700_000_000.5), (a_turn(), 1e300), (a_final(), 1_700_000_009.0)):
        seq = await log.append(report.model_copy(update={"at": at}), after=seq)
    record = ForkRecord(run_id=run_id, label="fork")
    run = RemoteRun(bus, BlobStore(bus, "parent"), record, pool="fork", parent_id="p", on_asked=nobody_asks)
    began = time.time()

    async with asyncio.timeout(PATIENCE_S):
        await run.follow()

    claimed, turned, ended = (event.at for event in record.events)
    assert (claimed, ended) == (1_700_000_000.5, 1_700_000_009.0)
    assert began <= turned <= time.time()


async def test_text_that_cannot_be_read_is_left_out(bus: Bus, run_id: str) -> None:
    """JSON that nests without end stops no watcher; the text after it arrives."""
    await provision(bus)
    log = RunLog(bus, run_id)
    seq = await log.request(a_request())
    shown: list[ForkEvent] = []
    record = ForkRecord(run_id=run_id, label="fork", observer=shown.append)
    run = RemoteRun(bus, BlobStore(bus, "parent"), record, pool="fork", parent_id="p", on_asked=nobody_asks)

    await run.listen(deltas=True)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(run.follow(after=seq, known=True))
        for data in (b"[" * 100_000, b'{"text": ' * 50_000, b'{"v": 1, "text": "hello"}'):
            await bus.publish(delta(run_id), data)
        await eventually(lambda: shown)
        seq = await log.append(a_claim(), after=seq)
        await log.append(a_final(), after=seq)

    assert [event.text for event in shown if isinstance(event, TextStreamed)] == ["hello"]
