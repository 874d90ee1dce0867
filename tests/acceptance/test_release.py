"""A finished fork is forgotten: neither it nor what it has seen stays in memory."""

from __future__ import annotations

import gc
import hashlib
from typing import TYPE_CHECKING, Any

from nexofork import DefaultForkSubagent, ForkStatus, ParentContext
from nexofork.run.run import ForkRun
from nexofork.tools.builtin import BuiltinTools
from nexofork.tools.dispatch import ToolCall
from nexofork.tools.place import Place
from tests.support.conversation import AGENT, call, says
from tests.support.parents import fork
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork import AnthropicProvider
    from nexofork.tools.dispatch import ToolOutcome
    from tests.support.parents import Parent

TOOLS: list[dict[str, Any]] = [
    AGENT,
    *({"name": name, "input_schema": {"type": "object"}} for name in ("Bash", "FileRead")),
]


class WatchedTools(BuiltinTools):
    """The built-in tools, and a look at what each call was given."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.states: list[dict[str, str]] = []

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Remember what the fork has seen."""
        outcome = await super().dispatch(call)
        self.states.append(call.context.file_state)
        return outcome


def alive() -> int:
    """How many runs and tool calls are in memory."""
    gc.collect()
    return sum(isinstance(one, (ForkRun, ToolCall)) for one in gc.get_objects())


async def test_what_a_fork_has_seen_is_its_own_and_forgotten(
    parent: Parent, llm: AnthropicProvider, tmp_path: Path
) -> None:
    """It begins with a copy of its parent's, siblings do not share it, and it is emptied at the end."""
    (tmp_path / "f").write_text("text")
    known = {"/elsewhere": hashlib.sha256(b"x").hexdigest()}
    snapshot = await parent.ask(tools=TOOLS)
    tools = WatchedTools(Place(cwd=tmp_path))
    read = {"tools": [call("FileRead", file_path="f"), call("Bash", command="true")]}
    params = fork(snapshot, llm, tool_dispatcher=tools, parent_ctx=ParentContext(file_state=known))
    async with DefaultForkSubagent() as forks:
        handles = await forks.fork_each(params, [says(f"Part {n}.", read, {"text": "Done."}) for n in range(2)])
        results = [await handle.result() for handle in handles]

    assert {result.status for result in results} == {ForkStatus.COMPLETED}
    assert len({id(state) for state in tools.states}) == 2
    assert [state for state in tools.states if state] == []
    assert list(known) == ["/elsewhere"]


async def test_nothing_of_a_finished_fork_stays_in_memory(
    parent: Parent, llm: AnthropicProvider, tmp_path: Path
) -> None:
    """While the factory lives on: neither the run nor the calls of its tools, once its handle is gone."""
    snapshot = await parent.ask(tools=TOOLS)
    tools = BuiltinTools(Place(cwd=tmp_path))
    before = alive()
    work = {"tools": [call("Bash", command="head -c 100000 /dev/zero | tr '\\0' x")]}
    async with DefaultForkSubagent() as forks:
        params = fork(snapshot, llm, tool_dispatcher=tools)
        handles = await forks.fork_each(params, [says(f"Part {n}.", work, {"text": "Done."}) for n in range(5)])
        results = [await handle.result() for handle in handles]
        assert [result.tool_uses for result in results] == [1] * 5
        del handles, results

        await eventually(lambda: alive() == before)
