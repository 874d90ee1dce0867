"""A child on another host calls a tool that only its parent has; the parent runs it once and answers over NATS."""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import AutoMemFilter, ForkStatus, FunctionTools
from nexofork.core.replacement import ContentReplacementState
from nexofork.errors import ForkRefused
from nexofork.tools.builtin import BuiltinTools
from nexofork.tools.dispatch import GatedTools, ToolOutcome
from nexofork.wire import messages as wire
from tests.acceptance.fleet.test_crash import claimant
from tests.support.conversation import AGENT, BASH, call, says
from tests.support.fleet import open_fleet
from tests.support.parents import results_in
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nexofork import ForkResult
    from nexofork.client.fleet import NatsForkSubagent
    from nexofork.simulator import Simulator
    from nexofork.tools.dispatch import ToolCall
    from tests.support.fleet import Fleet, Nursery, RestartableServer

TOOLS = [AGENT, BASH, *({"name": name, "input_schema": {"type": "object"}} for name in ("Todo", "Nope", "REPL"))]


@dataclass
class Todo:
    """A tool of the parent's with a state of its own; it waits at a door when it is told to."""

    items: list[str] = field(default_factory=list)
    cancelled: int = 0
    door: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, arguments: dict[str, Any]) -> str:
        """Add an item."""
        self.items.append(arguments["item"])
        if arguments.get("wait"):
            try:
                await self.door.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if arguments.get("fail"):
            raise ValueError("the list is full")
        return f"{len(self.items)} items" + "!" * int(arguments.get("long", 0))

    @property
    def tools(self) -> FunctionTools:
        """The parent's dispatcher."""
        return FunctionTools({"Todo": self})


@asynccontextmanager
async def forked(fleet: Fleet, *calls: dict[str, Any], **more: Any) -> AsyncIterator[tuple[NatsForkSubagent, Any]]:
    """A parent that has forked a child which makes these calls in one turn."""
    fleet.captured = fleet.captured or await fleet.agent.ask(tools=TOOLS, max_tokens=16_000)
    directive = says("Work.", {"tools": list(calls)}, {"text": "Done."})
    async with fleet.connect() as forks:
        yield forks, await forks.fork(await fleet.params(directive, **more))


async def run(fleet: Fleet, *calls: dict[str, Any], **more: Any) -> tuple[ForkResult, list[dict[str, Any]]]:
    """Fork, and return the result with the answers to the calls."""
    async with forked(fleet, *calls, **more) as (_, handle):
        result = await handle.result()
    assert result.status is ForkStatus.COMPLETED, result.error
    return result, last_answers(fleet.sim)


def last_answers(sim: Simulator) -> list[dict[str, Any]]:
    """The tool results in the newest request."""
    return results_in(sim, sim.request_count - 1)


async def asks(fleet: Fleet, run_id: str) -> list[wire.Asked]:
    """The questions on a run's log."""
    return [report for report in await fleet.reports(run_id) if isinstance(report, wire.Asked)]


async def test_the_parent_runs_its_own_tools_and_errors_are_answers(fleet: Fleet) -> None:
    """Results come back in order, long ones too; what the tool raises is read by the model; the log has the names."""
    await fleet.daemon()
    todo = Todo()
    result, answers = await run(
        fleet,
        call("Todo", item="a"),
        call("Bash", command="echo here"),
        call("Todo", item="b", fail=True),
        call("Todo", item="c" * 40_000, long=100_000),
        tool_dispatcher=todo.tools,
    )

    assert answers[0]["content"] == "1 items"
    assert answers[1]["content"] == "here\n"
    assert (answers[2]["content"], answers[2]["is_error"]) == ("Todo failed: ValueError: the list is full", True)
    assert answers[3]["content"] == "3 items" + "!" * 100_000
    assert todo.items == ["a", "b", "c" * 40_000]
    questions = await asks(fleet, result.run_id)
    assert [(question.what, question.name) for question in questions] == [("tool", "Todo")] * 3
    started = [report for report in await fleet.reports(result.run_id) if isinstance(report, wire.ToolStarted)]
    assert [(one.name, one.bubbled) for one in started] == [
        ("Todo", True),
        ("Bash", False),
        ("Todo", True),
        ("Todo", True),
    ]


async def test_a_tool_nobody_has_is_answered_at_once(fleet: Fleet) -> None:
    """With a parent that has others, and with one that has none: no question is asked, and what there is is named."""
    await fleet.daemon()
    result, (answer,) = await run(fleet, call("Nope"), tool_dispatcher=Todo().tools)
    assert "There is no tool 'Nope' for this fork" in answer["content"]
    assert "Grep" in answer["content"]
    assert "Todo" in answer["content"]
    assert await asks(fleet, result.run_id) == []

    result, (answer,) = await run(fleet, call("Todo", item="a"))
    assert "There is no tool 'Todo' for this fork" in answer["content"]
    assert await asks(fleet, result.run_id) == []


