"""A conversation that no longer fits the model goes on with a summary, on the same shared prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nexofork import Budget, ForkStatus, FunctionTools, QuerySource
from nexofork.core.boilerplate import BOILERPLATE
from nexofork.run.compaction import COMPACTED_TAG
from nexofork.run.events import ConversationCompacted, TurnFinished
from nexofork.simulator import SimulatorConfig
from tests.support.conversation import MARK, call, text
from tests.support.parents import Parent, body_of, fork, open_llm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nexofork import AnthropicProvider, CacheSafeParams, DefaultForkSubagent, ForkResult
    from nexofork.simulator import Simulator
    from tests.conftest import StartSimulator

WINDOW = 9_000
DONE = {"text": "Scope: all\nResult: done"}
READ = {"text": "I read.", "tools": [call(command="cat")]}
SUMMARY = "SO-FAR: three files read."


def rules(*after: dict[str, Any], before: int = 9, summary: dict[str, Any] | str = SUMMARY) -> list[dict[str, Any]]:
    """What the model says: it reads and reads, summarises when asked to, and goes on as told behind its summary."""
    return [
        {"match": "<compaction>", "turns": [summary]},
        {"match": "SO-FAR", "turns": list(after) or [DONE]},
        {"match": "Dig.", "turns": [READ] * before},
    ]


async def page(arguments: dict[str, Any]) -> str:
    """About a thousand tokens of something."""
    return "line of the file\n" * 220


TOOLS = FunctionTools({"Bash": page})


@pytest.fixture
async def sim(start_simulator: StartSimulator) -> Simulator:
    """A provider whose models take no more than `WINDOW` tokens."""
    return await start_simulator(SimulatorConfig(context_tokens=WINDOW))


@pytest.fixture
async def snapshot(sim: Simulator) -> AsyncIterator[CacheSafeParams]:
    """A parent of five thousand tokens, without a script of its own: the rules are for its children."""
    async with Parent(sim.url) as parent:
        said = [{"role": "user", "content": [text("Go on.", tokens=5_000, mark=MARK)]}]
        yield await parent.ask(messages=said)


@pytest.fixture
async def llm(sim: Simulator) -> AsyncIterator[AnthropicProvider]:
    """What the children call the model with."""
    async with open_llm(sim.url) as provider:
        yield provider


async def run(forks: DefaultForkSubagent, snapshot: CacheSafeParams, llm: AnthropicProvider, **more: Any) -> ForkResult:
    """A child that digs until it is done."""
    given = {"tool_dispatcher": TOOLS, **more}
    return await (await forks.fork(fork(snapshot, llm, "Dig.", **given))).result()


async def test_a_child_that_no_longer_fits_goes_on_with_a_summary(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Directive, boilerplate and all that is shared stay; the summary behind them says what it stands for."""
    sim.script(*rules(READ, DONE))
    handle = await forks.fork(fork(snapshot, llm, "Dig.", tool_dispatcher=TOOLS))

    events = [event async for event in handle.events()]
    result = await handle.result()

    (compacted,) = [event for event in events if isinstance(event, ConversationCompacted)]
    turns = [event.turn for event in events if isinstance(event, TurnFinished)]
    assert (result.status, result.turns) == (ForkStatus.COMPLETED, compacted.turns + 2)
    assert turns == list(range(1, result.turns + 1)), "turns are counted as if nothing had happened"
    answered = [record for record in sim.log if record.status == 200]
    summary, first_after = answered[-3], answered[-2]
    content = body_of(sim, first_after.index)["messages"][-1]["content"]
    texts = [block["text"] for block in content if block["type"] == "text"]
    assert texts[0] == BOILERPLATE
    assert texts[1] == "Dig."
    assert texts[2].startswith(f"<{COMPACTED_TAG}>")
    assert f"turns 1 to {compacted.turns}" in texts[2]
    assert SUMMARY in texts[2]
    assert body_of(sim, first_after.index)["tools"] == body_of(sim, 0)["tools"]
    # The summary reads what the child's own calls had cached; what follows reads what the siblings share.
    assert summary.read > 0.9 * (summary.read + summary.write_5m + summary.fresh - 400)
    assert first_after.read >= sim.log[1].read
    assert handle.status is ForkStatus.COMPLETED


