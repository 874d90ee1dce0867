"""A parent's Agent calls, in process: what is started, what is refused and why, and what all of it shares."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import (
    AgentDefinition,
    AgentRegistry,
    AgentTool,
    CacheSafeParams,
    CacheSafeSlot,
    ForkParams,
    FunctionTools,
    ParentContext,
    Reply,
)
from nexofork.agents.context import AgentContext
from nexofork.agents.schema import AGENT_TOOL_SCHEMA, agent_tool
from nexofork.agents.settings import AgentSettings
from nexofork.core.boilerplate import BOILERPLATE, PLACEHOLDER_RESULT
from nexofork.errors import BadReply, EmptySlot, ForkRefused, NothingCaptured
from tests.support.conversation import AGENT, BASH, call, request, says
from tests.support.parents import body_of, results_in
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexofork import AnthropicProvider, DefaultForkSubagent
    from nexofork.simulator import Simulator
    from tests.support.parents import Parent

READ: dict[str, Any] = {"name": "FileRead", "input_schema": {"type": "object"}}
WRITE: dict[str, Any] = {"name": "FileWrite", "input_schema": {"type": "object"}}
TOOLS = [WRITE, AGENT, READ, BASH]
DONE = "Scope: all\nResult: done"


class Session:
    """A parent with an Agent tool, and what its model is made to call."""

    def __init__(self, parent: Parent, forks: DefaultForkSubagent, llm: AnthropicProvider) -> None:
        self.parent = parent
        self.forks = forks
        self.llm = llm
        self.params: dict[str, Any] = {"tool_dispatcher": FunctionTools({"Bash": _bash, "FileRead": _bash})}

    def equip(self, params: ForkParams) -> ForkParams:
        """Give a run its provider and tools."""
        return replace(params, llm=self.llm, **self.params)

    def tool(self, **more: Any) -> AgentTool:
        """The parent's tool."""
        return AgentTool(self.forks, self.parent.capture, equip=self.equip, **more)

    async def calls(self, *calls: dict[str, Any], **changes: Any) -> None:
        """Let the parent's model make these Agent calls."""
        turn = {"text": "I delegate.", "tools": [call("Agent", **one) for one in calls]}
        await self.parent.ask(request(answer=turn, **{"tools": TOOLS, **changes}))


async def _bash(arguments: dict[str, Any]) -> str:
    return f"ran {arguments}"


@pytest.fixture
async def session(parent: Parent, forks: DefaultForkSubagent, llm: AnthropicProvider) -> Session:
    """A session whose parent has not asked anything yet."""
    return Session(parent, forks, llm)


