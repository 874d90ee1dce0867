"""The snapshot travels once; when it is lost or wrong, the parent is asked for it again."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkParams, ForkStatus
from nexofork.bus.jetstream import call as api
from nexofork.bus.jetstream import store
from nexofork.bus.provisioning import provision
from nexofork.wire import messages as wire
from nexofork.wire.streams import BLOBS
from tests.support.conversation import MARK, request, says, text
from tests.support.fleet import open_fleet
from tests.support.nats import SMALL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nexofork.bus.embedded import EmbeddedServer
    from nexofork.simulator import Simulator
    from tests.support.fleet import Fleet, Nursery, RestartableServer

LONG = 112_000
"""Tokens of a snapshot of some 450 KB."""


@pytest.fixture
async def own(restartable: RestartableServer, sim: Simulator, nursery: Nursery, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet on a server whose blobs the test may take away."""
    async with open_fleet((restartable.url,), sim=sim, nursery=nursery, folder=tmp_path) as opened:
        yield opened


async def lose_blobs(fleet: Fleet) -> None:
    """Let every stored content disappear, as if it had expired."""
    await api(fleet.bus, f"STREAM.DELETE.{BLOBS}")
    await provision(fleet.bus, pool=fleet.pool, lease_s=None, max_bytes=SMALL)


async def requested(fleet: Fleet, run_id: str) -> wire.Requested:
    """What was asked for."""
    message = (await fleet.entries(run_id))[0].message
    assert isinstance(message, wire.Requested)
    return message


async def asked_for(fleet: Fleet, run_id: str) -> set[str]:
    """Which parts of the request were asked for again."""
    request = await requested(fleet, run_id)
    asks = [report.payload for report in await fleet.reports(run_id) if isinstance(report, wire.Asked)]
    return {part for part in ("snapshot", "reply") if getattr(request, part) in asks}


async def test_a_lost_snapshot_is_asked_for_and_answered(own: Fleet) -> None:
    """The daemon asks on the log, the parent uploads once more, the run completes."""
    async with own.connect() as forks:
        handle = await forks.fork(await own.params("apple"))
        await lose_blobs(own)

        await own.daemon()
        result = await handle.result()

    assert (result.status, result.attempts) == (ForkStatus.COMPLETED, 1)
    assert await asked_for(own, handle.run_id) == {"snapshot", "reply"}


async def test_a_lost_snapshot_of_a_parent_that_is_gone_fails_the_run(own: Fleet) -> None:
    """Nobody answers, so after the deadline the run ends and says which blob was missing."""
    parent, (run_id,) = await own.parent_process(["birch"])
    await parent.kill()
    await lose_blobs(own)

    await own.daemon(ask_s=0.5)
    async with own.connect() as forks:
        result = await (await forks.attach(run_id)).result()

    assert (result.status, result.end) == (ForkStatus.FAILED, "MissingBlob")
    assert "is not stored" in (result.error or "")


async def test_a_snapshot_that_was_replaced_is_noticed_and_asked_for(own: Fleet) -> None:
    """Other bytes under the name do not pass the digest; the parent's answer goes under another name."""
    async with own.connect() as forks:
        handle = await forks.fork(await own.params("cedar"))
        await lose_blobs(own)
        blob = (await requested(own, handle.run_id)).snapshot.blob
        assert blob is not None
        await store(own.bus, f"blob.parent.{blob.name}.0", b"x" * blob.size)

        await own.daemon()
        result = await handle.result()

    assert result.status is ForkStatus.COMPLETED
    assert "snapshot" in await asked_for(own, handle.run_id)


async def test_an_answer_that_is_nonsense_fails_the_run_and_nothing_else(own: Fleet) -> None:
    """Somebody else answers with garbage; the run ends with the first problem, the daemon goes on."""
    parent, (run_id,) = await own.parent_process(["drum"])
    await parent.kill()
    await lose_blobs(own)
    daemon = await own.daemon(ask_s=5)
    await own.until_logged(run_id, lambda report: isinstance(report, wire.Asked))
    ask = next(report for report in await own.reports(run_id) if isinstance(report, wire.Asked))

    await store(own.bus, f"agent.{own.pool}.{run_id}.inbox.{ask.ask_id}", b'{"kind":"answer","data":{"payload":7}}')
    async with own.connect() as forks:
        result = await (await forks.attach(run_id)).result()

    assert (result.status, result.end, result.attempts) == (ForkStatus.FAILED, "MissingBlob", 1)
    assert daemon.exit_code is None


def traffic(server: EmbeddedServer) -> dict[str, int]:
    """What went through the server so far."""
    with urllib.request.urlopen(f"{server.monitor_url}/varz", timeout=5) as response:
        shown = json.load(response)
    return {key: int(shown[key]) for key in ("in_bytes", "out_bytes")}


def since(server: EmbeddedServer, before: dict[str, int]) -> dict[str, int]:
    """What went through since then."""
    return {key: value - before[key] for key, value in traffic(server).items()}


@pytest.mark.alone
async def test_many_children_share_one_upload_and_one_fetch_per_daemon(
    fleet: Fleet, nats_server: EmbeddedServer
) -> None:
    """Forty children of a 450 KB snapshot cost one upload, two fetches and a few kilobytes each."""
    count = 40
    await fleet.daemons(2, slots=32)
    snapshot = await fleet.agent.ask(request(tokens=LONG))
    size = len(snapshot.body)
    async with fleet.connect() as forks:
        before = traffic(nats_server)

        params = ForkParams(cache_safe=snapshot, prompt_messages="x")
        handles = await forks.fork_each(params, [f"part {number}" for number in range(count)])
        results = [await handle.result() for handle in handles]
        spent = since(nats_server, before)

    assert {result.status for result in results} == {ForkStatus.COMPLETED}
    assert len({result.daemon for result in results}) == 2
    assert size < spent["in_bytes"] < size + count * 8_000
    assert 2 * size < spent["out_bytes"] < 2 * size + count * 12_000


async def test_a_later_turn_travels_as_what_it_added(fleet: Fleet, nats_server: EmbeddedServer) -> None:
    """The parent goes on and forks again: the second snapshot costs a few kilobytes, not its length."""
    await fleet.daemon()
    first_body = request(tokens=LONG, answer={"text": "ok"})
    first = await fleet.agent.ask(first_body)
    more: list[dict[str, Any]] = [
        {"role": "assistant", "content": [{"type": "text", "text": "ok"}]},
        {"role": "user", "content": [text(says("And now?", {"text": "fine"}), mark=MARK)]},
    ]
    second = await fleet.agent.ask(first_body | {"messages": [*first_body["messages"], *more]})
    async with fleet.connect() as forks:
        params = ForkParams(cache_safe=first, prompt_messages="ebony")
        await (await forks.fork(params)).result()
        before = traffic(nats_server)

        handle = await forks.fork(replace(params, cache_safe=second))
        result = await handle.result()
        spent = since(nats_server, before)

    assert result.status is ForkStatus.COMPLETED
    assert (await requested(fleet, handle.run_id)).snapshot.delta is not None
    assert spent["in_bytes"] + spent["out_bytes"] < 40_000
    assert len(second.body) > 400_000
