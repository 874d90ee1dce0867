"""A fork that has ended goes on, and finds what it knew in the cache."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import AbortToken, ForkStatus, FunctionTools
from nexofork.core.boilerplate import BOILERPLATE
from nexofork.errors import AlreadyAFork, CannotWake, ForkRefused
from nexofork.run.wake import NOT_RUN
from tests.support.conversation import call, says
from tests.support.parents import Parent, body_of, fork, results_in

if TYPE_CHECKING:
    from nexofork import AnthropicProvider, CacheSafeParams, DefaultForkSubagent
    from nexofork.simulator import Simulator

DONE = "Scope: all\nResult: done"


async def bash(arguments: dict[str, Any]) -> str:
    """Pretend to run a command."""
    return f"ran {arguments['command']}"


TOOLS = FunctionTools({"Bash": bash})
WORK = says("Work.", {"tools": [call(command="one")]}, {"tools": [call(command="two")]}, DONE)


@pytest.fixture
async def snapshot(parent: Parent) -> CacheSafeParams:
    """A parent that has made one call."""
    return await parent.ask()


async def test_a_woken_child_reads_its_own_last_prompt_from_the_cache(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Its first call extends the bytes of its last one, and the same holds when it is woken again."""
    handle = await forks.fork(fork(snapshot, llm, WORK, tool_dispatcher=TOOLS, fork_label="worker"))
    await handle.result()

    for number in range(2):
        last, before = sim.log[-1], handle
        handle = await forks.wake(before, says(f"More {number}.", {"tools": [call(command="three")]}, DONE))
        result = await handle.result()
        first = sim.log[last.index + 1]

        assert result.status is ForkStatus.COMPLETED
        assert result.label == "worker"
        assert first.read >= 0.99 * (last.read + last.write_5m + last.fresh)
        assert result.cache is not None
        assert result.cache.cause is None
    messages = body_of(sim, sim.log[-1].index)["messages"]
    told = [block for message in messages for block in message["content"] if block.get("text") == BOILERPLATE]
    assert len(told) == 1, "it is told once that it is a fork"


async def test_a_child_of_one_turn_can_be_woken(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """All but its directive, which nobody knew to be needed again, is read from the cache."""
    snapshot = await parent.ask(tokens=20_000)
    handle = await forks.fork(fork(snapshot, llm, says("Look.", DONE)))
    await handle.result()
    last = sim.log[-1]

    assert (await (await forks.wake(handle, "And the tests?")).result()).status is ForkStatus.COMPLETED

    assert sim.log[-1].read >= 0.99 * (last.read + last.write_5m + last.fresh)
    ends = body_of(sim, sim.log[-1].index)["messages"][-2:]
    assert (ends[0]["role"], ends[0]["content"][0]["text"]) == ("assistant", DONE)
    assert "And the tests?" in ends[1]["content"][0]["text"]


async def test_what_the_tools_answered_at_the_end_is_not_lost(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A run that ended at max_turns had run its last tool: the woken child is shown the result."""
    handle = await forks.fork(fork(snapshot, llm, WORK, tool_dispatcher=TOOLS, max_turns=2))
    assert (await handle.result()).status is ForkStatus.MAX_TURNS

    result = await (await forks.wake(handle, says("Go on.", DONE), max_turns=5)).result()

    assert result.status is ForkStatus.COMPLETED
    assert [block["content"] for block in results_in(sim, sim.log[-1].index)] == ["ran two"]


async def test_a_call_that_never_ran_is_answered_in_clear_words(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Aborted in its first tool, the second call was not run, and the first may have been."""
    begun, token = asyncio.Event(), AbortToken()
    turn = {"tools": [call(command="one"), call(command="two")]}

    async def stuck(arguments: dict[str, Any]) -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    tools = FunctionTools({"Bash": stuck})
    handle = await forks.fork(fork(snapshot, llm, says("Work.", turn), tool_dispatcher=tools, external_abort=token))
    await begun.wait()
    token.abort(note="enough")
    assert (await handle.result()).status is ForkStatus.ABORTED

    result = await (await forks.wake(handle, says("Go on.", DONE))).result()

    assert result.status is ForkStatus.COMPLETED
    first, second = results_in(sim, sim.log[-1].index)
    assert "was interrupted" in first["content"]
    assert (second["content"], second["is_error"]) == (NOT_RUN, True)


@pytest.mark.parametrize("text", ["I call", ""], ids=["with text", "alone"])
async def test_a_call_that_was_cut_off_is_named(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent, text: str
) -> None:
    """A reply that ended inside a tool call can be continued; the child is told that the call did not run."""
    said = {"text": text} if text else {}
    cut = {**said, "tools": [call(command="long command")], "stop_reason": "max_tokens"}
    handle = await forks.fork(fork(snapshot, llm, says("Work.", cut)))
    assert (await handle.result()).end == "truncated_tool_use"

    assert (await (await forks.wake(handle, says("Go on.", DONE))).result()).status is ForkStatus.COMPLETED

    content = body_of(sim, sim.log[-1].index)["messages"][-1]["content"]
    assert "cut off inside a call of 'Bash'" in content[-1]["text"]


async def test_a_woken_child_may_not_fork_and_a_fork_of_it_is_refused(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """It goes on as the fork it was: Agent is refused, and only continuing it lifts the guard."""
    handle = await forks.fork(fork(snapshot, llm, says("Work.", DONE)))
    await handle.result()
    agent = {"tools": [call("Agent", prompt="help")]}

    woken = await forks.wake(handle, says("Go on.", agent, DONE))
    result = await woken.result()

    assert result.status is ForkStatus.COMPLETED
    assert "cannot start agents" in results_in(sim, sim.log[-1].index)[0]["content"]
    body = sim.body(sim.log[-1].index)
    assert body is not None
    with pytest.raises(AlreadyAFork):
        await forks.fork(fork(type(snapshot).from_parent_request(body), llm))


async def test_what_cannot_be_woken_says_why(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A running fork, one without transcript, one that was refused, one that never answered, and a wrong change."""
    waits = says("Wait.", {"text": DONE, "hold": "end"})
    held = await forks.fork(fork(snapshot, llm, waits, warm_up="all_at_once"))
    with pytest.raises(CannotWake, match=r"not over.*`message`"):
        await forks.wake(held, "More.")
    quiet = await forks.fork(fork(snapshot, llm, says("Q.", DONE), skip_transcript=True, warm_up="all_at_once"))
    no = await forks.fork(fork(snapshot, llm, says("N.", {"text": "No.", "stop_reason": "refusal"})))
    bad = await forks.fork(fork(snapshot, llm, says("B.", {"fault": {"status": 403}})))
    for handle, why in ((quiet, "no transcript"), (no, "refused"), (bad, "before the model answered")):
        await handle.result()
        with pytest.raises(CannotWake, match=why):
            await forks.wake(handle, "More.")
    with pytest.raises(ForkRefused, match="no flavour"):
        await forks.wake(no, "More.", flavour="sweet")
    with pytest.raises(ForkRefused, match="cache_safe cannot be given"):
        await forks.wake(no, "More.", cache_safe=snapshot)
    sim.release("end")
    assert (await held.result()).ok