@pytest.fixture
async def started(session: Session) -> Callable[..., Any]:
    """Makes the model call Agent with some arguments, and returns how the one call was answered."""

    async def answer(arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
        await session.calls(arguments)
        async with session.tool(**more) as tool:
            (block,) = await tool.handle_all()
            return block

    return answer


def launched(block: dict[str, Any]) -> dict[str, Any]:
    """What an answer says of the agent that was started."""
    assert not block.get("is_error"), block
    said: dict[str, Any] = json.loads(block["content"])
    assert said["status"] == "async_launched"
    return said


async def test_the_forks_of_one_reply_are_siblings_with_the_parents_prefix(session: Session, sim: Simulator) -> None:
    """Each call is answered with its run; the children share every byte but their directive, and one cache entry."""
    await session.calls({"prompt": "first part"}, {"prompt": "second part"}, {"prompt": "third part"})
    async with session.tool() as tool:
        answers = await tool.handle_all()
        results = [await tool.wait(launched(answer)["run_id"]) for answer in answers]

    snapshot = session.parent.capture.snapshot()
    assert snapshot.reply is not None
    assert [answer["tool_use_id"] for answer in answers] == [use.id for use in snapshot.reply.tool_uses]
    assert [result.directive for result in results if result] == ["first part", "second part", "third part"]
    for index in (1, 2, 3):
        last = body_of(sim, index)["messages"][-1]["content"]
        assert [block["content"] for block in last[:3]] == [PLACEHOLDER_RESULT] * 3
        assert last[3]["text"] == BOILERPLATE
        assert sim.log[index].read >= sim.log[0].write_5m
    assert all(result and result.decision and result.decision["siblings"] == 3 for result in results)


async def test_calls_may_be_handled_one_by_one_and_are_siblings_all_the_same(session: Session) -> None:
    """Blocks of the SDK's message go in as they are; the runs know how many they are."""
    message = await session.parent.client.messages.create(
        **request(answer={"tools": [call("Agent", prompt="one"), call("Agent", prompt="two")]}, tools=TOOLS)
    )
    async with session.tool() as tool:
        uses = [block for block in message.content if block.type == "tool_use"]
        runs = [launched(await tool.handle(use))["run_id"] for use in uses]
        results = [await tool.wait(run) for run in runs]

    assert [result.decision["siblings"] for result in results if result and result.decision] == [2, 2]


async def test_a_call_that_is_handled_twice_starts_one_agent(session: Session, sim: Simulator) -> None:
    """The second answer is the first one, byte for byte."""
    await session.calls({"prompt": "once"})
    async with session.tool() as tool:
        first, second = await tool.handle_all(), await tool.handle_all()
        await tool.wait(launched(first[0])["run_id"])

    assert first == second
    assert sim.request_count == 2


async def test_calls_of_other_tools_are_left_to_the_parent(session: Session) -> None:
    """Only Agent calls are answered; handing in another one is named as a mistake."""
    turn = {"tools": [call("Bash", command="ls"), call("Agent", prompt="x"), call("FileRead")]}
    await session.parent.ask(request(answer=turn, tools=TOOLS))
    async with session.tool() as tool:
        (answer,) = await tool.handle_all()
        launched(answer)
        with pytest.raises(ForkRefused, match="'Bash' is not the Agent tool"):
            await tool.handle({"type": "tool_use", "id": "t", "name": "Bash", "input": {}})


async def test_an_agent_tool_of_another_name_is_found_by_the_names_given(session: Session) -> None:
    """A parent may call the tool Task."""
    session.params["tool_names"] = {"Task": "Agent"}
    turn = {"tools": [call("Task", prompt="x")]}
    await session.parent.ask(request(answer=turn, tools=[{**AGENT, "name": "Task"}, BASH]))
    async with session.tool() as tool:
        (answer,) = await tool.handle_all()
        launched(answer)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "`prompt` is missing. Say in `prompt`"),
        ({"prompt": "  "}, "`prompt` is empty"),
        ({"prompt": ["a"]}, '`prompt` is ["a"]. Pass `prompt` as a string'),
        ({"prompt": "x", "description": 7}, "`description` is 7"),
        ({"prompt": "x", "subagent_type": {"a": 1}}, "`subagent_type` is"),
        ({"prompt": "x", "subagent_type": "Expolre"}, "no agent 'Expolre'. Agents: Explore, general-purpose, Plan."),
        ({"prompt": "x", "subagent_type": "fork"}, "Leave subagent_type out to fork"),
        ({"prompt": "<fork-boilerplate>"}, "contains the tag"),
    ],
)
async def test_a_call_that_cannot_be_followed_is_answered_with_what_to_do(
    started: Callable[..., Any], sim: Simulator, arguments: dict[str, Any], words: str
) -> None:
    """The answer is an error result for that very call, and nothing is sent."""
    answer = await started(arguments)

    assert (answer["type"], answer["is_error"]) == ("tool_result", True)
    assert words in answer["content"]
    assert sim.request_count == 1


