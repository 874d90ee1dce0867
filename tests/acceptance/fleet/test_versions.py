"""A run that a daemon does not understand is left to one that does, and refused where there is none."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkStatus, ReadOnlyFilter
from nexofork.bus.jetstream import store
from nexofork.bus.presence import PresenceBoard
from nexofork.wire import messages as wire
from nexofork.wire.needs import KNOWN_NEEDS
from nexofork.wire.subjects import events
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from nexofork import ForkResult
    from tests.support.fleet import Fleet

UNKNOWN: dict[str, dict[str, Any]] = {
    "needs": {"v": 2, "needs": ["filters", "holograms"]},
    "version": {"v": 3, "kind": "requested"},
    "kind of a later version": {"v": 3, "kind": "wished"},
}


async def ask(fleet: Fleet, run_id: str, **more: Any) -> None:
    """Ask for a run as a parent of a later version would."""
    snapshot = await fleet.snapshot()
    request = {"v": 1, "kind": "requested", "id": run_id, "snapshot": {"text": snapshot.body.decode()}, **more}
    await store(fleet.bus, events(run_id, fleet.pool), json.dumps({"directive": "look", **request}).encode())


async def ended(fleet: Fleet, run_id: str) -> ForkResult:
    """How a run ended."""
    async with fleet.connect() as forks:
        return await (await forks.attach(run_id)).result()


def later_daemon(fleet: Fleet) -> wire.Presence:
    """What a daemon of a later version would say of itself."""
    who = wire.Daemon(nkey=fleet.bus.identity, instance=f"later-{fleet.pool}", name="later")
    knows = [*KNOWN_NEEDS, "holograms"]
    return wire.Presence(at=time.time(), daemon=who, pool=fleet.pool, slots=4, reads=3, knows=knows)


@pytest.mark.parametrize("kind", UNKNOWN)
async def test_what_nobody_understands_is_refused_by_name(fleet: Fleet, kind: str) -> None:
    """The end says what was not understood and what to do; no model call is made."""
    fleet.forged = True
    await fleet.daemon()
    before = len(fleet.sim.log) + 1  # the parent's own

    await ask(fleet, "later", **UNKNOWN[kind])
    result = await ended(fleet, "later")

    assert result.status is ForkStatus.REFUSED
    assert result.error is not None
    assert ("'holograms'" if kind == "needs" else "has version 3") in result.error
    assert "pgrade" in result.error
    assert len(fleet.sim.log) == before


@pytest.mark.parametrize("kind", UNKNOWN)
async def test_what_a_later_daemon_understands_is_left_to_it(fleet: Fleet, kind: str) -> None:
    """While one is there, the run stays in the queue untouched; once it has gone, the run is refused."""
    fleet.forged = True
    board, later = PresenceBoard(fleet.bus), later_daemon(fleet)
    await board.announce(later)
    daemon = await fleet.daemon()

    await ask(fleet, "later", **UNKNOWN[kind])
    await eventually(lambda: "run later: left to" in daemon.log)
    untouched = await fleet.reports("later")
    await board.withdraw(later)
    result = await ended(fleet, "later")

    assert [report for report in untouched if not isinstance(report, Exception)] == []
    assert result.status is ForkStatus.REFUSED


async def test_a_run_that_needs_a_filter_says_so_and_runs(fleet: Fleet) -> None:
    """What this version needs, its own daemons know; a plain fork stays one that earlier daemons can run."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        filtered = await forks.fork(await fleet.params("look", tool_filter=ReadOnlyFilter()))
        plain = await forks.fork(await fleet.params("look"))
        results = [await filtered.result(), await plain.result()]
    requests = [(await fleet.entries(handle.run_id))[0].message for handle in (filtered, plain)]

    assert [result.status for result in results] == [ForkStatus.COMPLETED] * 2
    assert [(request.v, request.needs) for request in requests if isinstance(request, wire.Requested)] == [
        (2, ["filters"]),
        (1, []),
    ]


async def test_every_daemon_says_what_it_can_run(fleet: Fleet) -> None:
    """Whoever plans an upgrade sees which daemons know what."""
    await fleet.daemon("here")

    await fleet.until_present(lambda there: there.reads == 2 and there.knows == list(KNOWN_NEEDS))
