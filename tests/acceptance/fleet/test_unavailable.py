"""What a parent is told when there is no daemon, no server, no permission or no room."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

import nkeys  # type: ignore[import-untyped]
import pytest

from nexofork import ForkStatus
from nexofork.bus.connection import BusDenied, BusUnreachable
from nexofork.bus.failures import PayloadTooLarge, StoreFull
from nexofork.client.fleet import connect
from nexofork.wire import messages as wire
from nexofork.wire.streams import log_stream
from nexofork.wire.subjects import reports
from tests.support.conversation import says
from tests.support.fleet import finals, open_fleet
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nexofork.simulator import Simulator
    from tests.support.fleet import Fleet, Nursery, RestartableServer
    from tests.support.nats import AccountsServer

DONE = "Scope: all\nResult: done"
HELD = {"text": DONE, "hold": {"gate": "held", "after_events": 3}}
ROOM = 400_000


async def test_a_run_that_no_daemon_takes_ends_at_the_limit_with_the_counts(fleet: Fleet) -> None:
    """The error says how long it waited, who is there and what waits; a daemon that comes later does not run it."""
    async with fleet.connect(queue_limit_s=0.3) as forks:
        result = await (await forks.fork(await fleet.params("apple"))).result()

    assert (result.status, result.end) == (ForkStatus.FAILED, "no_daemon")
    error = result.error or ""
    assert "within 0.3 s" in error
    assert fleet.pool in error
    assert "about 1 requests are waiting" in error
    await fleet.daemon()
    async with fleet.connect() as forks:
        assert (await (await forks.fork(await fleet.params("birch"))).result()).status is ForkStatus.COMPLETED
    assert not any(b"apple" in (fleet.sim.body(record.index) or b"") for record in fleet.sim.log)


async def test_a_parent_that_waits_for_nobody_is_told_once(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """Long before the limit, in its log; what is needed, and only for the first of its runs."""
    async with fleet.connect() as forks:
        handles = await forks.fork_each(await fleet.params(""), [says("cherry", DONE), says("damson", DONE)])
        await eventually(lambda: "no daemon that could take it" in caplog.text)
        await fleet.daemon()
        results = [await handle.result() for handle in handles]

    assert [result.status for result in results] == [ForkStatus.COMPLETED] * 2
    assert caplog.text.count("no daemon that could take it") == 1
    assert fleet.pool in caplog.text


async def test_without_a_server_the_error_comes_at_once_and_names_it() -> None:
    """No hanging: the address, the reason and what to do."""
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(BusUnreachable, match=r"nats://127\.0\.0\.1:1: .*nexofork serve"):
            async with connect("nats://127.0.0.1:1"):
                pass


async def test_wrong_credentials_are_called_that(accounts_server: AccountsServer, tmp_path: Path) -> None:
    """A key the server does not know gives the server's own refusal, not a timeout."""
    stranger = tmp_path / "stranger.nk"
    stranger.write_text(nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER).decode())

    with pytest.raises(BusDenied, match=r"(?i)authorization violation"):
        async with connect(accounts_server.url, nkey_seed=stranger):
            pass


async def test_an_abort_that_was_not_sent_says_so(fleet: Fleet) -> None:
    """Awaited, an abort is in force or raises: here its note does not fit a message."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(says("cedar", HELD)))
        await fleet.sim.begun(2)

        with pytest.raises(PayloadTooLarge):
            await handle.abort("x" * 1_200_000)
        fleet.sim.release("held")
        result = await handle.result()

    assert result.status is ForkStatus.COMPLETED


@pytest.fixture
async def cramped(
    restartable: RestartableServer, sim: Simulator, nursery: Nursery, tmp_path: Path
) -> AsyncIterator[Fleet]:
    """A fleet whose log has little room."""
    async with open_fleet((restartable.url,), sim=sim, nursery=nursery, folder=tmp_path, max_bytes=ROOM) as opened:
        yield opened


async def fill(fleet: Fleet, share: float) -> None:
    """Fill the log with what other runs wrote; all of it means that not the smallest message fits any more."""
    number, size = 0, 8_000 if share < 1 else 500
    while await fleet.bus.stream_fill(log_stream(fleet.pool)) < share:
        number += 1
        reply = await fleet.bus.request(reports(f"other{number}{share:.0%}"[:-1], fleet.pool), b"x" * size)
        fleet.bus._fill.clear()  # known for a second otherwise
        if b"maximum bytes exceeded" in reply.data:
            if size == 1:
                return
            size = 1


async def test_a_log_that_is_nearly_full_takes_no_new_runs_and_ends_the_old_ones(cramped: Fleet) -> None:
    """At 80% a new request is refused with the numbers; running ones still complete and can be aborted."""
    cramped.forged = True
    await cramped.daemon()
    async with cramped.connect() as forks:
        params = await cramped.params(says("drum", HELD))
        kept, doomed = await forks.fork(params), await forks.fork(params)
        await cramped.sim.begun(3)

        await fill(cramped, 0.8)
        async with cramped.connect() as late:
            with pytest.raises(StoreFull, match="new runs are refused from 80%"):
                await late.fork(params, run_id="late")
        await doomed.abort("make room")
        aborted = await doomed.result()
        cramped.sim.release("held")
        result = await kept.result()

    assert (aborted.status, result.status) == (ForkStatus.ABORTED, ForkStatus.COMPLETED)
    assert await cramped.entries("late") == []
    assert len(finals(await cramped.reports(kept.run_id))) == 1


async def test_an_abort_reaches_its_child_even_when_the_log_takes_nothing_more(cramped: Fleet) -> None:
    """Without room for a single entry it goes by the inbox, and the stream to the provider is closed."""
    cramped.forged = True
    await cramped.daemon()
    async with cramped.connect() as forks:
        handle = await forks.fork(await cramped.params(says("ebony", HELD)))
        await cramped.sim.begun(2)
        await fill(cramped, 1.0)

        await handle.abort("by the other way")
        await cramped.sim.closed_early(1)
        handle.detach()

    messages = [entry.message for entry in await cramped.entries(handle.run_id)]
    assert not any(isinstance(message, wire.AbortEvent) for message in messages)
