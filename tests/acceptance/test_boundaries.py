"""Parents at the edges of the provider's rules: every child still finds their prefix, or says why not."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from anthropic import Anthropic

from nexofork import FunctionTools, capture
from tests.support.conversation import (
    BOILERPLATE_TOKENS,
    KEY,
    MARK,
    MARK_1H,
    agent_calls,
    call,
    declared,
    placeholder_tokens,
    request,
    says,
    text,
)
from tests.support.parents import Parent, body_of, fork

if TYPE_CHECKING:
    from nexofork import AnthropicProvider, CacheSafeParams, DefaultForkSubagent, ForkResult
    from nexofork.simulator import RequestRecord, Simulator

PRESERVED = "claude-opus-5-5"
"""A model that binds thinking blocks to the exact prefix before them."""


async def children(
    forks: DefaultForkSubagent, snapshot: CacheSafeParams, llm: AnthropicProvider, count: int = 2
) -> list[ForkResult]:
    """Run some children to their ends."""
    said = [says(f"Part {number}.", {"text": "Scope: s\nResult: r"}) for number in range(count)]
    handles = await forks.fork_each(fork(snapshot, llm), said)
    results = [await handle.result() for handle in handles]
    assert [result.error for result in results] == [None] * count
    return results


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "content": list(blocks)}


async def test_writes_at_blocks_10_and_15_are_found_from_block_35(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The parent wrote at its 10th and then its 15th block; a child 20 blocks further on still reads the 15th."""
    head = [text(f"Block {number}.", tokens=200) for number in range(12)]
    early = request(messages=[user(*head[:6], head[6] | {"cache_control": MARK})])
    await parent.ask(early)
    late = text(says("Go on.", agent_calls(9)), tokens=200, mark=MARK)
    snapshot = await parent.ask(request(messages=[user(*head[:7], *head[7:11], late)]))
    assert [sim.log[0].breakpoints, sim.log[1].breakpoints] == [[9], [14]]

    await children(forks, snapshot, llm)

    first, second = sim.log[2:]
    # 15 blocks of the parent, text and 9 calls, 9 placeholders, boilerplate: the shared end is the 35th block.
    assert first.breakpoints == [14, 34]
    assert (first.hit_position, second.hit_position) == (14, 34)


