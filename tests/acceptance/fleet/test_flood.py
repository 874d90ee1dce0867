"""Ten thousand hostile messages on every subject: daemons and parents stay up, and still do work."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

import nats
import pytest

from nexofork import ForkStatus
from nexofork.bus.failures import PayloadTooLarge
from nexofork.bus.jetstream import call as api
from nexofork.bus.reading import read_subject
from nexofork.errors import BadMessage
from nexofork.wire.messages import Final, decode_event, decode_report
from nexofork.wire.streams import CONSUMER, log_stream
from tests.support.conversation import says
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.fleet import Fleet

DONE = "Scope: all\nResult: done"
HELD = {"text": DONE, "hold": {"gate": "held", "after_events": 3}}
MESSAGES = 10_000
SEED = 20261116

REQUEST: dict[str, Any] = {
    "v": 1,
    "kind": "requested",
    "id": "r",
    "snapshot": {"text": '{"model":"claude-opus-4-8","max_tokens":10,"messages":[{"role":"user","content":"hi"}]}'},
    "directive": "look",
    "headers": {"anthropic-version": "2023-06-01"},
    "query": [["beta", "true"]],
    "parent": {"id": "p", "heartbeat_s": 5.0},
    "timeout_s": 5.0,
    "max_turns": 3,
}
BLOB = {"owner": "parent", "name": "nope", "sha256": "0" * 64, "size": 9, "chunks": 1}
EVENTS = [REQUEST, {"v": 1, "kind": "abort", "id": "a", "note": "n", "by": "b"}]
REPORTS: list[dict[str, Any]] = [
    {"v": 1, "kind": "claimed", "id": "c", "epoch": 1, "daemon": {"name": "d"}},
    {"v": 1, "kind": "turn", "id": "t", "epoch": 1, "turn": 1, "content": {"blob": BLOB}},
    {"v": 1, "kind": "tool_started", "id": "s", "epoch": 1, "turn": 1, "call_id": "x", "name": "Bash"},
    {"v": 1, "kind": "asked", "id": "q", "epoch": 1, "ask_id": "z", "payload": {"text": "t"}, "deadline_s": 1},
    {"v": 1, "kind": "final", "id": "f", "epoch": 1, "status": "completed", "result": {"text": "{}"}},
]
ANSWERS = [
    {"v": 1, "kind": "answer", "id": "a", "data": {"payload": {"blob": BLOB}}},
    {"v": 1, "kind": "message", "id": "m", "text": "hello"},
    {"v": 1, "kind": "abort", "id": "b", "text": "stop"},
]
STRANGE: list[Any] = [
    None, True, -1, 0, 2, 10**40, 1e308, -0.0, "", "x" * 5000, "\ud800", "\x00", [], {}, [[]], {"a": {"b": []}},
]  # fmt: skip
LITERALS = [b"NaN", b"Infinity", b"-Infinity", b"1e999", b'"\\ud800"', b"\xff\xfe", b"[" * 3000, b'{"":' * 3000]
HEADERS: list[dict[str, str] | None] = [
    None, None, None,
    {"Status": "409", "Description": "Consumer Deleted"},
    {"Nats-Sequence": "999999999999", "Nats-Subject": "x"},
    {"Nats-Stream": "FORK", "Nats-Subject": "agent.fork.x.reports", "Nats-Sequence": "nine"},
    {"traceparent": "00-zz", "X" * 200: "y" * 2000},
]  # fmt: skip


def mutated(chance: random.Random, message: dict[str, Any]) -> bytes:
    """A message of which something is wrong, or looks wrong."""
    copy: dict[str, Any] = json.loads(json.dumps(message))
    for _ in range(chance.randint(1, 3)):
        holder = copy
        while isinstance(inner := holder.get(chance.choice([*holder] or [""])), dict) and chance.random() < 0.5:
            holder = inner
        key = chance.choice([*holder] or ["extra"])
        match chance.randrange(4):
            case 0:
                holder.pop(key, None)
            case 1:
                holder[key] = chance.choice(STRANGE)
            case 2:
                holder[f"{key}_"] = chance.choice(STRANGE)
            case _:
                copy["v"] = chance.choice([0, 2, "1", None, 1.0, 99])
    data = json.dumps(copy).encode()
    match chance.randrange(6):
        case 0:
            return data[: chance.randrange(len(data))]
        case 1:
            at = chance.randrange(len(data))
            return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        case 2:
            return data.replace(b"1", chance.choice(LITERALS), 1)
        case 3:
            return chance.choice([b"", b"null", b"[]", b"7", b'"text"', chance.randbytes(40), *LITERALS])
    return data


def unreadable(decode: Callable[[bytes], object], data: bytes) -> bool:
    """Whether nobody can take it for a message."""
    try:
        decode(data)
    except BadMessage:
        return True
    return False


async def flood(fleet: Fleet, victim: str) -> set[str]:
    """Publish the messages, and return the runs that were asked for with nothing that can be read."""
    chance, client = random.Random(SEED), await nats.connect(fleet.url)
    poisoned, pool = set(), fleet.pool
    for number in range(MESSAGES):
        run_id, headers = f"h{number}", chance.choice(HEADERS)
        match chance.randrange(8):
            case 0 | 1:
                data = mutated(chance, chance.choice(EVENTS))
                await client.publish(f"agent.{pool}.{run_id}.events", data, headers=headers)
                if unreadable(decode_event, data):
                    poisoned.add(run_id)
            case 2:
                await client.publish(
                    f"agent.{pool}.{run_id}.reports", mutated(chance, chance.choice(REPORTS)), headers=headers
                )
            case 3:
                owner = chance.choice([run_id, "p"])
                name = chance.choice(["alive", "x", f"n{number}"])
                data = mutated(chance, chance.choice(ANSWERS))
                await client.publish(f"agent.{pool}.{owner}.inbox.{name}", data, headers=headers)
            case 4:  # what nobody can read, on the run that is under way; what can be read is an order
                data = mutated(chance, chance.choice([*EVENTS, *REPORTS]))
                if unreadable(decode_event, data) and unreadable(decode_report, data):
                    kind = chance.choice(["events", "reports"])
                    await client.publish(f"agent.{pool}.{victim}.{kind}", data, headers=headers)
            case 5:
                subject = chance.choice([f"live.{pool}.{victim}.reports", f"delta.{pool}.{victim}"])
                await client.publish(subject, mutated(chance, chance.choice(REPORTS)), headers=headers)
            case 6:
                kind = chance.choice(["presence.local.zz", "warm.zz", f"blob.parent.z{number}.0", "ledger.local.zz"])
                await client.publish(kind, mutated(chance, chance.choice(REPORTS)), headers=headers)
            case _:
                strange = chance.choice(["a$b", "ümlaut", "x" * 200, "a=b", "{}", "@@"])
                await client.publish(f"agent.{pool}.{strange}.events", mutated(chance, REQUEST), headers=headers)
        if number % 500 == 0:
            await client.flush()
    await client.flush()
    await client.close()
    return poisoned


@pytest.mark.timeout(120)
@pytest.mark.breaks_prefix("the hostile requests bring parents of their own, and none")
async def test_a_flood_of_hostile_messages_changes_nothing(fleet: Fleet) -> None:
    """Every unreadable request gets one refusal, none stays in the queue, and all processes go on working."""
    fleet.forged = True
    daemons = await fleet.daemons(2, ask_s=0.5, slots=64)
    async with fleet.connect() as forks:
        params = await fleet.params(says("apple", HELD))
        handle = await forks.fork(params)
        await fleet.sim.begun(2)

        poisoned = await flood(fleet, handle.run_id)
        async with asyncio.timeout(PATIENCE_S):
            while await queued(fleet) > 1:  # noqa: ASYNC110 - what remains is the run that is under way
                await asyncio.sleep(0.1)
        fleet.sim.release("held")
        kept = await handle.result()
        later = await forks.fork_each(params, [f"after {number}" for number in range(20)])
        results = [await each.result() for each in later]

    assert kept.status is ForkStatus.COMPLETED
    assert {result.status for result in results} == {ForkStatus.COMPLETED}
    assert {result.daemon for result in results} == {daemon.name for daemon in daemons}
    assert [daemon.exit_code for daemon in daemons] == [None, None]
    assert not [line for daemon in daemons for line in daemon.log.splitlines() if "failed inside the daemon" in line]
    refusals: dict[str, int] = {}
    for stored in await read_subject(fleet.bus, log_stream(fleet.pool), f"agent.{fleet.pool}.*.reports"):
        run_id = stored.subject.split(".")[2]
        if run_id in poisoned and isinstance(final := decode_report(stored.data), Final):
            assert final.status == "refused"
            refusals[run_id] = refusals.get(run_id, 0) + 1
    assert refusals == dict.fromkeys(poisoned, 1)
    assert len(poisoned) > 500


async def queued(fleet: Fleet) -> int:
    """How many requests wait or are out."""
    info = await api(fleet.bus, f"CONSUMER.INFO.{log_stream(fleet.pool)}.{CONSUMER}")
    return int(info["num_pending"] + info["num_ack_pending"])


async def test_a_fork_that_does_not_fit_a_message_is_refused_where_it_is_made(fleet: Fleet) -> None:
    """Over max_payload: the error names both sizes, nothing is sent, the connection goes on."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        params = await fleet.params("x")
        with pytest.raises(PayloadTooLarge, match="bytes with its headers and the server takes 1048576"):
            await forks.fork(params.with_directive("y" * 1_200_000), run_id="big")
        result = await (await forks.fork(params.with_directive("small"))).result()

    assert result.status is ForkStatus.COMPLETED
    assert await fleet.entries("big") == []
