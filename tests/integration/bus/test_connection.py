from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nexofork.bus.connection import Bus, BusSettings, BusUnreachable, Msg, PayloadTooLarge, open_bus
from nexofork.bus.embedded import EmbeddedServer
from nexofork.bus.failures import BusDenied, ConnectionLost, NoAnswer, NoResponders, NotPermitted
from nexofork.errors import BusError
from tests.support.nats import Proxy, ServerProcess, connected, running
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_request_is_answered(bus: Bus, run_id: str) -> None:
    """What a subscriber replies comes back with its headers."""

    async def answer(msg: Msg) -> None:
        await bus.publish(msg.reply, msg.data.upper(), {"Mood": msg.headers["Mood"]})

    await bus.subscribe(f"echo.{run_id}", answer)

    reply = await bus.request(f"echo.{run_id}", b"hello", headers={"Mood": "fine"})

    assert (reply.data, reply.headers["Mood"]) == (b"HELLO", "fine")


async def test_nobody_there_is_said_at_once(bus: Bus, run_id: str) -> None:
    """A subject without listeners fails by name, long before the timeout."""
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(NoResponders, match=f"nobody.{run_id}") as caught:
            await bus.request(f"nobody.{run_id}", b"", timeout_s=2 * PATIENCE_S)

    assert caught.value.retryable


async def test_a_silent_listener_is_a_timeout_with_its_subject(bus: Bus, run_id: str) -> None:
    """Without an answer the request ends after its own limit."""
    await bus.subscribe(f"deaf.{run_id}", lambda _: None)

    with pytest.raises(NoAnswer, match=f"deaf.{run_id}.*0.1 s"):
        await bus.request(f"deaf.{run_id}", b"", timeout_s=0.1)


async def test_no_server_is_named_with_what_to_do() -> None:
    """A wrong URL ends with the connect timeout and says which URL."""
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(BusUnreachable, match=r"nats://127.0.0.1:1.*nexofork serve") as caught:
            async with open_bus(BusSettings(urls=("nats://127.0.0.1:1",), connect_timeout_s=2.0)):
                pass

    assert caught.value.urls == ("nats://127.0.0.1:1",)


