"""Steps that meet a NATS which is away: they are tried again, say so, store nothing twice, and end with what to do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nexofork.bus.blobs import BlobStore
from nexofork.bus.connection import BusSettings, open_bus
from nexofork.bus.jetstream import PLAIN_API
from nexofork.bus.provisioning import provision
from nexofork.bus.reading import read_subject
from nexofork.bus.run_log import RunLog
from nexofork.client.answers import put_answer, reply_of
from nexofork.client.child_messages import post_letter, written
from nexofork.errors import BusError, ForkRefused
from nexofork.policy.permissions import PermissionAnswer
from nexofork.wire.messages import AbortEvent, Requested
from nexofork.wire.streams import inbox_stream
from nexofork.wire.subjects import inbox_filter
from tests.support.nats import SMALL, Proxy, ServerProcess, a_request, connected, running
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork.bus.connection import Bus
    from nexofork.bus.embedded import EmbeddedServer
    from tests.support.fleet import RestartableServer
    from tests.support.nats import Cluster


@pytest.mark.parametrize("step", ["store", "fetch", "request", "abort", "message"])
async def test_a_step_waits_for_a_server_that_restarts(
    restartable: RestartableServer, run_id: str, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It says once what it waits for, goes on when the server is back, and says that too."""
    async with connected(restartable.url, request_timeout_s=0.2) as own:
        await provision(own, max_bytes=SMALL)
        blobs, log = BlobStore(own, "parent"), RunLog(own, run_id)
        known = await blobs.put(b"known")
        if step != "request":
            await log.request(a_request())
        restartable.down()
        async with asyncio.TaskGroup() as tasks:
            match step:
                case "store":
                    tasks.create_task(blobs.put(b"new"))
                case "fetch":
                    tasks.create_task(blobs.get(known))
                case "request":
                    tasks.create_task(log.request(a_request()))
                case "abort":
                    tasks.create_task(log.abort(AbortEvent()))
                case _:
                    tasks.create_task(post_letter(own, run_id, written("look"), pool="fork"))
            await eventually(lambda: "waiting for up to 60 s" in caplog.text)
            restartable.up()
            await restartable.ready()

    assert "NATS answers again" in caplog.text
    assert len([one for one in caplog.messages if one.startswith("waiting")]) <= 3, "one line for each kind of failure"


async def test_a_step_that_waited_in_vain_says_what_to_do(restartable: RestartableServer, run_id: str) -> None:
    """The error names the subject, how long it was tried and where to look; a run that may exist is named."""
    async with connected(restartable.url, request_timeout_s=0.1, patience_s=0.3) as own:
        await provision(own, max_bytes=SMALL)
        restartable.down()
        with pytest.raises(BusError, match=r"'blob\.parent\..*It was tried for .*nexofork doctor"):
            await BlobStore(own, "parent").put(b"content")
        with pytest.raises(BusError, match=rf"It was tried for .*{run_id} may have been asked for.*nexofork ps"):
            await RunLog(own, run_id).request(a_request())


@pytest.mark.parametrize("what", ["message", "permission"])
async def test_what_an_inbox_took_and_did_not_confirm_is_there_once(
    nats_server: EmbeddedServer, bus: Bus, run_id: str, what: str
) -> None:
    """The answer of the server is lost: the sender finds its own message and is content; another one is refused."""
    await RunLog(bus, run_id).request(a_request())
    letter, permission = written("look again"), reply_of(PermissionAnswer(allow=True), by="me")
    async with Proxy(nats_server.url) as wire, connected(wire.url, request_timeout_s=30) as own:
        wire.hold_answers_to(b"look again" if what == "message" else b'"allow"')
        async with asyncio.TaskGroup() as tasks:
            if what == "message":
                tasks.create_task(post_letter(own, run_id, letter, pool="fork"))
            else:
                tasks.create_task(put_answer(own, run_id, "a1", permission, pool="fork"))
            await wire.withheld.wait()
            wire.cut()

    assert len(await read_subject(bus, inbox_stream(), inbox_filter(run_id))) == 1
    if what == "permission":
        with pytest.raises(ForkRefused, match="the first answer stands"):
            await put_answer(bus, run_id, "a1", reply_of(PermissionAnswer(allow=False), by="you"), pool="fork")


async def test_steps_wait_for_a_cluster_without_a_leader(
    cluster: Cluster, run_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of three servers are down when a blob is stored and a run is asked for and aborted: each happens.

    An abort may be stored twice, because it does not wait for ever for a write that is not decided; the first counts.
    """
    names = list(cluster.servers)
    async with open_bus(BusSettings(urls=(cluster.urls[0],), request_timeout_s=0.5)) as own:
        await provision(own, max_bytes=SMALL)
        blobs, doomed = BlobStore(own, "parent"), RunLog(own, f"{run_id}-doomed")
        await doomed.request(a_request())
        for name in names[1:]:
            cluster.servers[name].kill()
        try:
            async with asyncio.TaskGroup() as tasks:
                storing = tasks.create_task(blobs.put(b"content"))
                tasks.create_task(RunLog(own, run_id).request(a_request()))
                tasks.create_task(doomed.abort(AbortEvent()))
                await eventually(lambda: "waiting for up to 60 s" in caplog.text)
                for name in names[1:]:
                    cluster.servers[name].spawn()
        finally:
            for name in names[1:]:
                if cluster.servers[name].ended():
                    cluster.servers[name].spawn()
                await eventually(cluster.servers[name].ready)
        kinds = [[type(one.message) for one in await log.entries()] for log in (RunLog(own, run_id), doomed)]

        assert await BlobStore(own, "daemon").get(storing.result()) == b"content"
    assert kinds[0] == [Requested]
    assert kinds[1] in ([Requested, AbortEvent], [Requested, AbortEvent, AbortEvent])


async def test_a_server_that_is_late_is_waited_for_by_who_says_so(tmp_path: Path) -> None:
    """A server without the domain of the fleet, and not there yet: it is found, and under its own prefix."""
    server = ServerProcess("host: 127.0.0.1\nport: -1\n", folder=tmp_path / "first")
    with running(server):
        url = server.url
    port = url.rpartition(":")[2]
    heard: list[str] = []
    late = ServerProcess(
        f'host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: "{tmp_path / "store"}" }}\n', folder=tmp_path / "late"
    )
    settings = BusSettings(urls=(url,), unreached_s=60.0)

    async def connect() -> str:
        async with open_bus(settings, told=heard.append) as own:
            return own.api

    try:
        async with asyncio.TaskGroup() as tasks:
            connecting = tasks.create_task(connect())
            await eventually(lambda: heard)
            late.spawn()
    finally:
        late.kill()

    assert connecting.result() == PLAIN_API
    assert "No NATS server was reached" in heard[0]
    assert heard[-1] == ""