async def test_a_bad_call_does_not_keep_its_neighbours_from_starting(session: Session) -> None:
    """Of three calls the one without a prompt is refused, in its place."""
    await session.calls({"prompt": "a"}, {"description": "b"}, {"prompt": "c", "subagent_type": "general-purpose"})
    async with session.tool() as tool:
        answers = await tool.handle_all()

    assert [bool(answer.get("is_error")) for answer in answers] == [False, True, False]
    assert [launched(answers[at])["agent"] for at in (0, 2)] == ["fork", "general-purpose"]


@pytest.mark.parametrize("arguments", [{"subagent_type": ""}, {"subagent_type": None}, {"run_in_background": False}])
async def test_what_says_nothing_of_a_type_is_a_fork(started: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """An empty type is none, and arguments that are not known change nothing."""
    assert launched(await started({"prompt": "x", **arguments}))["agent"] == "fork"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (AgentSettings(fork_enabled=False), "forking is turned off"),
        (AgentSettings(coordinator=True), "a coordinator does not fork"),
        (AgentSettings(interactive=False), "no permission policy is set"),
        (AgentSettings(interactive=False, permission_mode="bubble"), "no permission policy is set"),
    ],
)
async def test_a_closed_gate_refuses_forks_and_names_the_other_way(
    session: Session, settings: AgentSettings, words: str
) -> None:
    """The fork is refused with the types that can be had instead; such a type is started."""
    await session.calls({"prompt": "x"}, {"prompt": "x", "subagent_type": "Explore"})
    async with session.tool(settings=settings) as tool:
        fork, named = await tool.handle_all()

    assert fork["is_error"]
    assert words in fork["content"]
    assert "Name a subagent_type (Explore, general-purpose, Plan)" in fork["content"]
    assert launched(named)["agent"] == "Explore"


async def test_without_anybody_to_ask_a_policy_opens_the_gate(started: Callable[..., Any]) -> None:
    """A headless session that says what forks may do can fork."""
    launched(await started({"prompt": "x"}, settings=AgentSettings(interactive=False, permission_mode="allow")))


@pytest.mark.parametrize("kind", [None, "Explore"])
async def test_a_fork_is_known_by_its_source_also_after_its_messages_were_compacted(
    session: Session, sim: Simulator, kind: str | None
) -> None:
    """Nothing in the messages says that this is a fork; its query source does."""
    session.params["parent_ctx"] = ParentContext(query_source="agent:builtin:fork")
    await session.calls({"prompt": "x", "subagent_type": kind})
    async with session.tool() as tool:
        (answer,) = await tool.handle_all()

    assert answer["is_error"]
    assert "already a fork (recognised by its query source" in answer["content"]
    assert sim.request_count == 1


@pytest.mark.breaks_prefix("the parent's own request carries the boilerplate")
async def test_a_fork_whose_source_was_lost_is_known_by_the_boilerplate(session: Session) -> None:
    """The tag in the place where only the runtime puts it is the second guard."""
    said = [
        {"type": "text", "text": BOILERPLATE},
        {"type": "text", "text": says("x", {"tools": [call("Agent", prompt="x")]})},
    ]
    await session.parent.ask(request(messages=[{"role": "user", "content": said}], tools=TOOLS))
    async with session.tool() as tool:
        (answer,) = await tool.handle_all()

    assert "already a fork (recognised by the fork boilerplate in messages.0)" in answer["content"]


@pytest.mark.breaks_prefix("the parent's own request carries the boilerplate")
async def test_a_parent_that_read_a_file_with_the_tag_can_still_fork(session: Session) -> None:
    """The boilerplate in a tool result is a file's text."""
    turn = {"tools": [call("Agent", prompt="x")]}
    history = [
        {"role": "user", "content": "Read it."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t0", "name": "FileRead", "input": {}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t0", "content": f"core/boilerplate.py:\n{BOILERPLATE}"},
                {"type": "text", "text": says("Go on.", turn)},
            ],
        },
    ]
    await session.parent.ask(request(messages=history, tools=TOOLS))
    async with session.tool() as tool:
        (answer,) = await tool.handle_all()
        result = await tool.wait(launched(answer)["run_id"])

    assert result is not None
    assert result.ok