async def test_a_server_that_says_nothing_is_unreachable() -> None:
    """Something that accepts and stays silent does not hold us longer than the connect timeout."""

    async def stare(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(stare, "127.0.0.1", 0)
    url = f"nats://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    async with silent:
        with pytest.raises(BusUnreachable, match=url):
            async with open_bus(BusSettings(urls=(url,), connect_timeout_s=0.3)):
                pass


@pytest.mark.parametrize("url", ["nats://", "nats://h:notaport", "http://[", ""])
async def test_a_url_that_is_none_is_refused(url: str) -> None:
    """A malformed URL is an error of the bus, not of the library below."""
    with pytest.raises(BusError):
        async with open_bus(BusSettings(urls=(url,), connect_timeout_s=0.5)):
            pass


@pytest.mark.parametrize("text", ["", "nonsense", "SUNONSENSE", "-----BEGIN NATS USER JWT-----\n"])
async def test_a_credentials_file_without_a_seed_is_refused(
    nats_server: EmbeddedServer, tmp_path: Path, text: str
) -> None:
    """A broken file is said to be broken before anything is sent."""
    broken = tmp_path / "broken.creds"
    broken.write_text(text)

    with pytest.raises(BusDenied, match=r"broken\.creds"):
        async with open_bus(BusSettings(urls=(nats_server.url,), creds=broken)):
            pass


async def test_too_much_with_headers_is_refused_before_it_is_sent(bus: Bus, run_id: str) -> None:
    """The header block counts, and the connection stays usable."""
    got: list[Msg] = []
    await bus.subscribe(f"big.{run_id}", got.append)
    header = {"K": "v"}
    block = len("NATS/1.0\r\nK: v\r\n\r\n")

    with pytest.raises(PayloadTooLarge) as caught:
        await bus.publish(f"big.{run_id}", b"x" * (bus.max_payload - block + 1), header)
    await bus.publish(f"big.{run_id}", b"x" * (bus.max_payload - block), header)
    await bus.flushed()
    await eventually(lambda: got)

    assert (caught.value.size, caught.value.limit) == (bus.max_payload + 1, bus.max_payload)
    assert [len(msg.data) for msg in got] == [bus.max_payload - block]
    assert bus.reconnects == 0


async def test_a_handler_that_fails_keeps_its_subscription(bus: Bus, run_id: str) -> None:
    """Neither an exception nor a cancellation from inside ends the interest."""
    got: list[bytes] = []

    async def handle(msg: Msg) -> None:
        got.append(msg.data)
        if msg.data == b"raise":
            raise ValueError("on purpose")
        if msg.data == b"cancel":
            raise asyncio.CancelledError

    await bus.subscribe(f"fragile.{run_id}", handle)
    for data in (b"raise", b"cancel", b"fine"):
        await bus.publish(f"fragile.{run_id}", data)

    await eventually(lambda: got == [b"raise", b"cancel", b"fine"])


async def test_flushed_means_that_the_server_has_the_subscription(nats_server: EmbeddedServer, run_id: str) -> None:
    """After it, a message published on another connection is not missed, a hundred times in a row."""
    got: list[bytes] = []
    async with connected(nats_server.url) as one, connected(nats_server.url) as other:
        for number in range(100):
            await one.subscribe(f"s.{run_id}.{number}", lambda msg: got.append(msg.data))
            await one.flushed()
            await other.publish(f"s.{run_id}.{number}", b"%d" % number)
        await eventually(lambda: len(got) == 100)


async def test_a_cancelled_flush_leaves_the_connection_alive(bus: Bus, run_id: str) -> None:
    """A late answer to a cancelled ping must not end the read loop."""
    for _ in range(5):
        try:
            async with asyncio.timeout(0):
                await bus.flushed()
        except TimeoutError:
            pass
    await bus.flushed()
    with pytest.raises(NoResponders):
        await bus.request(f"nobody.{run_id}", b"")
    assert bus.reconnects == 0


async def test_subscriptions_survive_a_cut_wire(nats_server: EmbeddedServer, run_id: str) -> None:
    """After a reconnect messages arrive again and whoever asked for it is told."""
    got: list[bytes] = []
    restored = asyncio.Event()
    async with Proxy(nats_server.url) as wire, connected(wire.url) as one, connected(nats_server.url) as other:
        await one.subscribe(f"s.{run_id}", lambda msg: got.append(msg.data))
        await one.flushed()
        forget = one.on_reconnect(restored.set)

        wire.cut()
        await restored.wait()
        await other.publish(f"s.{run_id}", b"after")
        await eventually(lambda: got)
        forget()

        assert got == [b"after"]
        assert one.reconnects == 1


async def test_a_request_under_way_fails_when_the_wire_breaks(nats_server: EmbeddedServer, run_id: str) -> None:
    """Nobody waits out a timeout for an answer that cannot come any more."""
    asked = asyncio.Event()
    async with Proxy(nats_server.url) as wire, connected(wire.url) as one, connected(nats_server.url) as other:
        await other.subscribe(f"slow.{run_id}", lambda _: asked.set())
        await other.flushed()

        async def cut() -> None:
            await asked.wait()
            wire.cut()

        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(cut())
            with pytest.raises(ConnectionLost):
                await one.request(f"slow.{run_id}", b"", timeout_s=2 * PATIENCE_S)


async def test_a_request_waits_for_the_connection_to_come_back(tmp_path: Path) -> None:
    """Asked while the server is away, it is sent when the server is there again."""
    async with EmbeddedServer(store_dir=tmp_path) as server, connected(server.url) as one:
        port = int(server.url.rpartition(":")[2])
        server.server.kill()
        await eventually(lambda: not one.connected)

        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(one.request("$JS.fork.API.INFO", b"", timeout_s=10))
            async with EmbeddedServer(port=port):
                reply = await answer

    assert b"account_info_response" in reply.data


async def test_a_lost_connection_is_closed_without_an_error(tmp_path: Path) -> None:
    """What could not be sent any more does not fail the end of a block, and no task is left."""
    before = asyncio.all_tasks()
    async with EmbeddedServer(store_dir=tmp_path) as server, connected(server.url) as one:
        server.server.kill()
        await eventually(lambda: not one.connected)
        await one.publish("x", b"too late")

    assert not one.connected
    await eventually(lambda: asyncio.all_tasks() == before)


async def test_after_the_end_everything_is_refused(nats_server: EmbeddedServer) -> None:
    """A closed connection says so."""
    async with connected(nats_server.url) as one:
        pass

    assert not one.connected
    with pytest.raises(BusError, match="closed"):
        await one.request("x", b"")
    with pytest.raises(BusError, match="closed"):
        await one.publish("x", b"")
    with pytest.raises(BusError, match="closed"):
        await one.subscribe("x", print)


async def test_how_full_a_stream_is(pool_bus: Bus, pool: str) -> None:
    """The fill level is the share of the stream's bytes in its limit, asked for at most once a second."""
    empty = await pool_bus.stream_fill(f"FORK_POOL_{pool}")
    for number in range(10):
        await pool_bus.request(f"agent.{pool}.r{number}.reports", b"x" * 700_000)
    cached = await pool_bus.stream_fill(f"FORK_POOL_{pool}")
    pool_bus._fill.clear()

    assert (empty, cached) == (0.0, 0.0)
    assert 0.10 < await pool_bus.stream_fill(f"FORK_POOL_{pool}") < 0.11


async def test_an_inbox_that_is_not_permitted_is_said(tmp_path: Path) -> None:
    """Where no answer can ever arrive, a request fails by that reason and not by time."""
    strict = (
        'host: 127.0.0.1\nport: -1\nhttp: "127.0.0.1:-1"\n'
        'authorization { users: [ { user: u, password: p, permissions: { subscribe: { deny: "_INBOX.>" } } } ] }\n'
    )
    with running(ServerProcess(strict, folder=tmp_path)) as server:
        async with connected(server.url.replace("nats://", "nats://u:p@")) as own:
            await own.subscribe("service", lambda _: None)
            for _ in range(2):
                with pytest.raises(NotPermitted, match=r"subscription to '_INBOX\.local"):
                    await own.request("service", b"", timeout_s=20)


async def test_a_cancelled_wait_for_the_end_of_a_connection_does_not_end_whoever_closes_it(
    nats_server: EmbeddedServer,
) -> None:
    """The client library waits for it in a task of its own, which it cancels when it reconnects."""
    async with connected(nats_server.url) as bus, asyncio.TaskGroup() as tasks:
        transport = bus._client._transport
        assert transport is not None
        waiting = tasks.create_task(transport.wait_closed())  # type: ignore[no-untyped-call]
        await asyncio.sleep(0)
        waiting.cancel()

    assert not bus.connected
