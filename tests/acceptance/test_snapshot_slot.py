"""The slot holds the parent's newest turn, whatever its children do on the same client; sidecars read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexofork import AnthropicProvider, DefaultForkSubagent, ForkStatus, FunctionTools, QuerySource
from tests.support.conversation import call, request, says
from tests.support.parents import Parent, body_of, fork

if TYPE_CHECKING:
    from nexofork.simulator import Simulator

DONE = {"text": "Scope: all\nResult: done"}


async def bash(arguments: dict[str, Any]) -> str:
    """Pretend to run a command."""
    return "ok"


async def test_every_turn_of_the_parent_is_saved_and_none_of_its_children(sim: Simulator, parent: Parent) -> None:
    """A child of several turns, a woken one and a sidecar on the parent's own client leave the slot alone."""
    slot, llm = parent.capture.slot, AnthropicProvider(parent.client)
    turns = ({"tools": [call(command="ls")]}, DONE)
    async with DefaultForkSubagent() as forks:
        for number in (1, 2):
            snapshot = await parent.ask(request(tokens=5_000 + number))
            assert slot.get() is snapshot, "saved after the turn, without anything to call"
            assert snapshot.body == sim.body(sim.log[-1].index)
            tools = FunctionTools({"Bash": bash})

            child = await forks.fork(fork(snapshot, llm, says("Work.", *turns), tool_dispatcher=tools))
            await child.result()
            woken = await forks.wake(child, says("More.", DONE))

            assert (await woken.result()).status is ForkStatus.COMPLETED
            assert slot.get() is snapshot


async def test_a_sidecar_reads_the_slot_and_its_cache(sim: Simulator, parent: Parent) -> None:
    """Beside the main loop it begins with the parent's bytes and reads what the parent wrote; the slot stays."""
    await parent.ask(request(answer=DONE))
    parents, llm = parent.capture.slot.get(), AnthropicProvider(parent.client)
    assert parents is not None
    async with DefaultForkSubagent() as forks:
        params = fork(
            parents,
            llm,
            says("Say in a line what happened.", {"text": "All is well."}),
            boilerplate=False,
            query_source=QuerySource.AWAY_DIGEST,
        )
        result = await (await forks.fork(params)).result()

    assert result.final_text == "All is well."
    asked, told = sim.log
    assert told.read >= 0.99 * (asked.read + asked.write_5m + asked.fresh)
    assert parent.capture.slot.get() is parents


async def test_sidecars_of_one_turn_send_the_same_bytes_whenever_they_start(sim: Simulator, parent: Parent) -> None:
    """What the parent's prompt and tools would be by then does not matter: both read what the turn has sent."""
    body = request(answer=DONE)
    await parent.ask(body)
    llm = AnthropicProvider(parent.client)
    async with DefaultForkSubagent() as forks:
        for source in (QuerySource.SESSION_MEMORY, QuerySource.SPECULATION):
            params = fork(
                parent.capture.slot.snapshot(),
                llm,
                says("Speak.", {"text": "All is well."}),
                boilerplate=False,
                query_source=source,
            )
            assert (await (await forks.fork(params)).result()).ok
            body["system"][0]["text"] = "A flag flipped; the prompt is another now."
            body["tools"].reverse()

    asked, first = body_of(sim, 0), body_of(sim, 1)
    assert sim.body(1) == sim.body(2)
    assert [first[key] for key in ("model", "system", "tools")] == [asked[key] for key in ("model", "system", "tools")]
    assert first["messages"][0] == asked["messages"][0]
