"""Cache breaks seen in the field, 19 to 36: later turns, routing, breakpoints, and what else went wrong there.

See ``test_cache_breaks`` for 1 to 18 and for how the tests are named.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from nexofork import CacheSafeParams, DefaultForkSubagent, DelegateMode, ForkOverrides, ForkStatus, FunctionTools
from nexofork.core.boilerplate import BOILERPLATE
from nexofork.core.replacement import ContentReplacementState
from nexofork.errors import AlreadyAFork, WorkspaceMismatch
from nexofork.simulator import CATALOG, SimulatorConfig
from tests.support.conversation import MARK, MARK_1H, MODEL, agent_calls, call, declared, request, says, text
from tests.support.gateway import Gateway
from tests.support.parents import Parent, fork, open_llm, results_in
from tests.support.waiting import PATIENCE_S
from tests.support.witness import common_prefix

if TYPE_CHECKING:
    from nexofork import AnthropicProvider, ForkResult
    from nexofork.simulator import Simulator
    from tests.conftest import StartSimulator

MARKER = b',"cache_control":{"type":"ephemeral"}'
MARKER_1H = b',"cache_control":{"type":"ephemeral","ttl":"1h"}'
DONE = {"text": "Done."}


async def long_output(arguments: dict[str, Any]) -> str:
    """A long result that differs by call."""
    return f"{arguments['n']}:" + "x" * 600


VERBOSE = FunctionTools({"Bash": long_output})


async def run(
    forks: DefaultForkSubagent, snapshot: CacheSafeParams, llm: AnthropicProvider, said: str, **more: Any
) -> ForkResult:
    """Run one fork to its end."""
    return await (await forks.fork(fork(snapshot, llm, said, **more))).result()


async def run_each(
    forks: DefaultForkSubagent, snapshot: CacheSafeParams, llm: AnthropicProvider, count: int
) -> list[ForkResult]:
    """Run siblings to their ends."""
    handles = await forks.fork_each(fork(snapshot, llm), [says(f"Part {n}.", DONE) for n in range(count)])
    return [await handle.result() for handle in handles]


def raw(sim: Simulator, index: int) -> bytes:
    """The bytes of a request."""
    body = sim.body(index)
    assert body is not None
    return body


async def test_19_parallel_results_keep_the_order_and_form_they_were_sent_in(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Tools that end in reverse are answered in the order of the calls, and never rebuilt afterwards."""
    done = [asyncio.Event() for _ in range(4)]
    done[3].set()

    async def read(arguments: dict[str, Any]) -> str:
        await done[arguments["n"] + 1].wait()
        done[arguments["n"]].set()
        return f"result {arguments['n']}"

    turns = ({"tools": [call("Read", n=n) for n in range(3)]}, {"tools": [call("Other")]}, DONE)
    tools = FunctionTools({"Read": read}, parallel=["Read"])

    snapshot = await parent.ask(tools=declared("Read", "Other"))
    await run(forks, snapshot, llm, says("Go.", *turns), tool_dispatcher=tools)

    assert [answer["content"] for answer in results_in(sim, 2)] == ["result 0", "result 1", "result 2"]
    assert sim.log[3].read == sim.log[2].prompt_tokens


