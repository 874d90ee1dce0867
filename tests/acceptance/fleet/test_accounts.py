"""With accounts on the server a fork works end to end, and abort goes one way by the server's own rules."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkStatus, FunctionTools
from nexofork.bus.failures import NotPermitted
from nexofork.errors import BadMessage
from nexofork.wire import messages as wire
from nexofork.wire.messages import encode
from nexofork.wire.subjects import events, inbox, reports
from tests.support.conversation import call, declared, says
from tests.support.fleet import asked, open_fleet
from tests.support.nats import connected
from tests.support.parents import results_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nexofork.simulator import Simulator
    from tests.support.fleet import Fleet, Nursery
    from tests.support.nats import AccountsServer

DONE = "Scope: all\nResult: done"
HELD = {"text": DONE, "hold": {"gate": "held", "after_events": 3}}


@pytest.fixture
async def guarded(
    accounts_server: AccountsServer, sim: Simulator, nursery: Nursery, tmp_path: Path
) -> AsyncIterator[Fleet]:
    """A fleet whose server tells parents and daemons apart; it has the one pool its configuration names."""
    async with open_fleet(
        (accounts_server.url,),
        sim=sim,
        nursery=nursery,
        folder=tmp_path,
        pool="fork",
        seeds=accounts_server.seeds,
    ) as opened:
        yield opened


async def test_a_fork_works_end_to_end_with_roles(guarded: Fleet) -> None:
    """Request, blobs, claim, tool, reports and result pass between accounts; an abort does, too."""
    await guarded.daemon()
    async with guarded.connect() as forks:
        params = await guarded.params(says("apple", {"tools": [call(command="echo hi")]}, DONE))
        result = await (await forks.fork(params)).result()
        doomed = await forks.fork(params.with_directive(says("birch", HELD)))
        await guarded.sim.begun(4)

        await doomed.abort("enough")
        aborted = await doomed.result()
        attached = await (await forks.attach(doomed.run_id)).result()
        await guarded.sim.closed_early(1)

    assert (result.status, result.tool_uses) == (ForkStatus.COMPLETED, 1)
    assert (aborted.status, aborted.error) == (ForkStatus.ABORTED, "enough")
    assert attached == aborted


async def test_a_tool_of_the_parents_is_served_across_accounts(guarded: Fleet) -> None:
    """Question, claim and answer pass, long ones too; of two who could serve it one does."""
    await guarded.daemon()
    runs: list[int] = []

    async def count(arguments: dict[str, Any]) -> str:
        runs.append(arguments["n"])
        return "x" * int(arguments["n"])

    tools = FunctionTools({"Count": count})
    guarded.captured = await guarded.agent.ask(tools=declared("Count"))
    async with guarded.connect() as forks, guarded.connect() as others:
        directive = says("elm", {"tools": [call("Count", n=50_000)]}, DONE)
        handle = await forks.fork(await guarded.params(directive, tool_dispatcher=tools))
        await others.attach(handle.run_id, tool_dispatcher=tools)
        result = await handle.result()

    assert result.status is ForkStatus.COMPLETED
    assert runs == [50_000]
    assert results_in(guarded.sim, 2)[0]["content"] == "x" * 50_000


async def test_a_parent_steers_its_children_across_accounts(guarded: Fleet) -> None:
    """What the parent's role may do is enough to speak to a child, to list it and to wake it."""
    await guarded.daemon()
    async with guarded.connect(parent_id="steersman") as forks:
        turns = ({"tools": [call(command="true")], "hold": "answer"}, DONE)
        handle = await forks.fork(await guarded.params(says("maple", *turns)))
        await guarded.sim.received(2)
        await handle.message("mind the tests")
        guarded.sim.release("answer")
        result = await handle.result()
        woken = await (await forks.wake(handle.run_id, says("More.", DONE))).result()
        rows = await forks.children()

    assert (result.status, result.undelivered) == (ForkStatus.COMPLETED, ())
    assert woken.status is ForkStatus.COMPLETED
    assert [row.continues for row in rows] == [handle.run_id, None]


