"""A server started by hand, without the domain ``fork``."""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING

from nexofork.bus.blobs import BlobStore
from nexofork.bus.connection import BusSettings, open_bus
from nexofork.bus.embedded import find_binary
from nexofork.bus.failures import BusUnreachable
from nexofork.bus.jetstream import PLAIN_API
from nexofork.bus.pickup import Pickup
from nexofork.bus.provisioning import provision
from nexofork.bus.run_log import RunLog
from tests.support.nats import a_claim, a_request, free_port
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork.bus.pickup import Delivery


async def test_a_plain_jetstream_server_works_as_it_is(tmp_path: Path) -> None:
    """``nats-server -js`` is enough: provisioning, log, pickup and blobs find it under ``$JS.API``."""
    port = free_port()
    arguments = ("-js", "-a", "127.0.0.1", "-p", str(port), "-sd", str(tmp_path))
    server = await asyncio.create_subprocess_exec(find_binary(), *arguments, stderr=subprocess.DEVNULL)
    try:
        await _up(port)
        async with open_bus(BusSettings(urls=(f"nats://127.0.0.1:{port}",))) as bus:
            await provision(bus)
            log = RunLog(bus, "r1")
            seq = await log.request(a_request())
            deliveries: list[Delivery] = []
            stop = asyncio.Event()

            def take(delivery: Delivery) -> None:
                deliveries.append(delivery)
                stop.set()

            await Pickup(bus, free_slots=lambda: 1 - len(deliveries), deliver=take).run(stop)
            await log.append(a_claim(), after=seq)
            blobs = BlobStore(bus, "parent")

            assert bus.api == PLAIN_API
            assert [delivery.seq for delivery in deliveries] == [seq]
            assert await BlobStore(bus, "daemon").get(await blobs.put(b"content")) == b"content"
    finally:
        server.kill()
        await server.wait()


async def _up(port: int) -> None:
    """Return when the server takes connections and JetStream answers."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                async with open_bus(BusSettings(urls=(f"nats://127.0.0.1:{port}",), connect_timeout_s=1)) as bus:
                    if bus.api == PLAIN_API:
                        return
            except BusUnreachable:
                continue