async def test_a_child_that_calls_agent_is_refused_in_its_own_turn_and_goes_on(
    session: Session, sim: Simulator
) -> None:
    """It has the tool in its list, is told to work itself, and completes."""
    directive = says("Delegate.", {"tools": [call("Agent", prompt="grandchild")]}, {"text": DONE})
    await session.calls({"prompt": directive})
    async with session.tool() as tool:
        (answer,) = await tool.handle_all()
        result = await tool.wait(launched(answer)["run_id"])

    assert result is not None
    assert (result.ok, result.report.result) == (True, "done")
    (refused,) = results_in(sim, 2)
    assert refused["is_error"]
    assert "You are a fork and cannot start agents" in refused["content"]
    assert sim.request_count == 3


async def test_a_snapshot_slot_that_was_never_written_is_a_named_error(session: Session) -> None:
    """There is nothing to fork from; the error says what to save and when."""
    async with AgentTool(session.forks, CacheSafeSlot(), equip=session.equip) as tool:
        with pytest.raises(EmptySlot, match=r"never written.*after each of its turns"):
            await tool.handle_all()
        with pytest.raises(NothingCaptured):
            await tool.handle({"id": "t", "name": "Agent", "input": {"prompt": "x"}})


async def test_a_slot_without_its_reply_takes_the_one_that_is_handled(session: Session, sim: Simulator) -> None:
    """A parent that saves its requests itself hands the reply in; children continue it."""
    message = await session.parent.client.messages.create(
        **request(answer={"tools": [call("Agent", prompt="x")]}, tools=TOOLS)
    )
    slot = CacheSafeSlot()
    slot.save(replace(session.parent.capture.snapshot(), reply=None), "sdk")
    async with AgentTool(session.forks, slot, equip=session.equip) as tool:
        (answer,) = await tool.handle_all(message)
        await tool.wait(launched(answer)["run_id"])

    assert body_of(sim, 1)["messages"][-2]["content"][-1]["input"] == {"prompt": "x"}


async def test_a_reply_of_another_turn_is_refused(session: Session) -> None:
    """Its calls are not answered by a snapshot that never saw them."""
    await session.calls({"prompt": "x"})
    other = Reply.from_response([{"type": "tool_use", "id": "old", "name": "Agent", "input": {"prompt": "x"}}])
    async with session.tool() as tool:
        with pytest.raises(BadReply, match="'old', which the recorded reply does not"):
            await tool.handle_all(other)
        with pytest.raises(BadReply, match="'old', which the recorded reply does not"):
            await tool.handle(other.tool_uses[0])


async def test_a_tool_that_was_not_entered_says_so(session: Session, sim: Simulator) -> None:
    """Nobody would follow what it starts, so it starts nothing."""
    await session.calls({"prompt": "x"})
    with pytest.raises(ForkRefused, match="use `async with`"):
        await session.tool().handle_all()

    assert sim.request_count == 1


async def test_the_schema_is_constant_and_survives_the_sdk(parent: Parent, sim: Simulator) -> None:
    """What the SDK sends for it are the constant's own bytes, and it has no way to ask for the foreground."""
    await parent.ask(request(tools=[agent_tool(), BASH]))

    raw = sim.body(0)
    assert raw is not None
    assert AGENT_TOOL_SCHEMA in raw
    schema = json.loads(AGENT_TOOL_SCHEMA)["input_schema"]
    assert set(schema["properties"]) == {"prompt", "description", "subagent_type"}


async def test_the_listing_is_frozen_for_the_session(session: Session) -> None:
    """An agent that is defined later changes neither the listing nor what can be started; fork is never listed."""
    agents = AgentRegistry()
    tool = session.tool(agents=agents)
    before = tool.listing
    agents.add(AgentDefinition(name="Late", description="late", prompt="late"))
    await session.calls({"prompt": "x", "subagent_type": "Late"})
    async with tool:
        (answer,) = await tool.handle_all()

    assert tool.listing == before
    assert [line.split(":")[0] for line in before.split("\n")] == ["- Explore", "- general-purpose", "- Plan"]
    assert "there is no agent 'Late'" in answer["content"]


