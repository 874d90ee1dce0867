"""A daemon whose key belongs to another workspace shares no cache with the parent: said by name, and not repeated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nexofork import ForkParams, ForkStatus
from nexofork.bus.blobs import BlobStore
from nexofork.bus.jetstream import store
from nexofork.bus.run_log import RunLog
from nexofork.wire import messages as wire
from nexofork.wire.subjects import inbox
from tests.support.conversation import says

if TYPE_CHECKING:
    from tests.support.fleet import Fleet

DONE = "Scope: all\nResult: done"
OTHER = "sk-sim-other"


async def test_the_first_response_of_a_foreign_workspace_is_named_and_the_daemon_claims_no_more(fleet: Fleet) -> None:
    """One child pays to find out; the next ones wait for a daemon that shares the parent's cache."""
    await fleet.daemon("foreign", key=OTHER)
    async with fleet.connect() as forks:
        params = await fleet.params("apple")
        first = await (await forks.fork(params)).result()
        later = [await forks.fork(params.with_directive(f"birch {number}")) for number in range(3)]
        await fleet.until_present(lambda daemon: daemon.workspace_id == "wrkspc_other")
        await fleet.daemon("right")
        results = [await handle.result() for handle in later]

    assert (first.status, first.daemon) == (ForkStatus.COMPLETED, "foreign")
    assert first.cache is not None
    assert first.cache.cause == "workspace"
    assert "wrkspc_team" in first.cache.detail
    assert "wrkspc_other" in first.cache.detail
    assert first.to_json()["miss_cause"] == "workspace"
    assert {(result.status, result.daemon) for result in results} == {(ForkStatus.COMPLETED, "right")}
    assert all(result.attempts == 1 for result in results)
    assert sum(record.workspace == "wrkspc_other" for record in fleet.sim.log) == 1


async def test_warmth_in_another_workspace_is_not_counted_on(fleet: Fleet) -> None:
    """Once a daemon knows whom it bills, it shares a board's word only with daemons of the same workspace."""
    await fleet.daemon("right")
    await fleet.daemon("foreign", key=OTHER)
    snapshot = replace(await fleet.snapshot(), workspace_id=None, sent_at=None)
    params = ForkParams(cache_safe=snapshot, prompt_messages="x", allow_cache_break=True)
    slow = {"text": DONE, "delay_s": 0.3}
    async with fleet.connect() as forks:
        learning = await forks.fork_each(params, [says(f"apple {n}", slow) for n in range(20)])
        assert {(await handle.result()).daemon for handle in learning} == {"right", "foreign"}
        before = fleet.sim.request_count
        other = replace(params, cache_safe=await fleet.agent.ask(system=[{"type": "text", "text": "Another agent."}]))
        other = replace(other, cache_safe=replace(other.cache_safe, workspace_id=None, sent_at=None))
        handles = await forks.fork_each(other, [says(f"birch {n}", slow) for n in range(20)])
        assert {(await handle.result()).daemon for handle in handles} == {"right", "foreign"}

    calls = [record for record in fleet.sim.log[before + 1 :] if record.workspace == "wrkspc_other"]
    assert sum(record.write_5m > 1_000 for record in calls) == 1


async def test_a_run_claimed_before_the_workspace_was_known_is_handed_over(fleet: Fleet) -> None:
    """It had not called the model yet, so it goes to a daemon that shares the cache instead of being refused."""
    await fleet.daemon("foreign", key=OTHER, ask_s=20)
    snapshot = await fleet.snapshot()
    blobs = BlobStore(fleet.bus, "parent")
    unknown = wire.BlobRef(owner="parent", name="later", sha256="0" * 64, size=1, chunks=1)
    assert snapshot.reply is not None
    request = wire.Requested(
        snapshot=wire.Payload(blob=unknown),
        reply=wire.Payload(text=snapshot.reply.to_wire().decode()),
        directive="cedar",
        workspace_id=snapshot.workspace_id,
    )
    await RunLog(fleet.bus, "waiting", pool=fleet.pool).request(request)
    await fleet.until_logged("waiting", lambda report: isinstance(report, wire.Asked))
    async with fleet.connect() as forks:
        await (await forks.fork(await fleet.params(says("drum", DONE)))).result()
        await fleet.daemon("right")

        await answer(fleet, blobs, snapshot.body)
        await fleet.until_logged("waiting", lambda report: isinstance(report, wire.HandedOver))
        await fleet.until_logged("waiting", lambda report: isinstance(report, wire.Asked) and report.epoch == 2)
        await answer(fleet, blobs, snapshot.body)
        result = await (await forks.attach("waiting")).result()

    assert (result.status, result.daemon) == (ForkStatus.COMPLETED, "right")


async def answer(fleet: Fleet, blobs: BlobStore, body: bytes) -> None:
    """Give the daemon what it asked for last."""
    asks = [report for report in await fleet.reports("waiting") if isinstance(report, wire.Asked)]
    payload = wire.Payload(blob=await blobs.put(body))
    data = {"payload": payload.model_dump(exclude_none=True)}
    message = wire.encode(wire.Answer(kind="answer", data=data))
    await store(fleet.bus, inbox("waiting", asks[-1].ask_id, fleet.pool), message)
