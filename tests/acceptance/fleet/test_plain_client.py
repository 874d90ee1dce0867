"""The protocol for other languages: one plain JSON message is a request, and the reports can be read by anybody."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import nats

from nexofork.wire.streams import log_stream
from tests.support.conversation import call, says
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from tests.support.fleet import Fleet

DONE = "Scope: all\nResult: done"


async def test_one_plain_message_is_a_fork(fleet: Fleet) -> None:
    """A bare client publishes the request, follows the live reports and reads the result, all as JSON."""
    await fleet.daemon("host-a")
    snapshot = await fleet.snapshot()
    seen: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def follow(message: Msg) -> None:
        await seen.put(json.loads(message.data))

    client = await nats.connect(fleet.url)
    await client.subscribe(f"live.{fleet.pool}.plain-1.reports", cb=follow)
    directive = says("apple", {"tools": [call(command="echo from the tool")]}, DONE)
    request = {"v": 1, "kind": "requested", "directive": directive, "snapshot": {"text": snapshot.body.decode()}}

    await client.publish(f"agent.{fleet.pool}.plain-1.events", json.dumps(request).encode())
    got = [await seen.get()]
    async with asyncio.timeout(PATIENCE_S):
        while got[-1]["kind"] != "final":
            got.append(await seen.get())
    stored = await client.jetstream(domain="fork").get_last_msg(
        log_stream(fleet.pool), f"agent.{fleet.pool}.plain-1.reports", direct=False
    )
    await client.close()

    assert [report["kind"] for report in got] == [
        "claimed",
        "call_started",
        "turn",
        "tool_started",
        "tool_finished",
        "call_started",
        "turn",
        "final",
    ]
    assert {report["v"] for report in got} == {1}
    assert got[0]["daemon"]["name"] == "host-a"
    result = json.loads(got[-1]["result"]["text"])
    assert (got[-1]["status"], result["status"], result["final_text"]) == ("completed", "completed", DONE)
    assert stored.data is not None
    assert json.loads(stored.data) == got[-1]


async def test_a_plain_abort_ends_a_plain_run(fleet: Fleet) -> None:
    """The second message of the protocol: an abort on the same subject, without compare-and-set."""
    await fleet.daemon()
    snapshot = await fleet.snapshot()
    client = await nats.connect(fleet.url)
    held = says("birch", {"text": DONE, "hold": {"gate": "held", "after_events": 3}})
    request = {"v": 1, "kind": "requested", "directive": held, "snapshot": {"text": snapshot.body.decode()}}
    await client.publish(f"agent.{fleet.pool}.plain-2.events", json.dumps(request).encode())
    await fleet.sim.begun(2)

    await client.publish(f"agent.{fleet.pool}.plain-2.events", b'{"v":1,"kind":"abort","note":"by hand"}')
    await fleet.sim.closed_early(1)
    await client.close()
    async with fleet.connect() as forks:
        result = await (await forks.attach("plain-2")).result()

    assert (result.status, result.error) == ("aborted", "by hand")
