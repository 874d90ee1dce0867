from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING

from nexofork.bus.jetstream import call, store
from nexofork.bus.pickup import Delivery, Pickup
from nexofork.bus.reading import last_of, read_subject
from nexofork.bus.run_log import RunLog
from tests.support.nats import a_request
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from nexofork.bus.connection import Bus, Msg
    from nexofork.bus.embedded import EmbeddedServer


class RawClient:
    """Speaks the protocol by hand, so that it can say what no library would."""

    def __init__(self, url: str) -> None:
        self._host, _, port = url.removeprefix("nats://").rpartition(":")
        self._port = int(port)

    async def send(self, *commands: bytes) -> bytes:
        """Send commands and return what the server says to them before it answers a ping."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            await reader.readline()
            hello = {"verbose": False, "pedantic": False, "headers": True, "lang": "raw", "version": "0"}
            writer.write(b"CONNECT " + json.dumps(hello).encode() + b"\r\n" + b"".join(commands) + b"PING\r\n")
            await writer.drain()
            return await reader.readuntil(b"PONG\r\n")
        finally:
            writer.close()
            await writer.wait_closed()


def pub(subject: bytes, payload: bytes = b"x") -> bytes:
    """A plain message."""
    return b"PUB %s %d\r\n%s\r\n" % (subject, len(payload), payload)


def hpub(subject: bytes, headers: bytes, payload: bytes = b"x") -> bytes:
    """A message with any header block."""
    return b"HPUB %s %d %d\r\n%s%s\r\n" % (subject, len(headers), len(headers) + len(payload), headers, payload)


SUBJECT_TOKENS = (
    b"\xff\xfe",
    b"a\x0bb",
    b"a\x0cb",
    b"\x01",
    b"a\x85b",
    "ü".encode(),
    b"a" * 300,
    b"%s%d",
    b"{}",
    b"$JS",
)
HEADER_BLOCKS = (
    b"NATS/1.0 \xff\xfe\xfd\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"NATS/1.0 409 Consumer Deleted\r\n\r\n",
    b"NATS/1.0 100 \xff\r\nX: y\r\n\r\n",
    b"NATS/1.0\r\n\xff: \xff\r\n\r\n",
    b"NATS/1.0\r\nno colon here\r\n\r\n",
    b"NATS/1.0\r\nStatus: 204\r\nDescription: EOB\r\n\r\n",
    b"NATS/1.0\r\nNats-Stream: EVIL\r\nNats-Subject: evil\r\nNats-Sequence: evil\r\n\r\n",
    b"NATS/1.0\r\n\r\n",
)


async def test_no_message_ends_a_daemons_connection(nats_server: EmbeddedServer, pool_bus: Bus, pool: str) -> None:
    """Requests with subjects and headers of any bytes are delivered or dropped, once; honest ones still come."""
    prefix = f"agent.{pool}.".encode()
    said = await RawClient(nats_server.url).send(
        *(pub(prefix + token + b".events") for token in SUBJECT_TOKENS),
        *(hpub(prefix + b"h%d.events" % number, block) for number, block in enumerate(HEADER_BLOCKS)),
    )
    assert said == b"PONG\r\n"
    await RunLog(pool_bus, "honest", pool=pool).request(a_request())
    taken: list[Delivery] = []
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        pickup = Pickup(pool_bus, pool=pool, free_slots=lambda: 100 - len(taken), deliver=taken.append)
        tasks.create_task(pickup.run(stop))
        await eventually(lambda: "honest" in {delivery.run_id for delivery in taken})
        for delivery in taken:
            await delivery.terminate("hostile")
        stop.set()

    names = {delivery.run_id for delivery in taken}
    assert names >= {f"h{number}" for number in range(len(HEADER_BLOCKS))}
    assert pool_bus.reconnects == 0
    info = await call(pool_bus, f"CONSUMER.INFO.FORK_POOL_{pool}.pickup")
    assert (info["num_pending"], info["num_ack_pending"]) == (0, 0)


async def test_no_message_ends_a_read(nats_server: EmbeddedServer, bus: Bus, run_id: str) -> None:
    """A log with header blocks of any bytes is read to its end, each message in its place."""
    subject = f"agent.fork.{run_id}.reports"
    await RawClient(nats_server.url).send(*(hpub(subject.encode(), block) for block in HEADER_BLOCKS))
    await store(bus, subject, b"end")

    found = await read_subject(bus, "FORK", f"agent.fork.{run_id}.*")
    tip = await last_of(bus, "FORK", f"agent.fork.{run_id}.*")
    entries = await RunLog(bus, run_id).entries()

    assert [message.data for message in found] == [b"x"] * len(HEADER_BLOCKS) + [b"end"]
    assert {message.subject for message in found} == {subject}
    assert tip is not None
    assert tip.data == b"end"
    assert len(entries) == len(found)
    assert bus.reconnects == 0


async def test_no_message_ends_a_watchers_connection(nats_server: EmbeddedServer, bus: Bus, run_id: str) -> None:
    """Ten thousand random messages on a subscribed subject: the subscription and the connection live."""
    got: list[Msg] = []
    await bus.subscribe(f"s.{run_id}.>", got.append)
    await bus.flushed()
    dice = random.Random(4)
    allowed = bytes(set(range(1, 256)) - set(b" \t\r\n.*>"))
    commands = []
    for _ in range(10_000):
        token = bytes(dice.choices(allowed, k=dice.randint(1, 20)))
        subject = f"s.{run_id}.".encode() + token
        payload = dice.randbytes(dice.randint(0, 40))
        if dice.random() < 0.5:
            commands.append(pub(subject, payload))
        else:
            junk = dice.randbytes(dice.randint(0, 30)).replace(b"\r", b"").replace(b"\n", b"")
            inline = dice.choice((b"", b" ", b" 503", b" " + dice.randbytes(3).replace(b"\r", b"").replace(b"\n", b"")))
            commands.append(hpub(subject, b"NATS/1.0" + inline + b"\r\n" + junk + b"\r\n\r\n", payload))
    await RawClient(nats_server.url).send(*commands)
    await eventually(lambda: len(got) == 10_000)

    assert bus.reconnects == 0


async def test_an_error_line_of_the_server_means_reconnect(nats_server: EmbeddedServer, bus: Bus, run_id: str) -> None:
    """What nats-py would take as the end of everything is the beginning of a new connection."""
    await bus._client._process_err("'some error of the future'")
    await eventually(lambda: bus.reconnects == 1)

    got: list[Msg] = []
    await bus.subscribe(f"s.{run_id}", got.append)
    await bus.publish(f"s.{run_id}", b"alive")
    await eventually(lambda: got)