async def test_a_reply_with_40_parallel_calls_still_hits_the_parents_prefix(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """80 blocks behind the parent's entry do not push it out of sight."""
    snapshot = await parent.ask(tokens=20_000, answer=agent_calls(40))

    await children(forks, snapshot, llm)

    assert sim.log[1].read == 20_000
    assert sim.log[2].read > 20_000 + placeholder_tokens(40)


async def test_a_parent_that_uses_four_markers_still_shares_everything(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """One of them makes room for the shared end; none of the parent's newest entry is lost and there is no 400."""
    said = [text("Earlier.", tokens=2_000, mark=MARK), text(says("Go on.", agent_calls(2)), tokens=2_000, mark=MARK)]
    body = request(
        system=[text("You are an agent.", tokens=2_000, mark=MARK)],
        tools=[{"name": "Agent", "input_schema": {"type": "object"}, "cache_control": MARK}],
        messages=[user(*said)],
    )
    snapshot = await parent.ask(body)

    await children(forks, snapshot, llm)

    assert [len(record.breakpoints) for record in sim.log] == [4, 4, 4]
    assert sim.log[1].read == sim.log[0].prompt_tokens
    assert sim.log[2].write_5m == 0


async def test_a_prefix_below_the_minimum_is_reported(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The API says nothing about it; the result does."""
    results = await children(forks, await parent.ask(tokens=300), llm)

    assert [(record.read, record.write_5m) for record in sim.log] == [(0, 0)] * 3
    assert [result.cache and result.cache.cause for result in results] == ["below_minimum"] * 2


async def test_children_of_a_1h_parent_write_1h(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The TTL follows the parent's, so the order is right and ten minutes later the prefix is still there."""
    snapshot = await parent.ask(mark=MARK_1H)

    await children(forks, snapshot, llm, 1)
    sim.clock.advance(600)
    await children(forks, snapshot, llm, 1)

    assert [(record.write_5m, record.write_1h > 0) for record in sim.log] == [(0, True), (0, True), (0, False)]
    assert [record.read >= 5_000 for record in sim.log[1:]] == [True, True]


async def test_a_mixed_ttl_parent_keeps_its_order(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A system prompt for an hour and messages for five minutes stay that way in the child."""
    snapshot = await parent.ask(system=[text("You are an agent.", tokens=2_000, mark=MARK_1H)])

    await children(forks, snapshot, llm)

    assert (sim.log[0].write_1h > 0, sim.log[0].write_5m > 0) == (True, True)
    assert (sim.log[1].write_1h, sim.log[1].write_5m > 0) == (0, True)
    assert sim.log[2].fresh < 100


async def test_a_parent_without_any_marker_is_written_once_by_its_children(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The first child writes what all read, and says that it had to."""
    results = await children(forks, await parent.ask(mark=None), llm, 4)

    leader, *others = sim.log[1:]
    assert (leader.read, leader.write_5m > 5_000) == (0, True)
    assert {(record.read, record.write_5m) for record in others} == {(leader.write_5m, 0)}
    assert sorted(str(result.cache and result.cache.cause) for result in results) == ["None"] * 3 + ["unmarked"]


@pytest.mark.parametrize("calls", [2, 40])
@pytest.mark.parametrize("as_string", [False, True], ids=["blocks", "string"])
async def test_automatic_caching_is_shared(
    sim: Simulator,
    parent: Parent,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    as_string: bool,
    calls: int,
) -> None:
    """A top-level `cache_control` marks the parent's last block; children find that entry, however far back it is."""
    said = text(says("Go on.", agent_calls(calls)), tokens=5_000)
    message = {"role": "user", "content": said["text"] if as_string else [said]}
    snapshot = await parent.ask(request(messages=[message], cache_control=MARK))
    assert sim.log[0].write_5m == sim.log[0].prompt_tokens

    results = await children(forks, snapshot, llm)

    assert sim.log[1].read == sim.log[0].prompt_tokens
    assert sim.log[2].write_5m == 0
    assert "cache_control" not in body_of(sim, 1)
    assert [result.cache and result.cache.cause for result in results] == [None, None]


async def test_a_preserved_thinking_model_takes_the_fork_and_its_later_turns(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Thinking in the history, in the reply and in the child's own turns keeps its signatures."""
    first = request(model=PRESERVED, answer={"thinking": "Let me think.", "text": "Yes."})
    await parent.ask(first)
    thought = parent.capture.snapshot().reply
    assert thought is not None
    history = [*first["messages"], {"role": "assistant", "content": [block.value for block in thought.blocks]}]
    fork_now = {"thinking": "I should fork.", "text": "I fork.", "tools": [call("Agent", prompt="a")]}
    again = request(model=PRESERVED, messages=[*history, user(text(says("Fork.", fork_now), mark=MARK))])
    snapshot = await parent.ask(again)

    async def bash(arguments: dict[str, Any]) -> str:
        return "ok"

    turn = {"thinking": "A step.", "text": "I run it.", "tools": [call(command="ls")]}
    params = fork(snapshot, llm, tool_dispatcher=FunctionTools({"Bash": bash}))
    handles = await forks.fork_each(params, [says(f"Part {n}.", turn, turn, {"text": "Done."}) for n in range(2)])

    assert [(await handle.result()).turns for handle in handles] == [3, 3]
    assert {record.status for record in sim.log} == {200}
    kinds = [block["type"] for message in body_of(sim, 2)["messages"] for block in message["content"]]
    assert kinds.count("thinking") == 2


async def test_a_child_of_many_turns_and_blocks_never_loses_its_prefix(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Over ten turns of thirty calls each, every request reads all that the one before had written."""

    async def read(arguments: dict[str, Any]) -> str:
        return "line\n" * 20

    turn = {"text": "I read on.", "tools": [call("Read", n=n) for n in range(30)]}
    directive = says("Read.", *[turn] * 9, {"text": "Done."})
    tools = FunctionTools({"Read": read}, parallel=["Read"])
    snapshot = await parent.ask(tools=declared("Read"))

    result = await (await forks.fork(fork(snapshot, llm, directive, tool_dispatcher=tools))).result()

    records = sim.log[1:]
    assert (result.turns, len(records)) == (10, 10)
    written = [_cached(record) for record in records]
    assert [record.read for record in records[1:]] == written[:-1]
    assert all(later > earlier for earlier, later in pairwise(written))
    assert {record.fresh for record in records[1:]} == {0}


async def test_a_parent_on_the_beta_endpoint_keeps_its_betas(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The child's beta header is the parent's, byte for byte."""
    await parent.client.beta.messages.create(**request(), betas=["context-1m-2025-08-07", "other-2026-01-01"])
    snapshot = parent.capture.snapshot()

    await children(forks, snapshot, llm)

    betas = {record.headers.get("anthropic-beta") for record in sim.log}
    assert len(betas) == 1
    assert None not in betas
    assert sim.log[1].read == 5_000


@pytest.mark.parametrize("how", ["create", "create_stream", "stream"])
async def test_streaming_and_plain_parents_are_forked_alike(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent, how: str
) -> None:
    """Whichever way the parent reads its reply, the children send the same reply back."""
    body = request(answer={"text": "I fork — 日本語.", "tools": [call("Agent", z=1, a="é")]})
    if how == "create":
        await parent.client.messages.create(**body)
    elif how == "create_stream":
        async for _ in await parent.client.messages.create(**body, stream=True):
            pass
    else:
        async with parent.client.messages.stream(**body) as stream:
            await stream.until_done()

    await children(forks, parent.capture.snapshot(), llm)

    said, use = body_of(sim, 1)["messages"][1]["content"]
    assert (said["text"], list(use["input"].items())) == ("I fork — 日本語.", [("z", 1), ("a", "é")])
    assert [record.read for record in sim.log[1:]] == [5_000, sim.log[1].read + sim.log[1].write_5m]


async def test_a_parent_with_a_synchronous_client_is_forked_alike(
    sim: Simulator, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """`capture` records a plain `Anthropic` client, here used from a thread."""

    def ask() -> CacheSafeParams:
        with Anthropic(base_url=sim.url, api_key=KEY, max_retries=0) as client:
            recording = capture(client)
            client.messages.create(**request())
            return recording.snapshot()

    await children(forks, await asyncio.to_thread(ask), llm)

    assert [record.read >= 5_000 for record in sim.log[1:]] == [True, True]


async def test_a_parent_between_turns_is_forked_with_one_more_user_message(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A reply without open calls is followed by the boilerplate and the directive alone."""
    snapshot = await parent.ask(answer={"text": "All done here."})

    await children(forks, snapshot, llm)

    *_, reply, last = body_of(sim, 1)["messages"]
    assert ([block["type"] for block in reply["content"]], len(last["content"])) == (["text"], 2)
    assert sim.log[1].read == 5_000
    assert sim.log[2].read >= 5_000 + BOILERPLATE_TOKENS


def _cached(record: RequestRecord) -> int:
    return record.read + record.write_5m + record.write_1h
