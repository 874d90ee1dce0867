"""A parent's Agent calls on a fleet: forks and named agents on other hosts, told of by notifications."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from nexofork import AgentTool, CacheSafeSlot, ForkStatus
from nexofork.agents.context import AgentContext
from nexofork.wire import messages as wire
from tests.support.conversation import AGENT, BASH, call, request, says
from tests.support.parents import body_of, results_in

if TYPE_CHECKING:
    from nexofork import CacheSafeParams
    from tests.support.fleet import Fleet

LONG = "Convention: " + "be brief and kind. " * 1_500
READ: dict[str, Any] = {"name": "FileRead", "input_schema": {"type": "object"}}


async def asks(fleet: Fleet, *calls: dict[str, Any]) -> CacheSafeParams:
    """Let the parent's model make these Agent calls."""
    turn = {"text": "I delegate.", "tools": [call("Agent", **one) for one in calls]}
    return await fleet.agent.ask(request(answer=turn, tools=[AGENT, READ, BASH]))


def run_of(answer: dict[str, Any]) -> str:
    """The run that an answer names."""
    assert not answer.get("is_error"), answer
    run_id: str = json.loads(answer["content"])["run_id"]
    return run_id


async def test_calls_become_forks_on_other_hosts_and_each_end_is_told_once(fleet: Fleet) -> None:
    """A child that calls Agent is refused on its daemon and goes on; its sibling shares the parent's prefix."""
    await fleet.daemons(2)
    delegates = says("alder", {"tools": [call("Agent", prompt="x")]}, {"text": "Scope: a\nResult: alone"})
    await asks(fleet, {"prompt": delegates, "description": "first"}, {"prompt": "birch"})
    async with fleet.connect() as forks, AgentTool(forks, fleet.agent.capture) as tool:
        runs = [run_of(answer) for answer in await tool.handle_all()]
        told = [await tool.next_notification() for _ in runs]
        assert await tool.next_notification() is None
        results = [await tool.wait(run) for run in runs]

    assert all(sum(f"<task-id>{run}</task-id>" in (text or "") for text in told) == 1 for run in runs)
    assert [result.status for result in results if result] == [ForkStatus.COMPLETED] * 2
    assert [result.label for result in results if result] == ["first", "birch"]
    refused = [
        found for record in fleet.sim.log[1:] for found in results_in(fleet.sim, record.index) if "is_error" in found
    ]
    assert "You are a fork and cannot start agents" in refused[0]["content"]
    assert all(record.read >= fleet.sim.log[0].write_5m for record in fleet.sim.log[1:])


async def test_named_agents_on_two_hosts_share_their_own_prefix_and_are_held_to_their_tools(fleet: Fleet) -> None:
    """One of three writes, wherever they run; a command that writes is denied by the daemon."""
    await fleet.daemons(2)
    removes = says(
        "cedar", {"tools": [call("Bash", command="rm x"), call("Bash", command="echo hi")]}, {"text": "kept"}
    )
    prompts = [removes, "drum", "ebony"]
    await asks(fleet, *({"prompt": prompt, "subagent_type": "Plan"} for prompt in prompts))
    slot = CacheSafeSlot()
    slot.save(fleet.agent.capture.snapshot(), "sdk")
    context = AgentContext(project_conventions=LONG)
    async with fleet.connect() as forks, AgentTool(forks, slot, context=context) as tool:
        runs = [run_of(answer) for answer in await tool.handle_all()]
        results = [await tool.wait(run) for run in runs]
        request_of = (await fleet.entries(runs[0]))[0].message

    assert isinstance(request_of, wire.Requested)
    assert request_of.query_source == "agent:named:Plan"
    assert [spec.name for spec in request_of.filters] == ["tools", "readonly"]
    first_turns = [record for record in fleet.sim.log[1:] if len(body_of(fleet.sim, record.index)["messages"]) == 2]
    assert sum(bool(record.write_5m) for record in first_turns) == 1
    shared = max(record.write_5m for record in first_turns)
    assert sorted(record.read for record in first_turns) == [0, shared, shared]
    assert all(result and result.ok and result.cache and result.cache.cause is None for result in results)
    (denied, ran) = next(found for record in fleet.sim.log[1:] if (found := results_in(fleet.sim, record.index)))
    assert "rm changes files" in denied["content"]
    assert "hi" in ran["content"]


async def test_a_wait_for_a_run_elsewhere_is_let_go_of_and_the_end_is_told(fleet: Fleet) -> None:
    """The run does not notice; it is attached to from a second tool as well, as after a restart."""
    await fleet.daemon()
    await asks(fleet, {"prompt": says("fig", {"text": "Scope: f\nResult: late", "hold": "fig"})})
    async with fleet.connect() as forks, AgentTool(forks, fleet.agent.capture) as tool:
        (answer,) = await tool.handle_all()
        run_id = run_of(answer)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(tool.wait(run_id))
            await fleet.sim.received(2)
            assert tool.background(run_id) == 1
        async with AgentTool(forks, fleet.agent.capture) as other:
            other.follow(await forks.attach(run_id))
            fleet.sim.release("fig")
            told = [await tool.next_notification(), await other.next_notification()]

    assert waiting.result() is None
    assert told[0] is not None
    assert "Result: late" in told[0]
    assert "Result: late" in (told[1] or "")


async def test_a_connection_that_was_closed_is_an_answer_the_model_can_read(fleet: Fleet) -> None:
    """The parent's loop does not break; the call is answered as an error."""
    await asks(fleet, {"prompt": "x"})
    async with fleet.connect() as forks:
        left = forks
    async with AgentTool(left, fleet.agent.capture) as tool:
        (answer,) = await tool.handle_all()

    assert answer["is_error"]
    assert "connect" in answer["content"]
