"""A parent's schema may call the built-in tools what it likes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nexofork import CacheSafeParams, ForkParams, FunctionTools
from nexofork.errors import ForkRefused
from nexofork.run.params import prepare
from nexofork.tools.builtin import BuiltinTools
from nexofork.tools.tool_names import BUILTIN_TOOLS
from tests.support.conversation import AGENT, BASH, call, request, says
from tests.support.hands import Hands
from tests.support.parents import Parent, body_of, fork, results_in

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork import AnthropicProvider, DefaultForkSubagent
    from nexofork.simulator import Simulator

SHELL: dict[str, Any] = {"name": "shell", "input_schema": {"type": "object"}}
TASK: dict[str, Any] = {"name": "Task", "input_schema": {"type": "object"}}


def schema(*tools: dict[str, Any]) -> CacheSafeParams:
    """A snapshot with these tools."""
    body = request(tools=list(tools), answer={"text": "Fine."})
    return CacheSafeParams.from_parent_request(body)


@pytest.mark.parametrize(
    ("tools", "names", "words"),
    [
        ([SHELL], {"shell": "Shell"}, r"no tool 'Shell' for 'shell' to mean; known are Bash, .*Grep, Agent"),
        ([SHELL], {"bash": "Bash"}, r"have no 'bash' to map to Bash; they are: shell"),
        ([SHELL, TASK], {"shell": "Bash", "Task": "Bash"}, r"Both 'shell' and 'Task' .* would be Bash"),
        ([SHELL, BASH], {"shell": "Bash"}, r"Both 'Bash' and 'shell' .* would be Bash"),
    ],
)
def test_a_mapping_that_cannot_be_meant_is_refused(
    tools: list[dict[str, Any]], names: dict[str, str], words: str
) -> None:
    """Before anything is sent, with the names that there are."""
    with pytest.raises(ForkRefused, match=words):
        prepare(ForkParams(cache_safe=schema(*tools), prompt_messages="Look.", tool_names=names))


def test_a_mapping_may_swap_names() -> None:
    """A name that is mapped away is free for another."""
    names = {"Bash": "Grep", "shell": "Bash", "Task": "Agent"}
    prepare(ForkParams(cache_safe=schema(BASH, SHELL, TASK), prompt_messages="Look.", tool_names=names))


async def test_dispatch_filter_and_events_use_our_names_and_the_schema_keeps_its_bytes(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The model calls `shell` and `Task`; what runs is Bash, and an agent is not started."""
    snapshot = await parent.ask(tools=[TASK, SHELL])
    judged: list[str] = []

    class Notes:
        def deny(self, name: str, arguments: dict[str, Any]) -> str | None:
            judged.append(name)
            return None

    async def bash(arguments: dict[str, Any]) -> str:
        return f"ran {arguments['command']}"

    directive = says("Work.", {"tools": [call("shell", command="ls"), call("Task", prompt="x")]}, {"text": "Done."})
    params = fork(
        snapshot,
        llm,
        directive,
        tool_dispatcher=FunctionTools({"Bash": bash}),
        tool_filter=Notes(),
        tool_names={"shell": "Bash", "Task": "Agent"},
    )
    handle = await forks.fork(params)
    result = await handle.result()

    ran, refused = results_in(sim, 2)
    assert ran["content"] == "ran ls"
    assert "cannot start agents" in refused["content"]
    assert judged == ["Bash"]
    assert body_of(sim, 2)["tools"] == [TASK, SHELL]
    assert result.ok


async def test_an_unknown_tool_is_answered_with_those_there_are(tmp_path: Path) -> None:
    """The model can go on with another."""
    assert BuiltinTools().parallel(Hands(tmp_path).call("REPL", {}))
    said = await Hands(tmp_path).bad("REPL", code="1")
    assert said == f"There is no tool 'REPL' on this host. Tools: {', '.join(BUILTIN_TOOLS)}."


def test_the_agent_tool_has_no_mapping_by_default() -> None:
    """Without a mapping names mean what they say."""
    assert ForkParams(cache_safe=schema(AGENT), prompt_messages="x").tool_names == {}
