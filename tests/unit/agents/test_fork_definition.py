"""What an Agent call without a type starts is what `FORK_AGENT` says, and every start is in the background."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import AgentDefinition, AgentRegistry, AgentTool, DelegateMode, DelegationTool, ForkParams, FunctionTools
from nexofork.agents.builtin import BUILT_IN
from nexofork.agents.definition import FORK_AGENT
from nexofork.agents.settings import AgentSettings
from nexofork.agents.sidecars import SidecarHost, away, btw
from nexofork.core.boilerplate import BOILERPLATE
from tests.support.conversation import AGENT, BASH, call, request, says
from tests.support.parents import body_of, results_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexofork import AnthropicProvider, DefaultForkSubagent
    from nexofork.client.handle import ForkHandle
    from nexofork.simulator import Simulator
    from tests.support.parents import Parent

TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("FileWrite", "FileRead", "Grep")]
FREE = AgentSettings(permission_mode="allow")


class NotingForks:
    """A factory that remembers what it was asked to start."""

    def __init__(self, forks: DefaultForkSubagent) -> None:
        self._forks = forks
        self.asked: list[ForkParams] = []

    async def fork(self, params: ForkParams) -> ForkHandle:
        """Start one."""
        self.asked.append(params)
        return await self._forks.fork(params)

    def background(self, run_id: str | None = None) -> int:
        """Let go of waits."""
        return self._forks.background(run_id)


@pytest.fixture
async def noted(forks: DefaultForkSubagent) -> NotingForks:
    """A factory whose orders can be looked at."""
    return NotingForks(forks)


@pytest.fixture
def equip(llm: AnthropicProvider) -> Callable[[ForkParams], ForkParams]:
    """Gives every run its provider and tools."""

    async def ran(arguments: dict[str, Any]) -> str:
        return "ran"

    tools = FunctionTools(dict.fromkeys(("Bash", "FileWrite", "FileRead"), ran))
    return lambda params: replace(params, llm=llm, tool_dispatcher=tools)


async def calls(parent: Parent, *each: dict[str, Any], name: str = "Agent") -> None:
    """Let the parent's model call the tool."""
    turn = {"tools": [call(name, **one) for one in each]}
    await parent.ask(request(answer=turn, tools=[AGENT, BASH, *TOOLS], system="Parent's own words."))


async def test_a_fork_of_the_agent_tool_is_the_parent_with_all_it_has(
    parent: Parent, noted: NotingForks, equip: Callable[[ForkParams], ForkParams], sim: Simulator
) -> None:
    """The parent's model, prompt and tools, every one of which it may call."""
    prompt = says("x", {"tools": [call("FileWrite"), call("FileRead"), call("Bash")]}, "Scope: all")
    await calls(parent, {"prompt": prompt})
    async with AgentTool(noted, parent.capture, settings=FREE, equip=equip) as tool:
        await tool.handle_all()
        assert await tool.next_notification()

    parents, child = body_of(sim, 0), body_of(sim, 1)
    assert {key: child[key] for key in ("model", "system", "tools")} == {
        key: parents[key] for key in ("model", "system", "tools")
    }
    assert child["messages"][-1]["content"][1]["text"] == BOILERPLATE
    assert [one["content"] for one in results_in(sim, 2)] == ["ran"] * 3


async def test_a_session_may_give_its_forks_fewer_turns(
    parent: Parent, noted: NotingForks, equip: Callable[[ForkParams], ForkParams]
) -> None:
    """The definition says what holds where the session says nothing: 200 turns, and questions go to the parent."""
    await calls(parent, {"prompt": "x"})

    def short(params: ForkParams) -> ForkParams:
        return replace(equip(params), max_turns=3)

    for given in (equip, short):
        async with AgentTool(noted, parent.capture, equip=given) as tool:
            await tool.handle_all()

    assert [(one.max_turns, one.permissions.mode) for one in noted.asked] == [(200, "bubble"), (3, "bubble")]


@pytest.mark.parametrize(
    "changes",
    [{"tools": ("Bash",)}, {"disallowed_tools": ("Bash",)}, {"model": "haiku"}, {"prompt": "You are another."}],
)
def test_only_what_changes_nothing_of_the_request_forks(changes: dict[str, Any]) -> None:
    """A definition with tools, a model or a prompt of its own has another prefix; no named agent is without."""
    assert FORK_AGENT.forks
    assert not replace(FORK_AGENT, **changes).forks
    assert [one.name for one in BUILT_IN if one.forks] == []


async def test_every_agent_is_started_in_the_background(
    parent: Parent, noted: NotingForks, equip: Callable[[ForkParams], ForkParams]
) -> None:
    """Forks, named agents and what those start; also where the session asks for the foreground."""
    agents = AgentRegistry()
    agents.add(AgentDefinition(name="Lead", description="d", prompt="p", tools=("*", "Agent")))
    nested = says("x", {"tools": [call("Agent", prompt="x", subagent_type="Plan")]}, "led")
    await calls(
        parent, {"prompt": "x"}, {"prompt": "x", "subagent_type": "Plan"}, {"prompt": nested, "subagent_type": "Lead"}
    )

    def waiting(params: ForkParams) -> ForkParams:
        return replace(equip(params), mode=DelegateMode.SYNC)

    async with AgentTool(noted, parent.capture, agents=agents, settings=FREE, equip=waiting) as tool:
        await tool.handle_all()
        told = [await tool.next_notification() for _ in range(3)]

    assert all(told)
    assert [one.mode for one in noted.asked] == [DelegateMode.FORK_AND_FORGET] * 4


async def test_every_sidecar_is_started_in_the_background(
    parent: Parent, noted: NotingForks, equip: Callable[[ForkParams], ForkParams]
) -> None:
    """Nobody's foreground is taken for one, whatever the session equips its runs with."""
    await parent.ask(request(answer={"text": "Done."}))

    def waiting(params: ForkParams) -> ForkParams:
        return replace(equip(params), mode=DelegateMode.SYNC)

    host = SidecarHost(forks=noted, source=parent.capture, equip=waiting)
    await btw(host, says("How far are you?", "Half way."))
    await away(host)

    assert [one.mode for one in noted.asked] == [DelegateMode.FORK_AND_FORGET] * 2


async def test_a_delegated_fork_is_the_same_and_waited_for(
    parent: Parent, noted: NotingForks, equip: Callable[[ForkParams], ForkParams]
) -> None:
    """The delegation tool starts what the definition says too, in the foreground."""
    await calls(parent, {"prompt": "x"}, name="Delegate")
    async with DelegationTool(noted, parent.capture, equip=equip) as tool:
        await tool.handle_all()

    (asked,) = noted.asked
    assert (asked.mode, asked.max_turns, asked.permissions.mode) == (DelegateMode.SYNC, 200, "bubble")


def test_a_wait_never_moves_to_the_background_unless_that_is_turned_on() -> None:
    """Neither in a program's settings nor from an environment that says nothing."""
    assert AgentSettings().auto_background_s is None
    assert AgentSettings().from_env().auto_background_s is None
