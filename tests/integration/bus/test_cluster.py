from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from nexofork.bus.blobs import BlobStore
from nexofork.bus.connection import Bus, BusSettings, open_bus
from nexofork.bus.jetstream import call
from nexofork.bus.provisioning import provision
from nexofork.bus.run_log import RunLog
from nexofork.errors import BusError, RunLost
from nexofork.wire.messages import AbortEvent, Turn
from tests.support.nats import SMALL, Cluster, a_claim, a_request, a_turn
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def three_clients(cluster: Cluster) -> AsyncIterator[list[Bus]]:
    """One connection to each server; the streams are there."""
    async with AsyncExitStack() as stack:
        buses = [
            await stack.enter_async_context(open_bus(BusSettings(urls=(url,), request_timeout_s=10.0)))
            for url in cluster.urls
        ]
        await provision(buses[0], max_bytes=SMALL)
        yield buses


async def test_streams_are_replicated_and_a_claim_has_one_winner(cluster: Cluster, run_id: str) -> None:
    """On three servers everything has three copies, and twenty claims from all sides have one winner."""
    async with three_clients(cluster) as buses:
        info = await call(buses[1], "STREAM.INFO.FORK")
        seq = await RunLog(buses[0], run_id).request(a_request())

        async def claim(number: int) -> int | BusError:
            try:
                return await RunLog(buses[number % 3], run_id).append(a_claim(instance=f"d{number}"), after=seq)
            except RunLost as exc:
                return exc

        async with asyncio.TaskGroup() as tasks:
            claims = [tasks.create_task(claim(number)) for number in range(20)]
        entries = await RunLog(buses[2], run_id).entries()

    assert info["config"]["num_replicas"] == 3
    assert sum(isinstance(task.result(), int) for task in claims) == 1
    assert len(entries) == 2


async def test_no_report_follows_an_abort(cluster: Cluster, run_id: str) -> None:
    """Thirty runs whose writers and parents sit at different servers: each log ends with its abort."""
    async with three_clients(cluster) as buses:

        async def write(log: RunLog, tip: int) -> None:
            for number in range(1, 1000):
                try:
                    tip = await log.append(a_turn(number), after=tip)
                except BusError:
                    return

        async def race(number: int) -> bool:
            name = f"{run_id}-{number}"
            parent, daemon = RunLog(buses[number % 3], name), RunLog(buses[(number + 1) % 3], name)
            claimed = await daemon.append(a_claim(), after=await parent.request(a_request()))
            async with asyncio.TaskGroup() as pair:
                pair.create_task(write(daemon, claimed))
                outcome = await parent.abort(AbortEvent())
            entries = await RunLog(buses[(number + 2) % 3], name).entries()
            return outcome.how == "logged" and entries[-1].seq == outcome.seq

        async with asyncio.TaskGroup() as tasks:
            races = [tasks.create_task(race(number)) for number in range(30)]

    assert all(task.result() for task in races)


async def test_the_tip_is_never_stale(cluster: Cluster, run_id: str) -> None:
    """What one server acknowledged is the tip, and on the log, at every other server at once."""
    async with three_clients(cluster) as buses:
        seq = await RunLog(buses[0], run_id).append(
            a_claim(), after=await RunLog(buses[0], run_id).request(a_request())
        )
        for number in range(1, 150):
            seq = await RunLog(buses[number % 3], run_id).append(a_turn(number), after=seq)
            reader = RunLog(buses[(number + 1) % 3], run_id)
            tip, entries = await reader.tip(), await reader.entries(start_seq=seq)
            assert tip is not None
            assert tip.seq == seq
            assert [entry.seq for entry in entries] == [seq]


async def test_a_blob_can_be_read_elsewhere_at_once(cluster: Cluster) -> None:
    """A replica that does not have it yet is asked again."""
    async with three_clients(cluster) as buses:
        for number in range(10):
            data = b"%d" % number * 400_000
            ref = await BlobStore(buses[number % 3], "parent").put(data)
            assert await BlobStore(buses[(number + 1) % 3], "daemon").get(ref) == data


async def test_a_run_goes_on_when_the_leader_dies(cluster: Cluster, run_id: str) -> None:
    """With the stream's leader killed in mid-run every turn is on the log once and in order."""
    async with open_bus(BusSettings(urls=cluster.urls, request_timeout_s=1.0)) as bus:
        await provision(bus, max_bytes=SMALL)
        log = RunLog(bus, run_id, deadline_s=40)
        seq = await log.append(a_claim(), after=await log.request(a_request()))
        leader = cluster.servers[(await call(bus, "STREAM.INFO.FORK"))["cluster"]["leader"]]
        try:
            for number in range(1, 31):
                if number == 10:
                    leader.kill()
                seq = await log.append(a_turn(number), after=seq)
            entries = await log.entries()
        finally:
            leader.spawn()
            await eventually(leader.ready)

    turns = [entry.message.turn for entry in entries if isinstance(entry.message, Turn)]
    assert turns == list(range(1, 31))