async def test_the_children_of_a_parent_that_dies_are_noticed_across_accounts(guarded: Fleet) -> None:
    """Heartbeats reach the daemon while the parent lives, so the child is not aborted."""
    await guarded.daemon()
    parent_id = uuid.uuid4().hex
    async with guarded.connect(parent_id=parent_id, on_parent_gone="abort", heartbeat_s=1.0) as forks:
        handle = await forks.fork(await guarded.params(says("cedar", HELD)))
        await guarded.sim.begun(2)
        await guarded.until_heard(parent_id, beats=5)  # three that are missed would have ended it
        guarded.sim.release("held")
        result = await handle.result()

    assert result.status is ForkStatus.COMPLETED


async def test_a_run_that_no_daemon_takes_ends_with_the_counts_across_accounts(guarded: Fleet) -> None:
    """A parent may look at the queue and at who is there."""
    async with guarded.connect(queue_limit_s=0.3) as forks:
        result = await (await forks.fork(await guarded.params("drum"))).result()

    assert (result.status, result.end) == (ForkStatus.FAILED, "no_daemon")


async def test_a_daemon_cannot_abort_a_run(guarded: Fleet, accounts_server: AccountsServer) -> None:
    """Not by publishing, not by the reply of anything it may ask: the run completes, and its log has no abort."""
    guarded.forged = True
    await guarded.daemon()
    abort = encode(wire.AbortEvent(note="forged", by="daemon"))
    async with (
        guarded.connect() as forks,
        connected(accounts_server.url, seed=accounts_server.seeds["daemon"], request_timeout_s=1.0) as rogue,
    ):
        handle = await forks.fork(await guarded.params(says("ebony", HELD)))
        await guarded.sim.begun(2)
        target = events(handle.run_id)

        for subject in (target, inbox(handle.run_id, "abort"), f"live.fork.{handle.run_id}.events"):
            with pytest.raises(NotPermitted):
                await rogue.request(subject, abort)
        for asked_of, data in (
            (f"$JS.fork.API.DIRECT.GET.FORK.{reports(handle.run_id)}", b""),
            ("$JS.fork.API.DIRECT.GET.FORK", b'{"seq":1}'),
            ("$JS.fork.API.STREAM.MSG.GET.FORK", b'{"seq":1}'),
            ("$JS.fork.API.STREAM.INFO.FORK", b""),
            ("$JS.fork.API.CONSUMER.INFO.FORK.pickup", b""),
            ("$JS.fork.API.CONSUMER.MSG.NEXT.FORK.pickup", b'{"batch":1,"no_wait":true}'),
            ("$JS.fork.API.CONSUMER.CREATE.FORK.x", b'{"stream_name":"FORK","config":{"deliver_subject":"x"}}'),
            (reports("nobody"), abort),
            (f"delta.fork.{handle.run_id}", abort),
            (f"presence.{rogue.identity}.x", abort),
        ):
            await rogue.publish(asked_of, data, reply=target)
        await rogue.flushed()
        await asyncio.sleep(0.2)  # what did not happen announces nothing
        guarded.sim.release("held")
        result = await handle.result()

    assert result.status is ForkStatus.COMPLETED
    messages = [entry.message for entry in await guarded.entries(handle.run_id)]
    assert [message.kind for message in messages if not isinstance(message, BadMessage)] == [
        "requested",
        "claimed",
        "call_started",
        "turn",
        "final",
    ]
    assert len(messages) == 5
    assert asked(guarded.sim, "ebony") == [1]


async def test_a_parent_cannot_report(guarded: Fleet, accounts_server: AccountsServer) -> None:
    """Whoever asks for a run cannot say how it ended, nor take the requests of others."""
    guarded.forged = True
    run_id = uuid.uuid4().hex
    final = encode(wire.Final(epoch=1, status="completed", result=wire.Payload(text="{}")))
    seed = accounts_server.seeds["parent"]
    async with connected(accounts_server.url, seed=seed, request_timeout_s=1.0) as rogue:
        for subject in (
            reports(run_id),
            f"live.fork.{run_id}.reports",
            "$JS.fork.API.CONSUMER.MSG.NEXT.FORK.pickup",
            "blob.daemon.x.0",
            "presence.x.y",
        ):
            with pytest.raises(NotPermitted):
                await rogue.request(subject, final)

    assert await guarded.entries(run_id) == []