@pytest.mark.parametrize("limited_by", ["the daemon", "the request"])
async def test_no_answer_in_time_is_an_answer_and_the_call_is_cancelled(fleet: Fleet, limited_by: str) -> None:
    """The child goes on when the deadline passes; the parent's tool is cancelled."""
    await fleet.daemon(tool_deadline_s=0.5 if limited_by == "the daemon" else 300)
    todo = Todo()
    more = {} if limited_by == "the daemon" else {"tool_deadline": 0.5}
    _, (answer,) = await run(fleet, call("Todo", item="a", wait=True), tool_dispatcher=todo.tools, **more)

    assert answer["is_error"]
    assert "gave no answer within 0.5 s" in answer["content"]
    await eventually(lambda: todo.cancelled == 1)


async def test_an_abort_cancels_the_call_at_the_parent(fleet: Fleet) -> None:
    """The run ends as aborted and the parent's tool is not left running."""
    await fleet.daemon()
    todo = Todo()
    async with forked(fleet, call("Todo", item="a", wait=True), tool_dispatcher=todo.tools) as (_, handle):
        await eventually(lambda: todo.items == ["a"])
        await handle.abort("enough")
        result = await handle.result()

        assert result.status is ForkStatus.ABORTED
        await eventually(lambda: todo.cancelled == 1)


async def test_a_take_over_in_the_middle_of_a_call_runs_it_once(fleet: Fleet) -> None:
    """The daemon is killed while the parent works; the next one asks the same question and gets the one answer."""
    await fleet.daemons(2)
    todo = Todo()
    async with forked(fleet, call("Todo", item="a", wait=True), tool_dispatcher=todo.tools) as (_, handle):
        await eventually(lambda: todo.items == ["a"])
        await (await claimant(fleet, handle)).kill()
        await fleet.until_logged(handle.run_id, lambda one: isinstance(one, wire.Asked) and one.epoch == 2)
        todo.door.set()
        result = await handle.result()

    assert (result.status, result.attempts) == (ForkStatus.COMPLETED, 2)
    assert todo.items == ["a"]
    assert last_answers(fleet.sim)[0]["content"] == "1 items"
    assert len({question.ask_id for question in await asks(fleet, handle.run_id)}) == 1


async def test_an_answer_given_while_nobody_had_the_run_is_found(fleet: Fleet) -> None:
    """The parent answers between two daemons; the second takes the answer without asking."""
    first = await fleet.daemon()
    todo = Todo()
    async with forked(fleet, call("Todo", item="a", wait=True), tool_dispatcher=todo.tools) as (_, handle):
        await eventually(lambda: todo.items == ["a"])
        await first.kill()
        todo.door.set()
        (question,) = await asks(fleet, handle.run_id)
        await fleet.until_answered(handle.run_id, question.ask_id)
        await fleet.daemon()
        result = await handle.result()

    assert (result.status, result.attempts) == (ForkStatus.COMPLETED, 2)
    assert (todo.items, len(await asks(fleet, handle.run_id))) == (["a"], 1)


async def test_a_call_outlives_a_restart_of_nats(
    restartable: RestartableServer, sim: Simulator, nursery: Nursery, tmp_path: Path
) -> None:
    """Both sides lose their connection in the middle of a call; it is run once and answered."""
    todo = Todo()
    async with open_fleet((restartable.url,), sim=sim, nursery=nursery, folder=tmp_path, lease_s=20) as fleet:
        await fleet.daemon()
        async with forked(fleet, call("Todo", item="a", wait=True), tool_dispatcher=todo.tools) as (_, handle):
            await eventually(lambda: todo.items == ["a"])
            restartable.down()
            todo.door.set()
            restartable.up()
            await restartable.ready()
            result = await handle.result()

    assert result.status is ForkStatus.COMPLETED, result.error
    assert todo.items == ["a"]
    assert last_answers(sim)[0]["content"] == "1 items"


async def test_another_process_serves_what_the_one_that_forked_left(fleet: Fleet) -> None:
    """A parent that let go of its child is replaced by one that attaches with the tools; both present, one runs it."""
    await fleet.daemon()
    first, second = Todo(), Todo()
    door = fleet.folder / "door"
    turns = ({"tools": [call("Bash", command="true", behind=str(door))]}, {"tools": [call("Todo", item="a")]})
    fleet.captured = await fleet.agent.ask(tools=TOOLS)
    params = await fleet.params(says("Work.", *turns, {"text": "Done."}), tool_dispatcher=first.tools)
    async with fleet.connect() as gone:
        handle = await gone.fork(params)
        handle.detach()
    async with fleet.connect() as forks, fleet.connect() as others:
        attached = await forks.attach(handle.run_id, tool_dispatcher=second.tools)
        await others.attach(handle.run_id, tool_dispatcher=second.tools)
        door.touch()
        assert (await attached.result()).ok

    assert (first.items, second.items) == ([], ["a"])