# Named agents.

LONG = "Convention: " + "be brief and kind. " * 1_500


async def test_a_named_agent_has_a_request_of_its_own(session: Session, sim: Simulator) -> None:
    """Its prompt, its model, its share of the parent's tools in the parent's order; nothing of the conversation."""
    context = AgentContext(project_conventions="Use tabs.", git_status="## main")
    await session.calls({"prompt": "Where is the cut?", "subagent_type": "explore"}, system="Parent's own words.")
    async with session.tool(context=context) as tool:
        (answer,) = await tool.handle_all()
        result = await tool.wait(launched(answer)["run_id"])

    body = body_of(sim, 1)
    text = json.dumps(body)
    assert body["model"] == "claude-haiku-5-5"
    assert [tool["name"] for tool in body["tools"]] == ["FileRead", "Bash"]
    assert body["messages"][-1]["content"] == [{"type": "text", "text": "Where is the cut?"}]
    assert not any(word in text for word in ("Parent's own words", "lorem", "Use tabs", "## main", "fork-boilerplate"))
    assert result is not None
    assert (result.ok, result.cache and result.cache.cause) == (True, None)


@pytest.mark.parametrize(
    ("kind", "settings", "told"),
    [
        ("Explore", AgentSettings(), []),
        ("Explore", AgentSettings(keep_project_conventions=True), ["Use tabs."]),
        ("Explore", AgentSettings(keep_git_status=True), ["## main"]),
        ("Plan", AgentSettings(), ["Use tabs."]),
        ("general-purpose", AgentSettings(), ["Use tabs.", "## main"]),
    ],
)
async def test_what_a_definition_omits_can_be_kept_for_all(
    session: Session, sim: Simulator, kind: str, settings: AgentSettings, told: list[str]
) -> None:
    """Each omission has a switch of its own that turns it off."""
    context = AgentContext(project_conventions="Use tabs.", git_status="## main")
    await session.calls({"prompt": "x", "subagent_type": kind})
    async with session.tool(context=context, settings=settings) as tool:
        (answer,) = await tool.handle_all()
        await tool.wait(launched(answer)["run_id"])

    said = json.dumps(body_of(sim, 1)["messages"])
    assert [text for text in ("Use tabs.", "## main") if text in said] == told


async def test_siblings_of_one_named_agent_read_each_others_cache(session: Session, sim: Simulator) -> None:
    """One of three writes what they share, the others read it; a later one, from a later turn, reads it as well."""
    context = AgentContext(project_conventions=LONG)
    kind = "general-purpose"
    async with session.tool(context=context) as tool:
        await session.calls(*({"prompt": f"part {number}", "subagent_type": kind} for number in range(3)))
        runs = [launched(answer)["run_id"] for answer in await tool.handle_all()]
        results = [await tool.wait(run) for run in runs]
        await session.calls({"prompt": "later", "subagent_type": kind}, tokens=6_000)
        (answer,) = await tool.handle_all()
        results.append(await tool.wait(launched(answer)["run_id"]))

    own = [record for record in sim.log if body_of(sim, record.index)["system"][0]["text"].startswith("You do a piece")]
    assert len(own) == 4
    written = [record.write_5m for record in own]
    assert sum(bool(tokens) for tokens in written) == 1
    assert sorted(record.read for record in own) == [0, *[max(written)] * 3]
    assert all(result and result.ok and result.cache and result.cache.cause is None for result in results)


