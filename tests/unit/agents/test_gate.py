"""What the children of an Agent or Delegate call may do without asking, and who is asked."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import AgentTool, DefaultForkSubagent, FunctionTools, PermissionAnswer, PermissionAsk, Permissions
from nexofork.agents.delegation import DelegationTool, delegate_tool
from nexofork.agents.settings import AgentSettings
from tests.support.conversation import AGENT, BASH, call, request, says
from tests.support.parents import results_in

if TYPE_CHECKING:
    from nexofork import AnthropicProvider, ForkParams
    from nexofork.simulator import Simulator
    from tests.support.parents import Parent

TOUCHES = says("touch", {"tools": [call("Bash", command="touch x")]}, {"text": "Scope: x\nResult: tried"})
AGENT_CALL = call("Agent", prompt=TOUCHES, description="touch")
NAMED_CALL = call("Agent", prompt=TOUCHES, description="touch", subagent_type="general-purpose")
DELEGATE_CALL = call("Delegate", prompt=TOUCHES, description="touch")
EVERY_CALL = pytest.mark.parametrize("made", [AGENT_CALL, NAMED_CALL, DELEGATE_CALL], ids=["fork", "named", "delegate"])


class Session:
    """A parent whose model made one call, and what became of it."""

    def __init__(self, parent: Parent, forks: DefaultForkSubagent, llm: AnthropicProvider) -> None:
        self.parent = parent
        self.forks = forks
        self.llm = llm
        self.ran: list[str] = []

    async def follow(self, *made: dict[str, Any], settings: AgentSettings | None = None, **equipped: Any) -> list[str]:
        """Let the parent's model make these calls, follow them to their ends, and return how they were answered."""
        tools = FunctionTools({"Bash": self._bash})

        def equip(params: ForkParams) -> ForkParams:
            return replace(params, llm=self.llm, tool_dispatcher=tools, **equipped)

        await self.parent.ask(request(answer={"tools": list(made)}, tools=[AGENT, delegate_tool(), BASH]))
        kind: Any = DelegationTool if made[0]["name"] == "Delegate" else AgentTool
        async with kind(self.forks, self.parent.capture, settings=settings, equip=equip) as tool:
            answers = [answer["content"] for answer in await tool.handle_all()]
            while await tool.next_notification() is not None:
                pass
        return answers

    async def _bash(self, arguments: dict[str, Any]) -> str:
        self.ran.append(arguments["command"])
        return "done"


@pytest.fixture
def session(parent: Parent, forks: DefaultForkSubagent, llm: AnthropicProvider) -> Session:
    """A session that has not begun."""
    return Session(parent, forks, llm)


def denial(sim: Simulator) -> str:
    """What the one child was told of its one call."""
    (result,) = (found for record in sim.log[1:] for found in results_in(sim, record.index) if "is_error" in found)
    return str(result["content"])


@EVERY_CALL
@pytest.mark.parametrize("allow", [True, False])
async def test_what_a_child_does_beyond_reading_is_asked_for(
    session: Session, caplog: pytest.LogCaptureFixture, made: dict[str, Any], allow: bool
) -> None:
    """The session's callback is asked once, and its answer decides whether the command runs."""
    asked: list[PermissionAsk] = []

    async def decide(ask: PermissionAsk) -> PermissionAnswer:
        asked.append(ask)
        return PermissionAnswer(allow=allow)

    await session.follow(made, on_permission=decide)

    assert [(ask.name, ask.arguments) for ask in asked] == [("Bash", {"command": "touch x"})]
    assert session.ran == (["touch x"] if allow else [])
    assert not caplog.records


@EVERY_CALL
async def test_where_nobody_was_named_to_answer_the_child_is_told_at_once(
    session: Session, sim: Simulator, caplog: pytest.LogCaptureFixture, made: dict[str, Any]
) -> None:
    """Its call is denied without a wait, with what the session can set; the log says so once for all children."""
    await session.follow(made, made)

    assert session.ran == []
    told = [found for record in sim.log[1:] for found in results_in(sim, record.index) if "is_error" in found]
    assert len(told) == 2
    assert all("on_permission" in one["content"] and "permission_mode" in one["content"] for one in told)
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "on_permission" in warning.getMessage()
    assert "permission_mode" in warning.getMessage()


@pytest.mark.parametrize("made", [AGENT_CALL, NAMED_CALL], ids=["fork", "named"])
@pytest.mark.parametrize(("mode", "only"), [(None, True), ("allow", False)])
async def test_the_model_is_told_that_its_agents_may_only_read(
    session: Session, made: dict[str, Any], mode: Any, only: bool
) -> None:
    """The answer to its call says so where nobody was named, and only there."""
    (answer,) = await session.follow(made, settings=AgentSettings(permission_mode=mode))

    assert ("may only read" in json.loads(answer)["note"]) == only


@EVERY_CALL
@pytest.mark.parametrize(("mode", "ran"), [("allow", ["touch x"]), ("deny", [])])
async def test_a_policy_of_the_session_asks_nobody(
    session: Session, caplog: pytest.LogCaptureFixture, made: dict[str, Any], mode: Any, ran: list[str]
) -> None:
    """What it says is done, and nothing is warned of."""
    await session.follow(made, settings=AgentSettings(permission_mode=mode))

    assert session.ran == ran
    assert not caplog.records


@EVERY_CALL
async def test_who_chose_to_be_asked_elsewhere_is(
    session: Session, sim: Simulator, caplog: pytest.LogCaptureFixture, made: dict[str, Any]
) -> None:
    """A session that sets `bubble` itself may answer by the run's id: the question waits, and the log says that."""
    await session.follow(made, permissions=Permissions(mode="bubble", deadline_s=0.05))

    assert "nobody answered within 0.05 s" in denial(sim)
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "wait 0.05 s for `nexofork answer` or `attach`" in warning.getMessage()
