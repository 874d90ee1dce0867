"""A parent's Delegate calls: the answer is the report, unless the wait was moved to the background."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import CacheSafeSlot, DefaultForkSubagent, ForkParams, ParentContext, QuerySource
from nexofork.agents.delegation import DELEGATE_TOOL_SCHEMA, DelegationTool, delegate_tool
from nexofork.agents.patience import moved_after
from nexofork.agents.settings import AgentSettings
from nexofork.core.boilerplate import BOILERPLATE
from nexofork.errors import BadReply, EmptySlot, ForkRefused
from nexofork.run.events import ForkEnded, ForkStarted
from tests.support.conversation import BASH, call, request, says
from tests.support.parents import body_of

if TYPE_CHECKING:
    from nexofork import AnthropicProvider
    from nexofork.simulator import Simulator
    from tests.support.parents import Parent

TOOLS = [delegate_tool(), BASH]


class Session:
    """A parent with a Delegate tool."""

    def __init__(self, parent: Parent, forks: DefaultForkSubagent, llm: AnthropicProvider) -> None:
        self.parent = parent
        self.forks = forks
        self.llm = llm
        self.params: dict[str, Any] = {}

    def equip(self, params: ForkParams) -> ForkParams:
        """Give a run its provider."""
        return replace(params, llm=self.llm, **self.params)

    def tool(self, forks: DefaultForkSubagent | None = None, **more: Any) -> DelegationTool:
        """The parent's tool."""
        return DelegationTool(forks or self.forks, self.parent.capture, equip=self.equip, **more)

    async def calls(self, *calls: dict[str, Any], **changes: Any) -> None:
        """Let the parent's model make these Delegate calls."""
        turn = {"text": "I delegate.", "tools": [call("Delegate", **one) for one in calls]}
        await self.parent.ask(request(answer=turn, **{"tools": TOOLS, **changes}))


@pytest.fixture
def session(parent: Parent, forks: DefaultForkSubagent, llm: AnthropicProvider) -> Session:
    """A session whose parent has not asked anything yet."""
    return Session(parent, forks, llm)


async def test_the_answer_is_the_report_and_the_prefix_is_shared(session: Session, sim: Simulator) -> None:
    """Two calls of one reply run side by side as siblings of it; their answers come in the order of the calls."""
    await session.calls({"prompt": says("one", "Scope: 1\nResult: a")}, {"prompt": says("two", "Scope: 2\nResult: b")})
    async with session.tool() as tool:
        answers = await tool.handle_all()

    reply = session.parent.capture.snapshot().reply
    assert reply is not None
    assert [answer["tool_use_id"] for answer in answers] == [use.id for use in reply.tool_uses]
    assert [answer["content"] for answer in answers] == ["Scope: 1\nResult: a", "Scope: 2\nResult: b"]
    assert not any("is_error" in answer for answer in answers)
    assert all(record.read >= sim.log[0].prompt_tokens for record in sim.log[1:])
    assert body_of(sim, 1)["messages"][-1]["content"][2]["text"] == BOILERPLATE


async def test_the_sdks_next_request_takes_the_answer(session: Session, sim: Simulator) -> None:
    """A whole loop: the model delegates, gets the report as the result of its call, and ends."""
    body = request(answer={"tools": [call("Delegate", prompt="look", description="d")]}, tools=TOOLS)
    client = session.parent.client
    message = await client.messages.create(**body)
    async with session.tool() as tool:
        answers = [await tool.handle(block) for block in message.content if block.type == "tool_use"]
    messages = [
        *body["messages"],
        {"role": "assistant", "content": [block.model_dump(exclude_unset=True) for block in message.content]},
        {"role": "user", "content": answers},
    ]
    last = await client.messages.create(**{**body, "messages": messages})

    assert last.stop_reason == "end_turn"
    assert answers[0]["content"].startswith("Scope: look")


async def test_a_wait_is_moved_to_the_background_and_the_end_is_told(session: Session, sim: Simulator) -> None:
    """The call is answered at once with the run; its report comes as one notification, and nothing is restarted."""
    await session.calls({"prompt": says("slow", {"text": "Scope: s\nResult: late", "hold": "end"})})
    async with session.tool() as tool, asyncio.TaskGroup() as tasks:
        answering = tasks.create_task(tool.handle_all())
        await sim.received(2)
        assert tool.background() == 1
        (answer,) = await answering
        said = json.loads(answer["content"])
        assert tool.running == (said["run_id"],)
        sim.release("end")
        notice = await tool.next_notification()

    assert said["status"] == "async_launched"
    assert notice is not None
    assert f"<task-id>{said['run_id']}</task-id>" in notice
    assert "late" in notice
    assert sim.request_count == 2


async def test_a_wait_moves_by_itself_after_the_factorys_time(session: Session, sim: Simulator) -> None:
    """As any synchronous wait of the factory does."""
    await session.calls({"prompt": says("slow", {"text": "Late.", "hold": "end"})})
    async with DefaultForkSubagent(auto_background_s=0.05) as forks, session.tool(forks) as tool:
        (answer,) = await tool.handle_all()
        assert json.loads(answer["content"])["status"] == "async_launched"
        sim.release("end")
        assert "Late." in str(await tool.next_notification())


@pytest.mark.parametrize(("asked", "most"), [({"timeout_s": 0.05}, 1800.0), ({}, 0.05), ({"timeout_s": 900}, 0.05)])
async def test_work_that_takes_too_long_is_given_up(
    session: Session, sim: Simulator, asked: dict[str, float], most: float
) -> None:
    """By the model's time or the session's, whichever is shorter; the parent is told and goes on."""
    await session.calls({"prompt": says("slow", {"text": "Late.", "hold": "end"}), **asked})
    async with session.tool(timeout_s=most) as tool:
        (answer,) = await tool.handle_all()

    assert answer["is_error"]
    assert "timed_out" in answer["content"]
    assert "0.05 s" in answer["content"]