async def test_explore_reads_and_is_denied_what_changes_something(session: Session, sim: Simulator) -> None:
    """Tools outside its list and commands that write are refused when called, and it goes on."""
    prompt = says(
        "Look.",
        {"tools": [call("FileWrite", file_path="x"), call("Bash", command="rm x"), call("Bash", command="ls")]},
        {"text": "found"},
    )
    await session.calls({"prompt": prompt, "subagent_type": "Explore"})
    async with session.tool() as tool:
        (answer,) = await tool.handle_all()
        result = await tool.wait(launched(answer)["run_id"])

    write, remove, look = results_in(sim, 2)
    assert "'FileWrite'. Declared tools: FileRead, Bash." in write["content"]
    assert "rm changes files" in remove["content"]
    assert look["content"] == "ran {'command': 'ls'}"
    assert result is not None
    assert result.final_text == "found"


async def test_an_agent_without_any_of_its_tools_is_refused(session: Session) -> None:
    """The answer names what it would need and what there is."""
    await session.calls({"prompt": "x", "subagent_type": "Explore"}, tools=[AGENT, WRITE])
    async with session.tool() as tool:
        (answer,) = await tool.handle_all()

    assert "Explore works with FileRead, Glob, Grep, Bash, of which there is none here" in answer["content"]


async def test_tools_are_found_under_the_names_the_parent_has_for_them(session: Session, sim: Simulator) -> None:
    """A definition that says FileRead gets the parent's read_file, and calls of it reach FileRead."""
    session.params["tool_names"] = {"read_file": "FileRead"}
    prompt = says("Look.", {"tools": [call("read_file", file_path="x")]}, {"text": "found"})
    tools = [{**READ, "name": "read_file"}, AGENT]
    await session.calls({"prompt": prompt, "subagent_type": "Explore"}, tools=tools)
    async with session.tool() as tool:
        (answer,) = await tool.handle_all()
        await tool.wait(launched(answer)["run_id"])

    assert [tool["name"] for tool in body_of(sim, 1)["tools"]] == ["read_file"]
    assert results_in(sim, 2)[0]["content"] == "ran {'file_path': 'x'}"


async def test_an_agent_with_every_tool_cannot_start_agents(session: Session, sim: Simulator) -> None:
    """All tools means all but Agent: it is neither in its list nor answered otherwise when it is called."""
    prompt = says("Delegate.", {"tools": [call("Agent", prompt="x", subagent_type="Plan")]}, {"text": "done"})
    await session.calls({"prompt": prompt, "subagent_type": "general-purpose"})
    async with session.tool() as tool:
        (answer,) = await tool.handle_all()
        await tool.wait(launched(answer)["run_id"])

    assert [tool["name"] for tool in body_of(sim, 1)["tools"]] == ["FileWrite", "FileRead", "Bash"]
    assert "'Agent'. Declared tools: FileWrite, FileRead, Bash." in results_in(sim, 2)[0]["content"]


LEAD = AgentDefinition(name="Lead", description="leads", prompt="Lead.", tools=("*", "Agent"))


async def test_an_agent_that_has_agent_starts_others_one_level_deep(session: Session, sim: Simulator) -> None:
    """It gets the answer as the call's result; what it started may not start agents, and it may not fork."""
    below = says("Delegate again.", {"tools": [call("Agent", prompt="x", subagent_type="Lead")]}, {"text": "leaf"})
    prompt = says(
        "Delegate.",
        {"tools": [call("Agent", prompt=below, subagent_type="Lead"), call("Agent", prompt="a fork")]},
        {"text": "led"},
    )
    agents = AgentRegistry()
    agents.add(LEAD)
    await session.calls({"prompt": prompt, "subagent_type": "Lead"})
    async with session.tool(agents=agents) as tool:
        (answer,) = await tool.handle_all()
        result = await tool.wait(launched(answer)["run_id"])

    assert result is not None
    assert result.final_text == "led"
    answers = [found for index in range(2, sim.request_count) if (found := results_in(sim, index))]
    nested, top = sorted(answers, key=len)
    assert "cannot start agents" in nested[0]["content"]
    assert top[0]["content"] == "leaf"
    assert "only the main agent forks" in top[1]["content"]


