from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkOverrides, ForkStatus, FunctionTools
from nexofork.core.boilerplate import reminder
from nexofork.run.events import (
    CacheBreakDetected,
    CallBegan,
    FanOutDecided,
    ForkEnded,
    ForkStarted,
    TextStreamed,
    ToolFinished,
    ToolStarted,
    TurnFinished,
)
from nexofork.simulator import CATALOG, SimulatorConfig
from tests.support.conversation import call, says
from tests.support.parents import Parent, body_of, fork, open_llm, usage_in_log

if TYPE_CHECKING:
    from nexofork import AnthropicProvider, CacheSafeParams, DefaultForkSubagent
    from nexofork.run.events import ForkEvent
    from nexofork.simulator import Simulator
    from tests.conftest import StartSimulator

TWO_TURNS = says("Work.", {"text": "I run it.", "tools": [call(command="ls")]}, {"text": "Scope: s\nResult: fine"})


async def bash(arguments: dict[str, Any]) -> str:
    """Pretend to run a command."""
    return "ok"


TOOLS = FunctionTools({"Bash": bash})


@pytest.fixture
async def snapshot(parent: Parent) -> CacheSafeParams:
    """A parent that has made one call."""
    return await parent.ask()


async def test_events_come_in_the_order_things_happen(
    snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Started first, ended last, and each turn between as it went; text deltas are not kept."""
    handle = await forks.fork(fork(snapshot, llm, TWO_TURNS, tool_dispatcher=TOOLS))

    events = [event async for event in handle.events()]

    assert [type(event) for event in events] == [
        ForkStarted,
        FanOutDecided,
        CallBegan,
        TurnFinished,
        ToolStarted,
        ToolFinished,
        CallBegan,
        TurnFinished,
        ForkEnded,
    ]
    assert isinstance(events[-1], ForkEnded)
    assert events[-1].result == await handle.result()


async def test_events_can_be_asked_for_again_and_after_the_end(
    snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Whoever comes late sees the same events from the start."""
    handle = await forks.fork(fork(snapshot, llm, TWO_TURNS, tool_dispatcher=TOOLS))
    live = [event async for event in handle.events()]

    assert [event async for event in handle.events()] == live


async def test_an_observer_sees_every_event_and_the_text_as_it_streams(
    snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The deltas an observer gets add up to what the model said."""
    seen: list[ForkEvent] = []
    handle = await forks.fork(fork(snapshot, llm, TWO_TURNS, tool_dispatcher=TOOLS, on_message=seen.append))
    kept = [event async for event in handle.events()]

    assert "".join(event.text for event in seen if isinstance(event, TextStreamed)) == (
        "I run it.Scope: s\nResult: fine"
    )
    assert [event for event in seen if not isinstance(event, TextStreamed)] == kept


async def test_an_observer_that_raises_does_no_harm(
    snapshot: CacheSafeParams,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is logged, asked again for the next event, and the fork completes."""
    asked: list[ForkEvent] = []

    def observer(event: ForkEvent) -> None:
        asked.append(event)
        raise RuntimeError("observer trouble")

    with caplog.at_level(logging.ERROR):
        handle = await forks.fork(fork(snapshot, llm, TWO_TURNS, tool_dispatcher=TOOLS, on_message=observer))
        result = await handle.result()

    assert result.ok
    assert len(asked) > len([event async for event in handle.events()])
    assert "an observer of fork" in caplog.text


async def test_skip_transcript_keeps_the_life_cycle_only(
    snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Afterwards only start and end are there; an observer still saw everything, and the result is whole."""
    seen: list[ForkEvent] = []
    params = fork(snapshot, llm, TWO_TURNS, tool_dispatcher=TOOLS, skip_transcript=True, on_message=seen.append)
    handle = await forks.fork(params)

    kept = [event async for event in handle.events()]

    assert [type(event) for event in kept] == [ForkStarted, ForkEnded]
    assert any(isinstance(event, TurnFinished) for event in seen)
    assert (await handle.result()).turns == 2


async def test_the_started_event_carries_the_forks_identity(
    snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Run id, label, directive and the snapshot's cache key are there before anything is sent."""
    handle = await forks.fork(fork(snapshot, llm, ["Look.", "In the cellar."], fork_label="looker"))
    first = await anext(aiter(handle.events()))

    assert first == ForkStarted(
        run_id=handle.run_id, label="looker", directive="Look.", cache_key_hash=snapshot.cache_key_hash
    )
    assert (await handle.result()).label == handle.label == "looker"


async def test_a_miss_is_an_event_and_a_warning(
    sim: Simulator,
    snapshot: CacheSafeParams,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A first call that reads less than half of its prompt is never silent."""
    sim.clock.advance(301)
    with caplog.at_level(logging.WARNING, logger="nexofork.telemetry"):
        handle = await forks.fork(fork(snapshot, llm))
        events = [event async for event in handle.events()]

    (miss,) = [event for event in events if isinstance(event, CacheBreakDetected)]
    assert miss.check.hit_ratio == 0.0
    assert miss.check == (await handle.result()).cache
    assert "fork.cache_break_detected" in caplog.text


async def test_a_critical_reminder_follows_the_directive_and_every_tool_result(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """It stands behind everything shared, on the first turn and on later ones."""
    overrides = ForkOverrides(critical_system_reminder="Never push.")
    params = fork(snapshot, llm, TWO_TURNS, tool_dispatcher=TOOLS, overrides=overrides)

    await (await forks.fork(params)).result()

    first = body_of(sim, 1)["messages"][-1]["content"]
    later = body_of(sim, 2)["messages"][-1]["content"]
    assert [block["text"] for block in first[-2:]] == [TWO_TURNS, reminder("Never push.")]
    assert [block["type"] for block in later] == ["tool_result", "text"]
    assert later[-1]["text"] == reminder("Never push.")
    assert "Never push." not in str(body_of(sim, 1)["system"])


async def test_usage_and_cost_are_the_simulators(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Call by call and in sum, in tokens and in dollars, our books agree with the provider's."""
    result = await (await forks.fork(fork(snapshot, llm, TWO_TURNS, tool_dispatcher=TOOLS))).result()

    records = sim.log[1:]
    assert [one.usage for one in result.calls] == [usage_in_log(record) for record in records]
    assert [one.message_id for one in result.calls] == [record.message_id for record in records]
    assert result.cost_usd == pytest.approx(sum(record.price_usd for record in records))
    assert result.usage.output_tokens == sum(record.output for record in records)


async def test_an_unknown_price_leaves_tokens_and_a_note(
    start_simulator: StartSimulator, forks: DefaultForkSubagent
) -> None:
    """A model without a known price is forked all the same; dollars are left out and the result says why."""
    model = "claude-novel-9"
    sim = await start_simulator(SimulatorConfig(models={model: CATALOG["claude-opus-4-8"]}))
    async with Parent(sim.url) as parent, open_llm(sim.url) as llm:
        snapshot = await parent.ask(model=model)
        result = await (await forks.fork(fork(snapshot, llm))).result()

    assert (result.status, result.cost_usd) == (ForkStatus.COMPLETED, None)
    assert model in result.cost_note
    assert result.usage == usage_in_log(sim.log[1])


async def test_the_report_is_read_from_the_final_text(
    snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """What the model reports comes back by its headings."""
    said = "Scope: the cellar\nResult: wine\nKey files: a.py, b.py\nFiles changed: none\nIssues: none"
    result = await (await forks.fork(fork(snapshot, llm, says("Look.", {"text": said})))).result()

    assert (result.report.scope, result.report.result) == ("the cellar", "wine")
    assert (result.report.key_files, result.report.files_changed) == (("a.py", "b.py"), ())
