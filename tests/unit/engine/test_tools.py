from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import (
    ForkOverrides,
    ForkStatus,
    FunctionTools,
    ParentContext,
    PermissionAnswer,
    Permissions,
    QuerySource,
)
from nexofork.core.replacement import ContentReplacementState
from nexofork.tools.dispatch import AGENT_TOOL, ToolCall, ToolOutcome
from tests.support.conversation import AGENT, BASH, call, declared, says
from tests.support.parents import Parent, body_of, fork, results_in
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nexofork import AnthropicProvider, CacheSafeParams, DefaultForkSubagent, ForkResult, PermissionAsk
    from nexofork.simulator import Simulator
    from nexofork.tools.dispatch import ToolDispatcher

    Function = Callable[[dict[str, Any]], Awaitable[str | ToolOutcome]]

ONE_CALL = says("Work.", {"tools": [call(command="ls")]}, {"text": "Done."})


class Running:
    """A simulator, a parent's snapshot and what runs forks of it."""

    def __init__(
        self, sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
    ) -> None:
        self.sim = sim
        self._snapshot, self._llm, self._forks = snapshot, llm, forks

    async def fork(self, directive: str = ONE_CALL, *, tools: ToolDispatcher, **more: Any) -> ForkResult:
        """Run one fork to its end."""
        params = fork(self._snapshot, self._llm, directive, tool_dispatcher=tools, **more)
        return await (await self._forks.fork(params)).result()


@pytest.fixture
async def running(sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent) -> Running:
    """Everything a fork needs."""
    return Running(sim, await parent.ask(tools=declared("Read")), llm, forks)


