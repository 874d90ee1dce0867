"""Explore and Plan read and never write; what a fork may not start, it may not start by naming a type either."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import AgentTool, ForkParams, FunctionTools
from nexofork.core.boilerplate import BOILERPLATE
from tests.support.conversation import AGENT, BASH, MODEL, call, request, says
from tests.support.parents import body_of, results_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexofork import AnthropicProvider, DefaultForkSubagent
    from nexofork.simulator import Simulator
    from tests.support.parents import Parent

TOOLS = [AGENT, *({"name": name, "input_schema": {"type": "object"}} for name in ("FileWrite", "FileRead")), BASH]


@pytest.fixture
def equip(llm: AnthropicProvider) -> Callable[[ForkParams], ForkParams]:
    """Gives every run its provider, and tools that say that they ran."""

    async def ran(arguments: dict[str, Any]) -> str:
        return "ran"

    tools = FunctionTools(dict.fromkeys(("Bash", "FileWrite", "FileRead"), ran))
    return lambda params: replace(params, llm=llm, tool_dispatcher=tools)


@pytest.mark.parametrize(
    ("kind", "model", "told"),
    [
        ("Explore", "claude-haiku-5-5", "You look things up in a code base"),
        ("Plan", MODEL, "You work out how a change to a code base should be made"),
    ],
)
async def test_explore_and_plan_have_prompts_of_their_own_and_only_read(
    parent: Parent,
    forks: DefaultForkSubagent,
    equip: Callable[[ForkParams], ForkParams],
    sim: Simulator,
    kind: str,
    model: str,
    told: str,
) -> None:
    """Their tools read; a call of another, or of a command that writes, is denied. Looking things up is cheaper."""
    tried = [call("FileWrite", file_path="x"), call(command="rm x"), call(command="ls"), call("FileRead")]
    prompt = says("Look.", {"tools": tried}, "found")
    turn = {"tools": [call("Agent", prompt=prompt, subagent_type=kind)]}
    await parent.ask(request(answer=turn, tools=TOOLS))
    async with AgentTool(forks, parent.capture, equip=equip) as tool:
        await tool.handle_all()
        assert await tool.next_notification()

    body = body_of(sim, 1)
    assert body["model"] == model
    assert body["system"][0]["text"].startswith(told)
    assert [one["name"] for one in body["tools"]] == ["FileRead", "Bash"]
    assert [bool(one.get("is_error")) for one in results_in(sim, 2)] == [True, True, False, False]
    assert "rm changes files" in results_in(sim, 2)[1]["content"]


@pytest.mark.breaks_prefix("the parent's own request carries the boilerplate")
@pytest.mark.parametrize("kind", [None, "Plan"])
async def test_a_fork_known_by_its_messages_alone_starts_no_agent_of_any_type(
    parent: Parent,
    forks: DefaultForkSubagent,
    equip: Callable[[ForkParams], ForkParams],
    sim: Simulator,
    kind: str | None,
) -> None:
    """The second guard holds before a named agent is given a request that no longer shows it."""
    asked = says("x", {"tools": [call("Agent", prompt="x", subagent_type=kind)]})
    said = [{"type": "text", "text": BOILERPLATE}, {"type": "text", "text": asked}]
    await parent.ask(request(messages=[{"role": "user", "content": said}], tools=TOOLS))
    async with AgentTool(forks, parent.capture, equip=equip) as tool:
        (answer,) = await tool.handle_all()

    assert answer["is_error"]
    assert "already a fork (recognised by the fork boilerplate in messages.0)" in answer["content"]
    assert sim.request_count == 1
