from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkStatus, FunctionTools
from nexofork.simulator import CATALOG, SimulatorConfig
from tests.support.conversation import MODEL, call, request, says
from tests.support.parents import Parent, body_of, fork, open_llm

if TYPE_CHECKING:
    from nexofork import AnthropicProvider, CacheSafeParams, DefaultForkSubagent, ForkResult
    from nexofork.simulator import Simulator
    from tests.conftest import StartSimulator


async def bash(arguments: dict[str, Any]) -> str:
    """Pretend to run a command."""
    return f"ran {arguments['command']}"


TOOLS = FunctionTools({"Bash": bash})


@pytest.fixture
async def snapshot(parent: Parent) -> CacheSafeParams:
    """A parent that has made one call."""
    return await parent.ask()


@pytest.mark.parametrize(
    ("turn", "status", "end"),
    [
        ({"text": "Done."}, ForkStatus.COMPLETED, "end_turn"),
        ({"text": "Don", "stop_reason": "stop_sequence", "stop_sequence": "e"}, ForkStatus.COMPLETED, "stop_sequence"),
        ({"text": "I will not.", "stop_reason": "refusal"}, ForkStatus.REFUSED, "refusal"),
        ({"text": "And then", "stop_reason": "max_tokens"}, ForkStatus.FAILED, "max_tokens"),
        (
            {"text": "No room", "stop_reason": "model_context_window_exceeded"},
            ForkStatus.FAILED,
            "context_overflow",
        ),
        (
            {"text": "I call", "tools": [call(command="long command")], "stop_reason": "max_tokens"},
            ForkStatus.FAILED,
            "truncated_tool_use",
        ),
    ],
)
async def test_a_final_stop_reason_names_the_end(
    sim: Simulator,
    snapshot: CacheSafeParams,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    turn: dict[str, Any],
    status: ForkStatus,
    end: str,
) -> None:
    """Each stop_reason that ends a run has its own status and name, keeps the text, and costs one call."""
    result = await _run(forks, snapshot, llm, says("Work.", turn))

    assert (result.status, result.end, result.turns) == (status, end, 1)
    assert result.final_text == turn["text"]
    assert (result.error is None) == result.ok
    assert sim.request_count == 2


async def test_tool_use_runs_the_tool_and_goes_on(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A reply that calls tools is followed by a turn with their results."""
    result = await _run(forks, snapshot, llm, says("Work.", {"tools": [call(command="ls")]}, {"text": "Done."}))

    assert (result.status, result.turns, result.tool_uses) == (ForkStatus.COMPLETED, 2, 1)
    (answer,) = body_of(sim, 2)["messages"][-1]["content"]
    assert (answer["type"], answer["content"]) == ("tool_result", "ran ls")


async def test_pause_turn_is_resumed_with_the_reply_alone(
    start_simulator: StartSimulator, forks: DefaultForkSubagent
) -> None:
    """A paused turn is sent back as it is, with nothing said in between, and goes on."""
    sim = await start_simulator(SimulatorConfig())
    async with Parent(sim.url) as parent, open_llm(sim.url) as llm:
        snapshot = await parent.ask()
        result = await _run(
            forks, snapshot, llm, says("Work.", {"text": "Wait.", "stop_reason": "pause_turn"}, {"text": "Done."})
        )

    assert (result.status, result.turns, result.final_text) == (ForkStatus.COMPLETED, 2, "Done.")
    last = body_of(sim, 2)["messages"][-1]
    assert (last["role"], [block["text"] for block in last["content"]]) == ("assistant", ["Wait."])


async def test_a_context_overflow_told_by_a_400_has_the_same_name(
    start_simulator: StartSimulator, forks: DefaultForkSubagent
) -> None:
    """Whether the API says so by stop_reason or by refusing the prompt, the end is `context_overflow`."""
    sim = await start_simulator(SimulatorConfig(models={MODEL: replace(CATALOG[MODEL], context_window_tokens=5_100)}))
    async with Parent(sim.url) as parent, open_llm(sim.url) as llm:
        snapshot = await parent.ask(request(tokens=5_000))
        result = await _run(forks, snapshot, llm, "Work.")

    assert (result.status, result.end) == (ForkStatus.FAILED, "context_overflow")
    assert "Fork from an earlier turn" in (result.error or "")
    assert sim.request_count == 2


async def test_max_turns_is_an_end_of_its_own(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A fork that is not done after its turns ends as `max_turns`, never as success, with its last words kept."""
    turn = {"text": "Still at it.", "tools": [call(command="ls")]}

    result = await _run(forks, snapshot, llm, says("Work.", turn, turn, turn, {"text": "Done."}), max_turns=3)

    assert (result.status, result.end, result.turns) == (ForkStatus.MAX_TURNS, "max_turns", 3)
    assert not result.ok
    assert result.final_text == "Still at it."
    assert sim.request_count == 4


async def test_max_turns_is_200_unless_said_otherwise(snapshot: CacheSafeParams, llm: AnthropicProvider) -> None:
    """The default is the documented one."""
    assert fork(snapshot, llm).max_turns == 200


async def _run(
    forks: DefaultForkSubagent, snapshot: CacheSafeParams, llm: AnthropicProvider, directive: str, **more: Any
) -> ForkResult:
    handle = await forks.fork(fork(snapshot, llm, directive, tool_dispatcher=TOOLS, **more))
    return await handle.result()