async def test_20_a_result_that_was_sent_is_never_rewritten(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """When the budget for results is spent, later ones are shortened and earlier ones stay as they are."""
    budget = ContentReplacementState(budget_chars=1_300, keep_chars=10)
    snapshot = replace(await parent.ask(), replacements=budget)
    turns = [{"tools": [call(n=n)]} for n in range(4)]

    await run(forks, snapshot, llm, says("Go.", *turns, DONE), tool_dispatcher=VERBOSE)

    lengths = [len(results_in(sim, index)[0]["content"]) for index in (2, 3, 4, 5)]
    assert lengths[:2] == [602, 602]
    assert max(lengths[2:]) < 100
    assert [record.read for record in sim.log[3:]] == [record.prompt_tokens for record in sim.log[2:-1]]


async def test_21_a_fork_never_compacts_its_history(
    start_simulator: StartSimulator, forks: DefaultForkSubagent
) -> None:
    """A conversation that grows too long is a named end, not a history rewritten on every turn."""
    sim = await start_simulator(SimulatorConfig(models={MODEL: replace(CATALOG[MODEL], context_window_tokens=7_000)}))
    turns = [{"tools": [call(n=n)]} for n in range(20)]
    async with Parent(sim.url) as parent, open_llm(sim.url) as llm:
        snapshot = await parent.ask()
        result = await run(forks, snapshot, llm, says("Go.", *turns, DONE), tool_dispatcher=VERBOSE)

    assert (result.status, result.end) == (ForkStatus.FAILED, "context_overflow")
    assert result.turns > 2
    answered = [record for record in sim.log[2:] if record.status == 200]
    assert all(record.read > 5_000 for record in answered)


async def test_22_constant_words_hold_no_counter(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Two factories, one after the other, write the same bytes for the same fork, shortened results included."""
    snapshot = replace(await parent.ask(), replacements=ContentReplacementState(max_chars=100, keep_chars=10))
    directive = says("Go.", {"blocks": [{"type": "tool_use", "id": "toolu_same", **call(n=1)}]}, DONE)

    await run(forks, snapshot, llm, directive, tool_dispatcher=VERBOSE)
    async with DefaultForkSubagent() as others:
        await run(others, snapshot, llm, directive, tool_dispatcher=VERBOSE)

    assert (raw(sim, 1), raw(sim, 2)) == (raw(sim, 3), raw(sim, 4))


async def test_23_a_fork_of_a_compacted_parent_has_the_compacted_history(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The newest request is the snapshot; nothing from before the compaction comes back."""
    await parent.ask(system=[text("Before the compaction.")])
    snapshot = await parent.ask(system=[text("You are an agent.")], tokens=3_000)

    await run(forks, snapshot, llm, says("Go.", DONE))

    assert b"Before the compaction." not in raw(sim, 2)
    assert sim.log[2].read == 3_000


async def test_24_no_id_of_a_child_takes_part_in_its_request(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Five of five forks read, with agent ids of their own that appear nowhere in body or headers."""
    snapshot = await parent.ask()
    handles = [
        await forks.fork(
            fork(snapshot, llm, says("Go.", DONE), fork_label=f"l-{n}", overrides=ForkOverrides(agent_id=f"id-{n}"))
        )
        for n in range(5)
    ]
    for handle in handles:
        await handle.result()

    assert [record.read >= 5_000 for record in sim.log[1:]] == [True] * 5
    for index, handle in enumerate(handles, 1):
        seen = raw(sim, index) + json.dumps(sim.log[index].headers).encode()
        assert not any(word.encode() in seen for word in (handle.run_id, f"id-{index - 1}", f"l-{index - 1}"))


async def test_25_the_headers_that_matter_are_the_parents(sim: Simulator, forks: DefaultForkSubagent) -> None:
    """Version and betas of the child's requests are the parent's, on every turn and whatever the provider adds."""
    async with Parent(sim.url) as parent, open_llm(sim.url) as llm:
        await parent.client.messages.create(**request(), extra_headers={"anthropic-beta": "one-2026-01-01,two"})
        await run(forks, parent.capture.snapshot(), llm, says("Go.", {"tools": [call()]}, DONE))

    matter = [
        {name: record.headers.get(name) for name in ("anthropic-version", "anthropic-beta")} for record in sim.log
    ]
    assert matter == [matter[0]] * 3
    assert matter[0]["anthropic-beta"] == "one-2026-01-01,two"


async def test_26_another_workspaces_key_is_named_and_then_refused(
    sim: Simulator, parent: Parent, forks: DefaultForkSubagent
) -> None:
    """The first call shows whose key it is; from then on nothing is sent with it."""
    snapshot = await parent.ask()
    async with open_llm(sim.url, key="sk-sim-strangers") as stranger:
        first = await run(forks, snapshot, stranger, says("Go.", DONE))
        with pytest.raises(WorkspaceMismatch, match="wrkspc_strangers"):
            await forks.fork(fork(snapshot, stranger))

    assert first.cache is not None
    assert first.cache.cause == "workspace"
    assert sim.request_count == 2


async def test_27_more_than_20_blocks_behind_the_last_write_are_bridged(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A reply of 25 calls, and a child's own turn of 25, each stay within sight of the entry before."""
    snapshot = await parent.ask(answer=agent_calls(25))
    turn = {"tools": [call(n=n) for n in range(25)]}

    await run(forks, snapshot, llm, says("Go.", turn, turn, DONE), tool_dispatcher=VERBOSE)

    assert sim.log[1].read == 5_000
    assert sim.log[2].read > 5_000
    assert sim.log[3].read == sim.log[2].prompt_tokens


async def test_28_there_are_never_more_than_four_markers(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Not under a parent that uses four, and not on later turns."""
    said = [text(f"Part {n}.", tokens=1_500, mark=MARK) for n in range(3)]
    said.append(text(says("Go on.", agent_calls(2)), tokens=1_500, mark=MARK))
    snapshot = await parent.ask(request(messages=[{"role": "user", "content": said}]))

    await run(forks, snapshot, llm, says("Go.", *[{"tools": [call(n=1)]}] * 3, DONE), tool_dispatcher=VERBOSE)

    assert [(record.status, len(record.breakpoints) <= 4) for record in sim.log] == [(200, True)] * 5
    assert all(record.read >= sim.log[0].prompt_tokens for record in sim.log[1:])


async def test_29_the_ttl_is_the_parents_and_a_gap_that_is_too_long_is_named(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Under an hour's parent children write for an hour; a five-minute entry that ran out is reported."""
    hourly = await parent.ask(mark=MARK_1H, system=[text("Hourly.")])
    await run(forks, hourly, llm, says("Go.", DONE))
    snapshot = await parent.ask()
    sim.clock.advance(301)
    assert snapshot.sent_at is not None

    late = await run(forks, replace(snapshot, sent_at=snapshot.sent_at - 301), llm, says("Go.", DONE))

    assert (sim.log[1].write_5m, sim.log[1].write_1h > 0) == (0, True)
    assert late.cache is not None
    assert late.cache.cause == "expired"


async def test_30_a_ttl_that_a_proxy_strips_is_named(
    sim: Simulator, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The parent asked for an hour, was billed for five minutes, and its entry is gone after ten."""
    proxy = Gateway(lambda body: body.replace(MARKER_1H, MARKER))
    async with Parent(sim.url, http_client=httpx2.AsyncClient(transport=proxy)) as parent:
        snapshot = await parent.ask(mark=MARK_1H)
    sim.clock.advance(600)
    assert snapshot.sent_at is not None

    result = await run(forks, replace(snapshot, sent_at=snapshot.sent_at - 600), llm, says("Go.", DONE))

    assert result.cache is not None
    assert result.cache.cause == "ttl_stripped"


async def test_31_simultaneous_cold_starts_pay_one_write(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Eight children on a prefix nobody wrote: one write, seven reads, though the first byte takes its time."""
    snapshot = await parent.ask(mark=None, tokens=20_000)
    # Without the delay the first entry is there before the next request arrives, whoever waits or not.
    slow = [says(f"Part {n}.", {"text": "Done.", "delay_s": 0.2}) for n in range(8)]

    for handle in await forks.fork_each(fork(snapshot, llm), slow):
        await handle.result()

    assert sorted(record.write_5m > 0 for record in sim.log[1:]) == [False] * 7 + [True]


async def test_32_a_prefix_below_the_minimum_is_named(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """What the API leaves silently uncached has a cause in the result."""
    (result,) = await run_each(forks, await parent.ask(tokens=400), llm, 1)

    assert result.cache is not None
    assert (result.cache.cause, result.cache.written) == ("below_minimum", 0)


async def test_33_a_file_that_mentions_the_tag_makes_nobody_a_fork(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Neither the tag in a question nor the whole boilerplate in a file; a real fork is refused."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "cat fork.py"}}
    history: list[dict[str, Any]] = [
        {"role": "user", "content": [text("What is <fork-boilerplate>?", tokens=2_000)]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": BOILERPLATE}]},
    ]
    history[-1]["content"].append(text(says(f"{BOILERPLATE} is in that file.", agent_calls(1)), mark=MARK))
    snapshot = await parent.ask(request(messages=history))

    result = await run(forks, snapshot, llm, says("Go.", DONE))

    assert result.ok
    childs_own = CacheSafeParams.from_parent_request(raw(sim, 1))
    with pytest.raises(AlreadyAFork, match="boilerplate"):
        await forks.fork(fork(childs_own, llm))
    assert sim.request_count == 2


async def test_34_no_sibling_and_no_other_session_shows_in_a_child(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Each body holds its own directive and its own parent's history, with two parents at work at once."""
    async with Parent(sim.url) as stranger:
        async with asyncio.TaskGroup() as tasks:
            mine = tasks.create_task(parent.ask(system=[text("Session ALPHA.")]))
            theirs = tasks.create_task(stranger.ask(system=[text("Session BETA.")]))
        secrets = [f"secret-{n}" for n in range(4)]
        handles = await forks.fork_each(fork(mine.result(), llm), [says(secret, DONE) for secret in secrets[:2]])
        handles += await forks.fork_each(fork(theirs.result(), llm), [says(secret, DONE) for secret in secrets[2:]])
        for handle in handles:
            await handle.result()

    for index in range(2, 6):
        body = raw(sim, index)
        (own,) = [n for n, secret in enumerate(secrets) if secret.encode() in body]
        assert (b"Session ALPHA." in body, b"Session BETA." in body) == (own < 2, own >= 2)


@pytest.mark.parametrize("mode", list(DelegateMode))
async def test_35_siblings_are_started_side_by_side(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent, mode: DelegateMode
) -> None:
    """Five responses are under way before any of them ends, whether or not the caller waits."""
    held = {"text": "a b c", "hold": {"gate": "all", "after_events": 3}}
    snapshot = await parent.ask()
    async with asyncio.TaskGroup() as tasks:
        started = tasks.create_task(
            forks.fork_each(fork(snapshot, llm, mode=mode), [says(f"Part {n}.", held) for n in range(5)])
        )
        async with asyncio.timeout(PATIENCE_S):
            await sim.begun(6)
        assert [record.finished_at for record in sim.log[1:]] == [None] * 5
        sim.release("all")

    assert [(await handle.result()).ok for handle in started.result()] == [True] * 5


async def test_36_thinking_blocks_of_the_reply_are_sent_back_as_they_came(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The latest assistant message keeps its thinking to the byte, so no signature is refused."""
    answer = {"thinking": "Zwölf Boxkämpfer — 😀", "text": "I fork.", "tools": [call("Agent", b=1, a=2)]}
    snapshot = await parent.ask(model="claude-opus-5-5", answer=answer)
    assert snapshot.reply is not None

    results = await run_each(forks, snapshot, llm, 2)

    assert [result.error for result in results] == [None, None]
    for index in (1, 2):
        assert all(block.wire.rstrip(b"}") in raw(sim, index) for block in snapshot.reply.blocks)
    assert common_prefix(raw(sim, 1), raw(sim, 2)) > len(snapshot.body)
