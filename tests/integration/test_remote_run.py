"""A watcher misses nothing, even when the feed is back before it knows that the feed was away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nexofork.bus.blobs import BlobStore
from nexofork.bus.provisioning import provision
from nexofork.bus.run_log import RunLog
from nexofork.client.handle import ForkRecord
from nexofork.client.remote_run import RemoteRun
from nexofork.engine.events import ForkClaimed, ForkEnded, TurnFinished
from tests.support.nats import a_claim, a_final, a_request, a_turn, bus, nats_server, run_id

if TYPE_CHECKING:
    from nexofork.bus.connection import Bus
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
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(run.follow(after=asked, known=True))
        turned = await log.append(a_turn(), after=claimed)
        await log.append(a_final(), after=turned)

    assert [type(event) for event in record.events] == [ForkClaimed, TurnFinished, ForkEnded]