async def test_a_run_without_tools_of_its_parents_cannot_be_served(fleet: Fleet) -> None:
    """Attaching with tools that nobody would ask for is refused."""
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params("Look."))
        with pytest.raises(ForkRefused, match="started without tools of its parent's"):
            await forks.attach(handle.run_id, tool_dispatcher=Todo().tools)


async def test_a_question_of_a_run_that_is_over_is_not_run(fleet: Fleet) -> None:
    """Who attaches after the end sees the question on the log and leaves it alone."""
    await fleet.daemon(tool_deadline_s=0.3)
    first, late = Todo(), Todo()
    result, _ = await run(fleet, call("Todo", item="a", wait=True), tool_dispatcher=first.tools)
    async with fleet.connect() as forks:
        handle = await forks.attach(result.run_id, tool_dispatcher=late.tools)
        assert (await handle.result()).run_id == result.run_id

    assert late.items == []


async def test_a_parent_that_died_leaves_a_readable_answer(fleet: Fleet) -> None:
    """Its child waits for the deadline, is told, and completes."""
    await fleet.daemon(tool_deadline_s=1.0)
    fleet.captured = await fleet.agent.ask(tools=TOOLS)
    script = says("Work.", {"tools": [call("Todo", item="a")]}, {"text": "Done."})
    process, (run_id,) = await fleet.parent_process([script], bubbled=["Todo"])
    await process.until_said("called")
    process.signal(signal.SIGKILL)
    async with fleet.connect() as forks:
        result = await (await forks.attach(run_id)).result()

    assert result.status is ForkStatus.COMPLETED
    assert "gave no answer within 1 s" in last_answers(fleet.sim)[0]["content"]


class Repl:
    """A REPL of the parent's whose code is a shell command, run by a tool behind the fork's filter."""

    def __init__(self, *, gated: bool) -> None:
        self._gated = gated

    async def dispatch(self, one: ToolCall) -> ToolOutcome:
        """Run the code."""
        return await GatedTools(BuiltinTools(), one).dispatch(
            replace(one, name="Bash", input={"command": one.input["code"]})
        )

    def parallel(self, one: ToolCall) -> bool:
        """One after the other."""
        return False

    def read_only(self, one: ToolCall) -> bool:
        """It may do anything."""
        return False

    def gates_inside(self, name: str) -> bool:
        """Whether inner calls are judged."""
        return self._gated


@pytest.mark.parametrize("gated", [False, True])
async def test_a_repl_at_the_parent_runs_only_where_it_gates(fleet: Fleet, tmp_path: Path, gated: bool) -> None:
    """The daemon lets it through if the request says so; what it calls inside is judged at the parent."""
    await fleet.daemon()
    memory = tmp_path / "memory"
    memory.mkdir()
    result, (reading, writing) = await run(
        fleet,
        call("REPL", code="echo 42"),
        call("REPL", code=f"touch {tmp_path}/made"),
        tool_dispatcher=Repl(gated=gated),
        tool_filter=AutoMemFilter(memory),
    )

    assert ("42" if gated else "Call the tools directly") in str(reading["content"])
    assert ("touch changes files" if gated else "Call the tools directly") in str(writing["content"])
    assert not (tmp_path / "made").exists()
    assert len(await asks(fleet, result.run_id)) == (2 if gated else 0)


async def test_results_of_the_parent_pass_the_budget_and_are_sent_alike_after_a_take_over(fleet: Fleet) -> None:
    """What was shortened stays as it was sent, and what was spent before the take-over counts after it."""
    await fleet.daemons(2)
    fleet.captured = replace(
        await fleet.agent.ask(tools=TOOLS),
        replacements=ContentReplacementState(max_chars=5_000, keep_chars=100, budget_chars=8_000),
    )
    todo = Todo()
    turns = (
        {"tools": [call("Todo", item="a", long=6_000), call("Todo", item="b", long=4_000)]},
        {"tools": [call("Todo", item="c", long=4_500), call("Todo", item="d", wait=True)]},
    )
    async with fleet.connect() as forks:
        params = await fleet.params(says("Work.", *turns, {"text": "Done."}), tool_dispatcher=todo.tools)
        handle = await forks.fork(params)
        await eventually(lambda: len(todo.items) == 4)
        await (await claimant(fleet, handle)).kill()
        todo.door.set()
        result = await handle.result()

    assert (result.status, result.attempts, todo.items) == (ForkStatus.COMPLETED, 2, ["a", "b", "c", "d"])
    long, short = results_in(fleet.sim, 2)
    assert "[5807 characters left out]" in long["content"]
    assert short["content"] == "2 items" + "!" * 4_000
    over, rest = last_answers(fleet.sim)
    assert "characters left out" in over["content"], "4,220 of 8,000 were spent"
    assert rest["content"] == "4 items"