async def test_work_that_fails_says_why_and_what_it_had(session: Session) -> None:
    """As an error the model can read."""
    await session.calls({"prompt": says("x", {"text": "Half of it.", "stop_reason": "max_tokens"})})
    async with session.tool() as tool:
        (answer,) = await tool.handle_all()

    assert answer["is_error"]
    assert "ended as failed" in answer["content"]
    assert "Half of it." in answer["content"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "`prompt` is missing"),
        ({"prompt": "x", "timeout_s": "soon"}, "Pass seconds above 0"),
        ({"prompt": "x", "timeout_s": 0}, "Pass seconds above 0"),
        ({"prompt": "x", "timeout_s": True}, "Pass seconds above 0"),
        ({"prompt": "x", "subagent_type": "Explore"}, "has no types"),
    ],
)
async def test_a_bad_call_is_answered_and_its_neighbour_is_done(
    session: Session, sim: Simulator, arguments: dict[str, Any], words: str
) -> None:
    """Nothing is started for it."""
    await session.calls(arguments, {"prompt": says("fine", "Done.")})
    async with session.tool() as tool:
        bad, good = await tool.handle_all()

    assert bad["is_error"]
    assert words in bad["content"]
    assert good["content"] == "Done."
    assert sim.request_count == 2


@pytest.mark.parametrize("settings", [AgentSettings(fork_enabled=False), AgentSettings(coordinator=True)])
async def test_a_closed_gate_holds_for_delegation(session: Session, sim: Simulator, settings: AgentSettings) -> None:
    """A session that does not fork does not delegate to forks either."""
    await session.calls({"prompt": "x"})
    async with session.tool(settings=settings) as tool:
        (answer,) = await tool.handle_all()
    assert answer["is_error"]
    assert sim.request_count == 1


async def test_a_fork_cannot_delegate(session: Session, sim: Simulator) -> None:
    """It is told to do the work itself."""
    session.params["parent_ctx"] = ParentContext(query_source=QuerySource.FORK)
    await session.calls({"prompt": "x"})
    async with session.tool() as tool:
        (answer,) = await tool.handle_all()
    assert "already a fork" in answer["content"]
    assert sim.request_count == 1


async def test_cancelling_the_call_aborts_the_work(session: Session, sim: Simulator) -> None:
    """Nobody waits for it, so nobody pays for it."""
    await session.calls({"prompt": says("slow", {"text": "Late.", "hold": "end"})})
    async with session.tool() as tool, asyncio.TaskGroup() as tasks:
        answering = tasks.create_task(tool.handle_all())
        await sim.received(2)
        answering.cancel()
    assert sim.log[1].closed_early


async def test_wrong_use_is_named(session: Session) -> None:
    """No context, another tool, another turn, an empty slot, a time that is none."""
    await session.calls({"prompt": "x"})
    tool = session.tool()
    with pytest.raises(ForkRefused, match="async with"):
        await tool.handle_all()
    async with tool:
        with pytest.raises(ForkRefused, match="is not the Delegate tool"):
            await tool.handle({"id": "t", "name": "Bash", "input": {}})
        with pytest.raises(BadReply, match="which the recorded reply does not"):
            await tool.handle({"id": "t", "name": "Delegate", "input": {"prompt": "x"}})
    async with DelegationTool(session.forks, CacheSafeSlot()) as empty:
        with pytest.raises(EmptySlot):
            await empty.handle_all()
    with pytest.raises(ForkRefused, match="timeout_s is 0"):
        session.tool(timeout_s=0)


def test_the_schema_is_constant_and_survives_the_sdk() -> None:
    """Serialised as the SDK does, it is the same bytes again."""
    assert json.dumps(delegate_tool(), ensure_ascii=False, separators=(",", ":")).encode() == DELEGATE_TOOL_SCHEMA


@pytest.mark.parametrize("limit_s", [0.05, 1e-9])
async def test_a_wait_moves_by_itself_after_the_sessions_time(session: Session, sim: Simulator, limit_s: float) -> None:
    """As the settings say, be it before the wait has begun; the end is told, and the run's events are still seen."""
    seen: list[object] = []
    session.params["on_message"] = seen.append
    await session.calls({"prompt": says("slow", {"text": "Late.", "hold": "end"})})
    async with session.tool(settings=AgentSettings(auto_background_s=limit_s)) as tool:
        (answer,) = await tool.handle_all()
        assert json.loads(answer["content"])["status"] == "async_launched"
        sim.release("end")
        assert "Late." in str(await tool.next_notification())

    assert isinstance(seen[0], ForkStarted)
    assert isinstance(seen[-1], ForkEnded)


async def test_only_the_wait_that_took_so_long_is_moved(session: Session) -> None:
    """It is named by its run, once, and tried again where it had not begun."""
    snapshot = await session.parent.ask()
    asked, moved = list[str](), asyncio.Event()

    def background(run_id: str) -> int:
        asked.append(run_id)
        if len(asked) == 2:
            moved.set()
        return len(asked) - 1

    started = ForkStarted(run_id="r1", label="x", directive="x", cache_key_hash=0)
    with moved_after(0.001, ForkParams(cache_safe=snapshot, prompt_messages="x"), background) as params:
        assert params.on_message is not None
        params.on_message(started)
        await moved.wait()

    assert asked == ["r1", "r1"]
