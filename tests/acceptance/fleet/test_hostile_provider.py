"""A daemon whose provider is broken or hostile: runs end with a reason, and neither memory, bills nor keys suffer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nexofork import ForkStatus
from nexofork.bus.ledger import read_ledger
from nexofork.core.reply import REPLY_BYTES
from tests.integration.rawserver import Flood, plain_response, raw_server

if TYPE_CHECKING:
    from tests.support.fleet import Fleet
    from tests.support.processes import Process

SECRET = "sk-ant-api03-Zk29fjQ0aLw8xTnB-4vR7yHcE1sPdMuGqXoJbW5"
SSE = "content-type: text/event-stream"
CLOSE = "connection: close"
IMPOSSIBLE = [-5, 1.5, True, "7", 10**9, 10**30, [1], float("nan")]


def message(start: object, end: object) -> bytes:
    """A whole stream with these usages."""
    events = [
        {"type": "message_start", "message": {"id": "msg_1", "model": "m", "usage": start}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Done."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": end},
        {"type": "message_stop"},
    ]
    return plain_response(b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events), SSE, CLOSE)


def peak_bytes(process: Process) -> int:
    """The most memory a process ever had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


async def test_a_bomb_ends_the_run_and_leaves_the_daemon_its_memory(fleet: Fleet) -> None:
    """The run fails under the error's name, the ledger has the call, and the daemon takes the next fork."""
    head = f"HTTP/1.1 200 OK\r\n{SSE}\r\nconnection: close\r\n\r\ndata: ".encode()
    bomb = Flood(head=head, piece=b"x" * 2**20, times=400)
    async with raw_server(bomb, message({"input_tokens": 5}, {"output_tokens": 2})) as server, fleet.connect() as forks:
        daemon = await fleet.daemon(base_url=server.url)
        before = peak_bytes(daemon)
        result = await (await forks.fork(await fleet.params("Look."))).result()
        grew = peak_bytes(daemon) - before
        following = await (await forks.fork(await fleet.params("Look again."))).result()

        assert (result.status, result.end) == (ForkStatus.FAILED, "ReplyTooLarge")
        assert "The answer is too large" in (result.error or "")
        assert grew < 3 * REPLY_BYTES
        assert following.ok
        (booked,) = [one for one in await read_ledger(fleet.bus) if one.run_id == result.run_id]
        assert (booked.outcome, booked.billed) == ("unconfirmed", None)
        assert "The answer is too large" in booked.error


@pytest.mark.parametrize("late", [False, True], ids=["start", "end"])
async def test_counts_that_cannot_be_true_are_not_booked(fleet: Fleet, late: bool) -> None:
    """Each run fails, its bill is what was known before, and the ledger says that there may be more."""
    good: dict[str, object] = {"input_tokens": 5}
    bad = [{**good, "output_tokens": count} for count in IMPOSSIBLE]
    async with (
        raw_server(*(message(good if late else usage, usage) for usage in bad)) as server,
        fleet.connect() as forks,
    ):
        await fleet.daemon(base_url=server.url)
        results = [await (await forks.fork(await fleet.params("Look."))).result() for _ in bad]

        assert len(server.heads) == len(bad)
        ledger = {one.run_id: one for one in await read_ledger(fleet.bus)}
        for result in results:
            assert (result.status, result.end) == (ForkStatus.FAILED, "ImpossibleUsage")
            assert "output_tokens" in (result.error or "")
            assert (result.usage.prompt_tokens, result.usage.output_tokens) == (5 if late else 0, 0)
            booked = ledger[result.run_id]
            assert (booked.outcome, booked.billed) == ("unconfirmed", (5, 0, 0, 0, 0) if late else None)
            assert "cannot be true" in booked.error


async def test_a_key_that_the_server_repeats_is_nowhere_to_be_found(fleet: Fleet) -> None:
    """Neither in the result, the ledger, the run's log nor the daemon's own log; the words around it are."""
    said = f"invalid x-api-key: {SECRET} (starts with {SECRET[:14]}, ends with {SECRET[-10:]})\n\x1b[31mforged"
    refusal = json.dumps({"error": {"type": "authentication_error", "message": said}}).encode()
    answer = plain_response(refusal, f"request-id: {SECRET}", CLOSE, status="401 Unauthorized")
    async with raw_server(answer) as server, fleet.connect() as forks:
        daemon = await fleet.daemon(base_url=server.url, key=SECRET)
        result = await (await forks.fork(await fleet.params("Look."))).result()

        assert result.end == "Unauthorized"
        assert "invalid x-api-key" in (result.error or "")
        booked = [one.model_dump_json() for one in await read_ledger(fleet.bus) if one.run_id == result.run_id]
        kept = [repr(result), *booked, *map(repr, await fleet.reports(result.run_id)), repr(daemon.said)]
        assert booked
        for text in kept:
            assert not [at for at in range(len(SECRET) - 8) if SECRET[at : at + 9] in text]