class DenyBash:
    """A filter that lets no command run."""

    def deny(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Deny Bash."""
        return f"{arguments['command']!r} is not read-only; use Read." if name == "Bash" else None


class BrokenFilter:
    """A filter with a defect."""

    def deny(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Fail."""
        raise LookupError("no rules loaded")


async def never(arguments: dict[str, Any]) -> str:
    """A tool that must not be reached."""
    raise AssertionError("it was dispatched")


async def test_a_tool_that_raises_is_an_answer_the_model_sees(running: Running) -> None:
    """The next request carries the failure as an error result; the fork goes on."""

    async def broken(arguments: dict[str, Any]) -> str:
        raise ValueError("disk on fire")

    result = await running.fork(tools=FunctionTools({"Bash": broken}))

    (answer,) = results_in(running.sim, 2)
    assert (answer["is_error"], answer["content"]) == (True, "Bash failed: ValueError: disk on fire")
    assert result.ok


async def test_a_tool_that_ends_by_cancelling_itself_is_an_answer_too(running: Running) -> None:
    """A cancellation that nobody asked for is the tool's failure, not the end of the fork or of its siblings."""

    async def gives_up(arguments: dict[str, Any]) -> str:
        raise asyncio.CancelledError

    result = await running.fork(tools=FunctionTools({"Bash": gives_up}))

    (answer,) = results_in(running.sim, 2)
    assert answer["is_error"]
    assert "cancelled" in answer["content"]
    assert result.ok


async def test_a_tool_that_returns_nothing_usable_is_an_answer_too(running: Running) -> None:
    """A function that forgets to return gets an error result, and the fork goes on."""

    async def forgets(arguments: dict[str, Any]) -> Any:
        return None

    result = await running.fork(tools=FunctionTools({"Bash": forgets}))

    (answer,) = results_in(running.sim, 2)
    assert answer["is_error"]
    assert "NoneType" in answer["content"]
    assert result.ok


async def test_an_unknown_tool_is_answered_with_those_there_are(running: Running) -> None:
    """The model learns which tools it can use instead."""
    result = await running.fork(tools=FunctionTools({"Read": never, "Grep": never}))

    (answer,) = results_in(running.sim, 2)
    assert (answer["is_error"], answer["content"]) == (True, "There is no tool 'Bash' here. Tools: Grep, Read.")
    assert result.ok


async def test_a_denied_tool_is_not_dispatched(running: Running) -> None:
    """The filter's reason reaches the model in place of a result."""
    result = await running.fork(tools=FunctionTools({"Bash": never}), tool_filter=DenyBash())

    (answer,) = results_in(running.sim, 2)
    assert (answer["is_error"], answer["content"]) == (True, "Bash was not run: 'ls' is not read-only; use Read.")
    assert result.ok


async def test_a_filter_that_fails_denies(running: Running) -> None:
    """Without a verdict nothing runs, and the model is told."""
    result = await running.fork(tools=FunctionTools({"Bash": never}), tool_filter=BrokenFilter())

    (answer,) = results_in(running.sim, 2)
    assert answer["is_error"]
    assert "no rules loaded" in answer["content"]
    assert result.ok


async def test_the_agent_tool_is_refused_when_it_is_called(running: Running) -> None:
    """It stays in the list for its bytes; calling it gives an answer the model can act on."""
    directive = says("Work.", {"tools": [call(AGENT_TOOL, prompt="help")]}, {"text": "Done."})

    result = await running.fork(directive, tools=FunctionTools({AGENT_TOOL: never}))

    (answer,) = results_in(running.sim, 2)
    assert answer["is_error"]
    assert "Do this part of the directive yourself" in answer["content"]
    assert [tool["name"] for tool in body_of(running.sim, 2)["tools"]] == ["Agent", "Bash", "Read"]
    assert result.ok


async def test_parallel_tools_run_side_by_side_and_answer_in_order(running: Running) -> None:
    """Three calls meet inside their tools, end in reverse, and are answered in the order of the calls."""
    met = asyncio.Barrier(3)
    turns = [asyncio.Event() for _ in range(4)]
    turns[3].set()

    async def read(arguments: dict[str, Any]) -> str:
        await met.wait()
        number = arguments["number"]
        await turns[number + 1].wait()
        turns[number].set()
        return f"result {number}"

    calls = [call("Read", number=number) for number in range(3)]
    async with asyncio.timeout(PATIENCE_S):
        result = await running.fork(
            says("Work.", {"tools": calls}, {"text": "Done."}), tools=FunctionTools({"Read": read}, parallel=["Read"])
        )

    assert [answer["content"] for answer in results_in(running.sim, 2)] == ["result 0", "result 1", "result 2"]
    assert result.tool_uses == 3


async def test_tools_that_do_not_allow_it_run_one_after_another(running: Running) -> None:
    """A call begins only when the one before it is over."""
    log: list[str] = []

    async def bash(arguments: dict[str, Any]) -> str:
        log.append(f"begin {arguments['n']}")
        await asyncio.sleep(0)
        log.append(f"end {arguments['n']}")
        return "ok"

    await running.fork(
        says("Work.", {"tools": [call(n=1), call(n=2)]}, {"text": "Done."}), tools=FunctionTools({"Bash": bash})
    )

    assert log == ["begin 1", "end 1", "begin 2", "end 2"]


async def test_a_failing_parallel_tool_leaves_its_neighbours_alone(running: Running) -> None:
    """One error result, one good one."""

    async def read(arguments: dict[str, Any]) -> str:
        if arguments["n"] == 1:
            raise OSError("gone")
        await asyncio.sleep(0)
        return "fine"

    await running.fork(
        says("Work.", {"tools": [call("Read", n=1), call("Read", n=2)]}, {"text": "Done."}),
        tools=FunctionTools({"Read": read}, parallel=["Read"]),
    )

    assert [answer["content"] for answer in results_in(running.sim, 2)] == ["Read failed: OSError: gone", "fine"]


async def test_a_result_may_be_content_blocks(running: Running) -> None:
    """What a dispatcher returns as blocks is sent as blocks."""

    async def look(arguments: dict[str, Any]) -> ToolOutcome:
        return ToolOutcome(content=[{"type": "text", "text": "a page"}])

    await running.fork(tools=FunctionTools({"Bash": look}))

    (answer,) = results_in(running.sim, 2)
    assert answer["content"] == [{"type": "text", "text": "a page"}]


async def test_a_tool_gets_a_context_that_cannot_change_the_parent(running: Running) -> None:
    """State changes through a fork's context do nothing, its file state is a copy, and it knows what it is."""
    seen: list[ToolCall] = []
    changes: list[Any] = []

    class Tools:
        async def dispatch(self, call: ToolCall) -> ToolOutcome:
            seen.append(call)
            call.context.set_app_state("theme", "dark")
            assert isinstance(call.context.file_state, dict)
            call.context.file_state["new.py"] = "0" * 64
            return ToolOutcome(content="ok")

        def parallel(self, call: ToolCall) -> bool:
            return True

        def read_only(self, call: ToolCall) -> bool:
            return True

    files = {"a.py": "f" * 64}
    context = ParentContext(agent_id="boss", file_state=files, set_app_state=lambda *change: changes.append(change))

    result = await running.fork(tools=Tools(), parent_ctx=context, overrides=ForkOverrides(agent_id="child-7"))

    assert (changes, files) == ([], {"a.py": "f" * 64})
    assert (seen[0].context.agent_id, seen[0].context.query_source) == ("child-7", QuerySource.FORK)
    assert (seen[0].run_id, seen[0].input) == (result.run_id, {"command": "ls"})
    assert result.ok


async def test_long_results_are_shortened_by_the_snapshots_budget(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A child decides on a clone of the parent's state, so the parent's own stays as it was."""
    state = ContentReplacementState(max_chars=100, keep_chars=5)
    snapshot = replace(await parent.ask(), replacements=state)

    async def verbose(arguments: dict[str, Any]) -> str:
        return "x" * 60 + "y" * 60

    await Running(sim, snapshot, llm, forks).fork(tools=FunctionTools({"Bash": verbose}))

    (answer,) = results_in(sim, 2)
    assert answer["content"] == "xxxxx\n[110 characters left out]\nyyyyy"
    assert state.decisions == {}


async def test_a_dispatcher_with_a_defect_ends_its_own_fork_alone(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """What no rule foresees is a failed fork that says so; the factory and the siblings go on."""

    class Defective:
        async def dispatch(self, call: ToolCall) -> ToolOutcome:
            return ToolOutcome(content="never")

        def parallel(self, call: ToolCall) -> bool:
            raise RuntimeError("lost my mind")

        def read_only(self, call: ToolCall) -> bool:
            return True

    with caplog.at_level(logging.CRITICAL, logger="nexofork"):
        result = await running.fork(tools=Defective())

    assert (result.status, result.end) == (ForkStatus.FAILED, "RuntimeError")
    assert "lost my mind" in (result.error or "")
    assert (await running.fork(tools=FunctionTools({"Bash": never}), tool_filter=DenyBash())).ok


@pytest.mark.parametrize(
    "name", ["Read", "bash", "BASH", "Bash ", "Ba\u200bsh", "\uff22ash", "B\u0430sh", "mcp__x__Bash", "Bash\x00", ""]
)
async def test_a_tool_that_the_request_does_not_declare_is_not_run(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent, name: str
) -> None:
    """The model is told which tools are declared; no tool runs, no permission is asked for, and the fork goes on."""
    reached, asked = [], []

    class Anything:
        async def dispatch(self, call: ToolCall) -> ToolOutcome:
            reached.append(call.name)
            return ToolOutcome(content="ran")

        def parallel(self, call: ToolCall) -> bool:
            return False

        def read_only(self, call: ToolCall) -> bool:
            return False

    async def decide(ask: PermissionAsk) -> PermissionAnswer:
        asked.append(ask.name)
        return PermissionAnswer(allow=True)

    directive = says(
        "Work.", {"tools": [call(name, command="touch x")]}, {"tools": [call("Bash", command="touch x")]}, "Done."
    )
    running = Running(sim, await parent.ask(tools=[AGENT, BASH]), llm, forks)
    result = await running.fork(
        directive, tools=Anything(), permissions=Permissions(mode="bubble"), on_permission=decide
    )

    (refused,) = results_in(sim, 2)
    assert refused["is_error"]
    assert repr(name) in refused["content"]
    assert "Declared tools: Agent, Bash." in refused["content"]
    assert (result.ok, reached, asked) == (True, ["Bash"], ["Bash"])


async def test_a_request_without_tools_runs_none(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A model that calls a tool although its request has none is told so."""
    running = Running(sim, await parent.ask(tools=[], answer={"text": "Ready."}), llm, forks)

    assert (await running.fork(tools=FunctionTools({"Bash": never}))).ok
    (refused,) = results_in(sim, 2)
    assert "It declares no tools." in refused["content"]


async def test_a_tool_is_declared_by_its_name_whatever_its_type(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A typed tool that clients run is theirs; one that the provider runs is not, even if a tool here has its name."""
    tools = [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "custom", "name": "Read", "input_schema": {"type": "object"}},
    ]
    calls = [call("bash"), call("web_search"), call("Read")]
    running = Running(sim, await parent.ask(tools=tools, answer={"text": "Ready."}), llm, forks)

    async def ran(arguments: dict[str, Any]) -> str:
        return "ran"

    await running.fork(
        says("Work.", {"tools": calls}, "Done."),
        tools=FunctionTools({"bash": ran, "web_search": ran, "Read": ran, "bash_20250124": ran}),
    )

    bash, search, read = (answer["content"] for answer in results_in(sim, 2))
    assert (bash, read) == ("ran", "ran")
    assert "'web_search'" in search
    assert "Declared tools: bash, Read." in search


async def test_what_nests_too_deeply_is_refused_as_argument_and_as_result(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The model reads why, and the fork goes on."""
    deep: list[Any] = []
    for _ in range(150):  # more than tools take, less than an answer of the provider may have
        deep = [deep]

    async def nest(arguments: dict[str, Any]) -> ToolOutcome:
        return ToolOutcome(content=[{"type": "text", "text": "x", "more": deep}])

    directive = says("Work.", {"tools": [call("Bash", command=deep), call("Bash", command="ls")]}, {"text": "Done."})
    params = fork(await parent.ask(), llm, directive, tool_dispatcher=FunctionTools({"Bash": nest}))
    result = await (await forks.fork(params)).result()

    assert result.ok
    argument, answer = results_in(sim, 2)
    assert "its arguments nest more than 100 levels deep. Pass them flat." in argument["content"]
    assert "its result nests more than 100 levels deep" in answer["content"]