@pytest.mark.parametrize("source", ["agent:named:Explore", "agent:nested:Lead"])
async def test_a_named_agents_own_tool_refuses_unless_it_was_given_agent(session: Session, source: str) -> None:
    """By its query source, as with forks."""
    session.params["parent_ctx"] = ParentContext(query_source=source)
    agents = AgentRegistry()
    agents.add(LEAD)
    await session.calls({"prompt": "x", "subagent_type": "Plan"})
    async with session.tool(agents=agents) as tool:
        (answer,) = await tool.handle_all()

    assert "this agent may not start agents" in answer["content"]


async def test_an_exclusion_is_taken_off_the_list(session: Session, sim: Simulator) -> None:
    """All tools but one, and a model by its alias."""
    agents = AgentRegistry()
    agents.add(
        AgentDefinition(name="Careful", description="c", prompt="c", disallowed_tools=("FileWrite",), model="sonnet")
    )
    await session.calls({"prompt": "x", "subagent_type": "Careful"})
    async with session.tool(agents=agents) as tool:
        (answer,) = await tool.handle_all()
        await tool.wait(launched(answer)["run_id"])

    assert [tool["name"] for tool in body_of(sim, 1)["tools"]] == ["FileRead", "Bash"]
    assert body_of(sim, 1)["model"] == "claude-sonnet-5-5"


async def test_a_turn_limit_of_the_definition_holds(session: Session) -> None:
    """An agent that would go on is ended by its own limit."""
    agents = AgentRegistry()
    agents.add(AgentDefinition(name="Short", description="s", prompt="s", max_turns=1))
    prompt = says("Go.", {"tools": [call("Bash", command="ls")]}, {"text": "never"})
    await session.calls({"prompt": prompt, "subagent_type": "Short"})
    async with session.tool(agents=agents) as tool:
        (answer,) = await tool.handle_all()
        result = await tool.wait(launched(answer)["run_id"])

    assert result is not None
    assert result.status == "max_turns"


def test_a_snapshot_from_a_slot_is_the_one_that_was_saved() -> None:
    """Saved by the parent's own turn it is there; a fork's turn does not replace it; cleared it is gone."""
    slot = CacheSafeSlot()
    mine = CacheSafeParams.from_parent_request(
        b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}'
    )
    slot.save(mine, "sdk")
    slot.save(replace(mine, workspace_id="w"), "agent:named:Explore")

    assert slot.snapshot() is mine
    slot.clear()
    with pytest.raises(EmptySlot):
        slot.snapshot()


async def test_the_environment_closes_the_gate(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without settings in code the tool follows the environment."""
    monkeypatch.setenv("NEXOFORK_FORK_SUBAGENT", "0")
    await session.calls({"prompt": "x"})
    async with session.tool() as tool:
        (answer,) = await tool.handle_all()

    assert "forking is turned off" in answer["content"]


async def test_many_calls_of_one_reply_are_all_followed(session: Session) -> None:
    """Thirty forks and named agents side by side; every one is notified once."""
    kinds = [{"prompt": f"part {number}", "subagent_type": ("", "Plan")[number % 2]} for number in range(30)]
    await session.calls(*kinds)
    async with session.tool() as tool, asyncio.timeout(PATIENCE_S):
        runs = [launched(answer)["run_id"] for answer in await tool.handle_all()]
        told = [await tool.next_notification() for _ in runs]
        assert await tool.next_notification() is None

    assert len(set(runs)) == 30
    assert all(sum(f"<task-id>{run}</task-id>" in (text or "") for text in told) == 1 for run in runs)


@pytest.mark.parametrize("reply", [5, 1.5, object(), ("a",), {"content": 5}, "no JSON"])
async def test_a_reply_that_is_none_is_a_named_error(session: Session, reply: object) -> None:
    """Whatever was passed for it."""
    await session.calls({"prompt": "x"})
    async with session.tool() as tool:
        with pytest.raises(BadReply):
            await tool.handle_all(reply)
