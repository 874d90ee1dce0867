"""Sidecars on other hosts: they read the session's cache there, and its memory folder stays at the parent."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import CacheSafeSlot, ForkStatus
from nexofork.agents.delegation import DelegationTool, delegate_tool
from nexofork.agents.evaluation import Case, Suite, evaluate
from nexofork.agents.evaluation.expecting import Expectation
from nexofork.agents.sidecars import SidecarHost, away, btw, dream, session_memory, suggest
from nexofork.errors import EmptySlot
from nexofork.wire import messages as wire
from tests.support.conversation import BASH, call, request, says
from tests.support.parents import results_in
from tests.support.sessions import reads_the_parent, warm_request
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork import NatsForkSubagent
    from tests.support.fleet import Fleet


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    """A memory folder with a note."""
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "note.md").write_text("one\n")
    return folder


async def hosted(fleet: Fleet, forks: NatsForkSubagent, *turns: dict[str, Any] | str) -> SidecarHost:
    """The host of a session whose sidecars say `turns`."""
    slot = CacheSafeSlot()
    slot.save(await fleet.agent.ask(warm_request(*turns)), "sdk")
    return SidecarHost(forks=forks, source=slot)


async def test_a_dream_on_another_host_changes_the_notes_here(fleet: Fleet, memory: Path) -> None:
    """Files are read and written at the parent; a second dream has nothing new, and two at once are one."""
    await fleet.daemon()
    note = str(memory / "note.md")
    turns = (
        {"tools": [call("FileRead", file_path=note)]},
        {"tools": [call("FileEdit", file_path=note, old_string="one", new_string="two")]},
        {"text": "Done.", "hold": "end"},
    )
    async with fleet.connect() as forks:
        host = await hosted(fleet, forks, *turns)
        async with asyncio.TaskGroup() as tasks:
            dreaming = tasks.create_task(dream(host, memory))
            await fleet.sim.received(4)
            second = await dream(host, memory)
            fleet.sim.release("end")
        result, again = dreaming.result(), await dream(host, memory)

    assert result.result is not None
    assert (result.ok, result.result.daemon, result.audit) == (True, "d0", ())
    assert [(change.path, change.what) for change in result.changed] == [(note, "changed")]
    assert (memory / "note.md").read_text() == "two\n"
    assert (second.outcome, again.outcome) == ("locked", "nothing_new")
    assert fleet.sim.request_count == 4
    assert all(reads_the_parent(fleet.sim, record) for record in fleet.sim.log[1:])


async def test_a_forbidden_write_during_a_dream_elsewhere_is_reported(fleet: Fleet, memory: Path) -> None:
    """Somebody changes what no dream may, here, while it runs there."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        host = await hosted(fleet, forks, {"text": "Done.", "hold": "end"})
        async with asyncio.TaskGroup() as tasks:
            dreaming = tasks.create_task(dream(host, memory))
            await fleet.sim.received(2)
            (memory / ".git").mkdir()
            (memory / ".git" / "config").write_text("[core]\nfsmonitor = evil\n")
            fleet.sim.release("end")

    assert not dreaming.result().ok
    assert dreaming.result().audit == ({"path": str(memory / ".git" / "config"), "what": "added"},)


async def test_what_only_speaks_does_so_on_another_host(fleet: Fleet, tmp_path: Path) -> None:
    """Answer, suggestion, summary and notes are four runs that read the session's cache and show in no list."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        host = await hosted(fleet, forks, "As you said.")
        said = [await btw(host, "Why?"), await suggest(host), await away(host)]
        kept = await session_memory(host, tmp_path / "session.md")
        log = await fleet.entries(said[0].result.run_id)

    assert [one.text for one in said] == ["As you said."] * 3
    assert (kept.changed, (tmp_path / "session.md").read_text()) == (True, "As you said.\n")
    assert all(reads_the_parent(fleet.sim, record) for record in fleet.sim.log[1:])
    request = log[0].message
    assert isinstance(request, wire.Requested)
    assert (request.skip_transcript, request.boilerplate, request.query_source) == (True, False, "side_question")
    assert not any(isinstance(entry.message, wire.Turn) for entry in log)


async def test_a_sidecar_without_tools_has_none_on_another_host(fleet: Fleet) -> None:
    """The daemon's own are denied to it."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        host = await hosted(fleet, forks, {"tools": [call("Bash", command="hostname")]}, "I do not know.")
        said = await btw(host, "What is this host called?")

    (denied,) = results_in(fleet.sim, 2)
    assert "has no tools" in denied["content"]
    assert said.text == "I do not know."


async def test_an_empty_slot_and_an_abort_are_what_they_are_here_too(fleet: Fleet) -> None:
    """A named error before NATS hears of anything; a cancelled wait aborts the run there."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        host = await hosted(fleet, forks, {"text": "Slowly.", "hold": "end"})
        with pytest.raises(EmptySlot):
            await suggest(replace(host, source=CacheSafeSlot()))
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(btw(host, "Quick?"))
            await fleet.sim.received(2)
            asking.cancel()
        (row,) = await forks.children()
        handle = await forks.attach(row.run_id)
        result = await handle.result()
        assert result.status is ForkStatus.ABORTED
        assert result.abort is not None
        assert "nobody waits" in result.abort.note


async def test_a_delegation_waits_for_a_fork_on_another_host(fleet: Fleet) -> None:
    """The report is the answer; moved to the background, the run is named and its end is told once."""
    await fleet.daemon()
    slow = says("slow", {"text": "Result: late", "hold": "end"})
    turn = {"tools": [call("Delegate", prompt=says("quick", "Result: now")), call("Delegate", prompt=slow)]}
    await fleet.agent.ask(request(answer=turn, tools=[delegate_tool(), BASH]))
    async with fleet.connect() as forks, DelegationTool(forks, fleet.agent.capture) as tool:
        quick, later = fleet.agent.capture.snapshot().reply.tool_uses  # type: ignore[union-attr]
        report = await tool.handle(quick)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(tool.handle(later))
            await fleet.sim.received(3)
            await eventually(tool.background)
        moved = json.loads(waiting.result()["content"])
        fleet.sim.release("end")
        notice = await tool.next_notification()

    assert report["content"] == "Result: now"
    assert moved["status"] == "async_launched"
    assert notice is not None
    assert moved["run_id"] in notice
    assert "late" in notice
    assert all(record.read >= fleet.sim.log[0].prompt_tokens for record in fleet.sim.log[1:])


async def test_an_evaluation_runs_on_other_hosts(fleet: Fleet) -> None:
    """Tools that ran there are known here, a follow-up continues the child, and the cache is shared."""
    await fleet.daemon()
    looks = says("Look.", {"tools": [call("Bash", command="echo hi")]}, "It says hi.")
    cases = (
        Case(name="a", prompts=(looks,), expect=Expectation(contains=("hi",), tools=("Bash",), min_hit_ratio=0.9)),
        Case(name="b", prompts=("One.", says("Two.", "two")), expect=Expectation(contains=("two",))),
        Case(name="c", prompts=(looks,), expect=Expectation(without_tools=("*",))),
    )
    snapshot = await fleet.agent.ask(warm_request())
    async with fleet.connect() as forks:
        results = await evaluate(
            Suite(name="s", cases=cases),
            forks,
            snapshot,
            follow_up=lambda handle, text: forks.wake(handle.run_id, text),
        )

    assert [(result.case.name, result.passed) for result in results] == [("a", True), ("b", True), ("c", False)]
    assert all(reads_the_parent(fleet.sim, record) for record in fleet.sim.log[1:])
