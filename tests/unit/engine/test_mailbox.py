"""A parent speaks to a running child, and the child hears it between two turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkStatus, FunctionTools
from nexofork.errors import ForkIsOver, ForkRefused
from nexofork.run.events import ForkEnded, MessagesDelivered, MessagesUndelivered
from tests.support.conversation import call, says
from tests.support.parents import Parent, body_of, fork

if TYPE_CHECKING:
    from nexofork import AnthropicProvider, DefaultForkSubagent
    from nexofork.simulator import Simulator


async def bash(arguments: dict[str, Any]) -> str:
    """Pretend to run a command."""
    return f"ran {arguments['command']}"


async def test_a_message_is_read_behind_the_next_tool_results(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """What was said while the model answered stands behind the tool results of the next request."""
    turns = ({"tools": [call(command="ls")], "hold": "answer"}, "Scope: all\nResult: done")
    params = fork(await parent.ask(), llm, says("Work.", *turns), tool_dispatcher=FunctionTools({"Bash": bash}))
    handle = await forks.fork(params)
    await sim.received(2)

    await handle.message("mind the tests")
    sim.release("answer")

    assert (await handle.result()).status is ForkStatus.COMPLETED
    content = body_of(sim, 2)["messages"][-1]["content"]
    assert [block["type"] for block in content] == ["tool_result", "text"]
    assert "mind the tests" in content[1]["text"]


async def test_a_message_to_a_child_that_stopped_keeps_it_going(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A message that comes with the last turn becomes a turn of its own."""
    turns = ({"text": "Scope: all\nResult: first", "hold": "answer"}, "Scope: all\nResult: second")
    handle = await forks.fork(fork(await parent.ask(), llm, says("Work.", *turns)))
    await sim.received(2)

    await handle.message("one more thing")
    sim.release("answer")
    result = await handle.result()

    assert (result.status, result.turns, result.report.result) == (ForkStatus.COMPLETED, 2, "second")
    assert "one more thing" in body_of(sim, 2)["messages"][-1]["content"][0]["text"]


async def test_messages_that_cannot_be_delivered_are_refused(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """An empty message and one to a fork that is over are refused, with what to do."""
    handle = await forks.fork(fork(await parent.ask(), llm, "Look."))

    with pytest.raises(ForkRefused, match="empty"):
        handle.message("  ")
    await handle.result()
    with pytest.raises(ForkIsOver, match=r"is over.*`wake`"):
        handle.message("too late")
    assert sim.request_count == 2


async def test_a_message_behind_the_last_turn_is_in_the_result(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A child that has no turn left to read it completes, and says what it never read, once, before its end."""
    held = {"text": "Scope: all\nResult: done", "hold": "answer"}
    handle = await forks.fork(fork(await parent.ask(), llm, says("Work.", held), max_turns=1))
    await sim.received(2)

    await handle.message("one more thing")
    sim.release("answer")
    result = await handle.result()

    assert (result.status, result.undelivered) == (ForkStatus.COMPLETED, ("one more thing",))
    assert result.to_json()["undelivered"] == ["one more thing"]
    told, ended = [event async for event in handle.events()][-2:]
    assert told == MessagesUndelivered(run_id=handle.run_id, texts=("one more thing",))
    assert isinstance(ended, ForkEnded)


async def test_a_message_that_was_taken_and_never_answered_is_in_the_result(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The call that would have carried it failed, so the model has not read it; what it has read is not named."""
    turns = (
        {"tools": [call(command="ls")], "hold": "first"},
        {"tools": [call(command="ls")], "hold": "second"},
        {"text": "", "fault": {"status": 403}},
    )
    params = fork(await parent.ask(), llm, says("Work.", *turns), tool_dispatcher=FunctionTools({"Bash": bash}))
    handle = await forks.fork(params)
    for number, gate in enumerate(("first", "second")):
        await sim.received(number + 2)
        await handle.message(f"message {gate}")
        sim.release(gate)

    result = await handle.result()

    assert (result.status, result.undelivered) == (ForkStatus.FAILED, ("message second",))
    delivered = [event.turn async for event in handle.events() if isinstance(event, MessagesDelivered)]
    assert delivered == [1, 2]


async def test_messages_to_an_aborted_child_are_in_the_result(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """All that it had not read, in the order it was said."""
    handle = await forks.fork(fork(await parent.ask(), llm, says("Work.", {"text": "x", "hold": "never"})))
    await sim.received(2)
    await handle.message("first")
    await handle.message("second")

    await handle.abort("enough")

    assert (await handle.result()).undelivered == ("first", "second")