async def test_the_summary_is_billed_and_is_no_turn(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Calls, ledger and tokens have it; it does not count towards max_turns."""
    sim.script(*rules())

    result = await run(forks, snapshot, llm)

    answered = [record for record in sim.log if record.status == 200][1:]
    assert len(result.calls) == len(answered) == result.turns + 1
    assert [record.read for record in answered] == [one.usage.cache_read_tokens for one in result.calls]
    (summary,) = [one for one in result.calls if one.summary]
    booked = [one for one in forks.ledger.calls if one.outcome == "confirmed"]
    assert len(booked) == len(answered)
    assert summary.usage.output_tokens > 0
    assert (await run(forks, snapshot, llm, max_turns=result.turns)).status is ForkStatus.COMPLETED


async def test_compaction_may_be_switched_off(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Then the run ends where it no longer fits, without another call."""
    sim.script(*rules())

    result = await run(forks, snapshot, llm, compaction=False)

    assert (result.status, result.end) == (ForkStatus.FAILED, "context_overflow")
    assert not any(one.summary for one in result.calls)
    assert not any("<compaction>" in str(sim.body(record.index)) for record in sim.log)


async def test_a_reply_that_the_window_cut_off_is_said_again(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Told by stop_reason instead of a 400, the child goes on with a summary all the same."""
    long = {"text": "word ", "repeat": 3_500}
    sim.script(
        {"match": "<compaction>", "turns": [SUMMARY]},
        {"match": "SO-FAR", "turns": [DONE]},
        {"match": "Dig.", "turns": [READ, long]},
    )

    result = await run(forks, snapshot, llm)

    assert result.status is ForkStatus.COMPLETED
    assert [one.stop_reason for one in result.calls] == [
        *("tool_use", "model_context_window_exceeded", "end_turn", "end_turn")
    ]
    assert [one.summary for one in result.calls] == [False, False, True, False]


@pytest.mark.parametrize(
    ("summary", "why"),
    [
        ({"text": "", "tools": [call(command="ls")]}, "no summary"),
        ({"text": "x", "fault": {"status": 403}}, "summarise it failed"),
    ],
    ids=["a tool call", "an error"],
)
async def test_without_a_summary_the_run_ends_by_name(
    sim: Simulator,
    snapshot: CacheSafeParams,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    summary: dict[str, Any],
    why: str,
) -> None:
    """The end is `context_overflow` and says what went wrong; what was reached is kept."""
    sim.script(*rules(summary=summary))

    result = await run(forks, snapshot, llm)

    assert (result.status, result.end, result.final_text) == (ForkStatus.FAILED, "context_overflow", "I read.")
    assert why in (result.error or "")


async def test_a_summary_that_does_not_fit_ends_the_run(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """It is not summarised again: there is nothing of the child's own left to leave out."""
    fault = {"status": 400, "message": "prompt is too long: 9001 tokens > 9000 maximum"}
    sim.script(*rules({"text": "", "fault": fault}))

    result = await run(forks, snapshot, llm)

    assert (result.status, result.end) == (ForkStatus.FAILED, "context_overflow")
    assert sum(one.summary for one in result.calls) == 1
    assert "nothing of the child's own" in (result.error or "")


async def test_going_round_in_circles_ends(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A child whose every single turn fills the window again is not summarised a third time."""

    async def flood(arguments: dict[str, Any]) -> str:
        return "line of the file\n" * 1_500

    sim.script(*rules(*[READ] * 9))

    result = await run(forks, snapshot, llm, tool_dispatcher=FunctionTools({"Bash": flood}))

    assert (result.status, result.end) == (ForkStatus.FAILED, "context_overflow")
    assert (result.turns, sum(one.summary for one in result.calls)) == (3, 2)


async def test_a_message_nobody_has_read_outlives_the_summary(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """It came behind the turn that no longer fitted, and stands behind the summary, word for word."""
    sim.script(*rules())
    said = False

    async def tool(arguments: dict[str, Any]) -> str:
        nonlocal said
        if len(handle_calls(sim)) == 4 and not said:
            said = True
            await handle.message("mind the gap")
        return await page(arguments)

    handle = await forks.fork(fork(snapshot, llm, "Dig.", tool_dispatcher=FunctionTools({"Bash": tool})))
    result = await handle.result()

    assert said
    assert (result.status, result.undelivered) == (ForkStatus.COMPLETED, ())
    content = body_of(sim, sim.log[-1].index)["messages"][-1]["content"]
    assert "mind the gap" in content[-1]["text"]
    assert SUMMARY in content[-2]["text"]


def handle_calls(sim: Simulator) -> list[int]:
    """The calls of the child that were answered."""
    return [record.index for record in sim.log if record.status == 200][1:]


async def test_a_budget_counts_the_summary(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """One that does not cover it ends the run as over budget; it is not sent."""
    sim.script(*rules())
    before = await run(forks, snapshot, llm)
    spent = sum(one.usage.prompt_tokens + one.usage.output_tokens for one in before.calls if not one.summary)

    result = await run(forks, snapshot, llm, budget=Budget(tokens=spent))

    assert result.status is ForkStatus.OVER_BUDGET
    assert not any(one.summary for one in result.calls)


async def test_a_compacted_child_is_still_a_fork(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Its calls of Agent are refused, and its requests are known for a fork's by the boilerplate in its place."""
    agent = {"text": "I delegate.", "tools": [call("Agent", prompt="do it")]}
    sim.script(*rules(agent, DONE))

    params = fork(snapshot, llm, "Dig.", tool_dispatcher=TOOLS)
    result = await (await forks.fork(params)).result()

    assert params.query_source == QuerySource.FORK
    assert result.status is ForkStatus.COMPLETED
    (refused,) = body_of(sim, sim.log[-1].index)["messages"][-1]["content"]
    assert "cannot start agents" in str(refused["content"])
