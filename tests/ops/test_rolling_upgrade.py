"""Daemons and parents of the previous and of this message version share one NATS, and lose nothing.

What runs as the previous version is the code of an earlier commit of this repository, in processes of its own.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from nexofork import ForkStatus, GitWorkspace, Permissions, ReadOnlyFilter
from nexofork.errors import DaemonsTooOld
from nexofork.wire import messages as wire
from tests.support.conversation import call, says
from tests.support.fleet import asked, epochs, finals, lines_in
from tests.support.previous import Previous
from tests.support.repositories import Repo
from tests.support.sandboxes import needs_bubblewrap

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Any

    from nexofork import ForkHandle
    from tests.support.fleet import Fleet, Nursery, Process

pytestmark = pytest.mark.ops

DONE = "Scope: all\nResult: done"


@pytest.fixture
def previous(fleet: Fleet, previous_nursery: Nursery) -> Previous:
    """The part of the fleet that has not been upgraded."""
    return Previous(fleet, previous_nursery)


async def start(fleet: Fleet, previous: Previous, name: str) -> Process:
    """Start a daemon of the version that its name says."""
    return await (previous.daemon(name) if name.startswith("old") else fleet.daemon(name))


async def ends(fleet: Fleet, run_ids: Iterable[str]) -> list[str]:
    """How the runs ended, once all have; each has one end."""
    found = []
    for run_id in run_ids:
        await fleet.until_logged(run_id, lambda report: isinstance(report, wire.Final))
        [final] = finals(await fleet.reports(run_id))
        found.append(final.status)
    return found


async def test_a_parent_of_the_previous_version_gets_its_results_from_a_new_daemon(
    fleet: Fleet, previous: Previous, tmp_path: Path
) -> None:
    """An old parent waits for what a new daemon reports, and leaves when all is done."""
    tally = tmp_path / "tally"
    await fleet.daemon("new")
    turns = ({"tools": [call(command=f"echo ran >> {tally}")]}, DONE)

    parent, run_ids = await previous.parent([says("almond", *turns), says("beech", *turns)])

    assert await parent.gone() == 0
    assert await ends(fleet, run_ids) == ["completed", "completed"]
    assert lines_in(tally) == 2


async def test_a_new_parent_gets_its_result_from_a_daemon_of_the_previous_version(
    fleet: Fleet, previous: Previous, tmp_path: Path
) -> None:
    """A request that needs nothing new is one that old daemons run in full."""
    tally = tmp_path / "tally"
    await previous.daemon("old")
    async with fleet.connect() as forks:
        turns = ({"tools": [call(command=f"echo ran >> {tally}")]}, DONE)
        handle = await forks.fork(await fleet.params(says("cedar", *turns)))
        result = await handle.result()

    assert (result.status, result.daemon, result.turns) == (ForkStatus.COMPLETED, "old", 2)
    assert result.report is not None
    assert result.report.result == "done"
    assert lines_in(tally) == 1


@pytest.mark.parametrize(("first", "heir"), [("old", "new"), ("new", "old")])
async def test_a_run_is_taken_over_across_versions(
    fleet: Fleet, previous: Previous, tmp_path: Path, first: str, heir: str
) -> None:
    """Killed in its second call, the run goes on in the other version with the very bytes it had."""
    tally = tmp_path / "tally"
    lost = await start(fleet, previous, first)
    async with fleet.connect() as forks:
        turns = ({"tools": [call(command=f"echo ran >> {tally}")]}, {"text": DONE, "hold": "second"})
        handle = await forks.fork(await fleet.params(says("dogwood", *turns)))
        await fleet.sim.received(3)

        await lost.kill()
        await start(fleet, previous, heir)
        fleet.sim.release("second")
        result = await handle.result()

    assert (result.status, result.daemon, result.attempts, result.turns) == (ForkStatus.COMPLETED, heir, 2, 2)
    assert asked(fleet.sim, "dogwood") == [1, 2, 2]
    assert fleet.sim.body(2) == fleet.sim.body(3)
    assert lines_in(tally) == 1
    reports = await fleet.reports(handle.run_id)
    assert epochs(reports) == sorted(epochs(reports))
    assert len(finals(reports)) == 1


@pytest.mark.parametrize(("first", "heir"), [("old", "new"), ("new", "old")])
async def test_a_run_is_handed_over_across_versions_when_its_daemon_stops(
    fleet: Fleet, previous: Previous, first: str, heir: str
) -> None:
    """Told to stop, a daemon lets go in good order, and one of the other version goes on at once."""
    leaving = await start(fleet, previous, first)
    async with fleet.connect() as forks:
        turns = ({"tools": [call(command="true")]}, {"text": DONE, "hold": "second"})
        handle = await forks.fork(await fleet.params(says("elder", *turns)))
        await fleet.sim.received(3)
        await start(fleet, previous, heir)

        leaving.signal(signal.SIGTERM)
        assert await leaving.gone() == 0
        fleet.sim.release("second")
        result = await handle.result()

    assert (result.status, result.daemon, result.turns) == (ForkStatus.COMPLETED, heir, 2)
    assert any(isinstance(report, wire.HandedOver) for report in await fleet.reports(handle.run_id))


NEEDING: dict[str, dict[str, Any]] = {
    "filters": {"tool_filter": ReadOnlyFilter()},
    "permissions": {"permissions": Permissions(mode="deny")},
    "tool_names": {"tool_names": {"Bash": "Bash"}},
}


def needing(need: str, folder: Path) -> dict[str, Any]:
    """What makes a fork need this."""
    return NEEDING.get(need) or {"workspace": GitWorkspace(Repo(folder).path)}


@needs_bubblewrap
@pytest.mark.parametrize("need", [*NEEDING, "workspace"])
async def test_a_run_that_an_old_daemon_would_refuse_waits_until_it_is_replaced(
    fleet: Fleet, previous: Previous, tmp_path: Path, need: str
) -> None:
    """Its parent keeps it back while a daemon is there that would end it unread; then it runs in full."""
    old = await previous.daemon("old")
    await fleet.daemon("new", sandbox="bwrap")
    chosen = await asyncio.to_thread(needing, need, tmp_path / "repo")
    async with fleet.connect() as forks:
        plain = await forks.fork(await fleet.params(says("fern", DONE)))
        async with asyncio.TaskGroup() as asking:
            waiting = asking.create_task(forks.fork(await fleet.params(says("fir", DONE), **chosen)))
            assert (await plain.result()).ok  # what needs nothing goes on meanwhile
            assert not waiting.done()
            old.signal(signal.SIGTERM)
        result = await waiting.result().result()

    assert (result.status, result.daemon) == (ForkStatus.COMPLETED, "new")


async def test_a_parent_that_waited_long_enough_names_the_daemons_to_upgrade(fleet: Fleet, previous: Previous) -> None:
    """Nothing is published, and the error says what is in the way."""
    await previous.daemon("old")
    async with fleet.connect(queue_limit_s=0.5) as forks:
        with pytest.raises(DaemonsTooOld, match=r"needs 'filters'.*would refuse it: old\. Upgrade or stop") as refused:
            await forks.fork(await fleet.params(says("fir", DONE), tool_filter=ReadOnlyFilter()))

    assert refused.value.daemons == ("old",)
    assert asked(fleet.sim, "fir") == []


@pytest.mark.parametrize("need", [*NEEDING, "workspace"])
async def test_a_daemon_of_the_previous_version_refuses_what_it_would_ignore(
    fleet: Fleet, previous: Previous, tmp_path: Path, need: str
) -> None:
    """One that comes when the run is already queued refuses it; it does not run it without filter or workspace."""
    tally = tmp_path / "tally"
    chosen = await asyncio.to_thread(needing, need, tmp_path / "repo")
    async with fleet.connect() as forks:
        asks = says("fir", {"tools": [call(command=f"echo ran >> {tally}")]}, DONE)
        handle = await forks.fork(await fleet.params(asks, **chosen))
        await previous.daemon("old")
        result = await handle.result()

    assert result.status is ForkStatus.REFUSED
    assert result.error is not None
    assert "v: " in result.error
    assert asked(fleet.sim, "fir") == []
    assert not tally.exists()


async def test_a_filtered_run_that_falls_to_the_previous_version_ends_unrun(
    fleet: Fleet, previous: Previous, tmp_path: Path
) -> None:
    """Its new daemon lost, an old one ends the run as refused: it never runs a call without the filter."""
    tally = tmp_path / "tally"
    lost = await fleet.daemon("new")
    async with fleet.connect() as forks:
        write = {"tools": [call(command=f"echo ran >> {tally}")]}
        asks = says("gorse", {"tools": [call(command="true")]}, {**write, "hold": "second"}, DONE)
        handle = await forks.fork(await fleet.params(asks, tool_filter=ReadOnlyFilter()))
        await fleet.sim.received(3)

        await lost.kill()
        await previous.daemon("old")
        fleet.sim.release("second")
        result = await handle.result()

    assert result.status is ForkStatus.REFUSED
    assert asked(fleet.sim, "gorse") == [1, 2]
    assert not tally.exists()


async def test_a_fleet_is_upgraded_and_rolled_back_under_load(fleet: Fleet, previous: Previous, tmp_path: Path) -> None:
    """Daemons are replaced one by one, up and down again, while parents of both versions fork: every run completes.

    So do the filtered ones, which old daemons would refuse: they wait until the last old daemon is replaced.
    """
    tally = tmp_path / "tally"
    running = [await start(fleet, previous, f"old{number}") for number in range(3)]
    run_ids: list[str] = []
    handles: list[ForkHandle] = []
    reading = [says(f"reader{number}", {"tools": [call(command="ls")]}, DONE) for number in range(20)]
    async with fleet.connect() as forks, asyncio.TaskGroup() as asking:
        filtered = await fleet.params("", tool_filter=ReadOnlyFilter())
        readers = asking.create_task(forks.fork_each(filtered, reading))
        for step, heir in enumerate(["new", "new", "new", "old", "old", "old"]):
            if step == 3:  # upgraded: before the way back, what old daemons do not know has to be over
                assert {(await reader.result()).status for reader in await readers} == {ForkStatus.COMPLETED}
            _, of_old = await previous.parent(some_work(tally, f"oldparent{step}"))
            handles += await forks.fork_each(await fleet.params(""), some_work(tally, f"newparent{step}"))
            run_ids += of_old
            running.append(await start(fleet, previous, f"{heir}-{step}"))
            leaving = running.pop(0)
            leaving.signal(signal.SIGTERM)  # in the middle of its runs
            assert await leaving.gone() == 0
        run_ids += [handle.run_id for handle in handles]
        statuses = await ends(fleet, run_ids)
        versions = [await versions_of(fleet, run_id) for run_id in run_ids]

    assert statuses == ["completed"] * len(run_ids)
    assert {"old", "new"} in versions, "no run changed versions: the test did not test it"
    ran = tally.read_text().splitlines()
    assert len(ran) == len(set(ran)), "a command ran twice"


def some_work(tally: Path, name: str) -> list[str]:
    """Directives of two turns each, with a command between them that notes that it ran."""
    works = []
    for number in range(20):
        command = {"tools": [call(command=f"echo {name}-{number} >> {tally}")], "delay_s": 0.05}
        works.append(says(f"{name}-{number}", command, {"text": DONE, "delay_s": 0.3}))
    return works


async def versions_of(fleet: Fleet, run_id: str) -> set[str]:
    """Which versions had the run."""
    return {report.daemon.name[:3] for report in await fleet.reports(run_id) if isinstance(report, wire.Claimed)}
