"""The arithmetic the project grew from, on the simulator's own bill.

Token-equivalents count fresh input at 1, a five-minute write at 1.25 and a read at 0.1. The boilerplate is counted
outside the directive, with what all siblings share.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.conversation import (
    AGENT,
    BASH,
    BOILERPLATE_TOKENS,
    placeholder_tokens,
    says,
    sized_reply,
    text,
    tokens_of,
)
from tests.support.parents import Parent, equivalents, fork, open_llm, usage_in_log
from tests.support.witness import common_prefix, common_suffix

if TYPE_CHECKING:
    from nexofork import AnthropicProvider, CacheSafeParams, DefaultForkSubagent, ForkResult
    from nexofork.simulator import RequestRecord, Simulator
    from tests.conftest import StartSimulator

HISTORY = 100_000
REPLY = 500
DIRECTIVE = 100
TAIL = REPLY + placeholder_tokens(3) + BOILERPLATE_TOKENS
"""What the siblings share behind the parent's request."""


def directives(count: int, tokens: int = DIRECTIVE) -> list[str]:
    """Directives of an exact size, each with its own words."""
    return [
        text(says(f"Part {number}.", {"text": "Scope: p\nResult: r"}), tokens=tokens)["text"] for number in range(count)
    ]


async def run(
    forks: DefaultForkSubagent, snapshot: CacheSafeParams, llm: AnthropicProvider, said: list[str]
) -> list[ForkResult]:
    """Fork once per directive and wait for all."""
    handles = await forks.fork_each(fork(snapshot, llm), said)
    return [await handle.result() for handle in handles]


def agrees(results: list[ForkResult], records: list[RequestRecord]) -> bool:
    """Whether our own figures are the simulator's."""
    ours = sorted(results, key=lambda result: result.calls[0].message_id)
    theirs = sorted(records, key=lambda record: str(record.message_id))
    same = [result.usage for result in ours] == [usage_in_log(record) for record in theirs]
    return same and [result.cost_usd for result in ours] == pytest.approx([record.price_usd for record in theirs])


async def test_three_warm_forks_of_100k_cost_about_31k(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """100K history, a 500-token reply with three calls, 100-token directives: 31K token-equivalents in all."""
    snapshot = await parent.ask(tokens=HISTORY, answer=sized_reply(3, REPLY))

    results = await run(forks, snapshot, llm, directives(3))

    records = sim.log[1:]
    assert sum(map(equivalents, records)) == pytest.approx(31_000, rel=0.02)
    assert [(one.read, one.write_5m, one.fresh) for one in records] == [
        (HISTORY, TAIL, DIRECTIVE),
        (HISTORY + TAIL, 0, DIRECTIVE),
        (HISTORY + TAIL, 0, DIRECTIVE),
    ]
    assert agrees(results, records)


async def test_three_cold_forks_of_100k_cost_about_120k_and_one_write(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """With the parent's entry expired the prefix is written once, at 1.25, and read twice, at 0.1."""
    snapshot = await parent.ask(tokens=HISTORY, answer=sized_reply(3, REPLY))
    sim.clock.advance(301)

    results = await run(forks, snapshot, llm, directives(3))

    records = sim.log[1:]
    assert [(one.read, one.write_5m, one.fresh) for one in records] == [
        (0, HISTORY + TAIL, DIRECTIVE),
        (HISTORY + TAIL, 0, DIRECTIVE),
        (HISTORY + TAIL, 0, DIRECTIVE),
    ]
    surcharge = 0.25 * records[0].write_5m
    assert sum(map(equivalents, records)) - surcharge == pytest.approx(120_000, rel=0.02)
    assert agrees(results, records)


async def test_five_children_of_48_500_pay_the_prefix_once(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """4K system, 12K of tools, 30K history, a 2K reply with five calls: child 1 pays it, 2 to 5 about 5,050 each."""
    fixed: dict[str, Any] = {
        "system": [text("You are an agent.", tokens=4_000)],
        "tools": [AGENT, BASH, *({"name": f"Tool{n}", "input_schema": {"type": "object"}} for n in range(38))],
    }
    described = 12_000 - tokens_of({"tools": fixed["tools"]})
    fixed["tools"][-1]["description"] = "x" * (4 * described - len(',"description":""'))
    assert tokens_of({"tools": fixed["tools"]}) == 12_000
    shared = 48_500
    history = shared - 2_000 - placeholder_tokens(5)
    snapshot = await parent.ask(tokens=history, mark=None, answer=sized_reply(5, 2_000), **fixed)

    results = await run(forks, snapshot, llm, directives(5, 200))

    first, *others = sim.log[1:]
    whole = shared + BOILERPLATE_TOKENS
    assert (first.read, first.write_5m, first.fresh) == (0, whole, 200)
    assert [equivalents(one) for one in others] == pytest.approx([5_050] * 4, rel=0.02)
    assert {(one.read, one.write_5m, one.fresh) for one in others} == {(whole, 0, 200)}
    assert agrees(results, [first, *others])


async def test_80_000_shared_and_200_own_tokens_overlap_by_99_75_percent(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Of a sibling's prompt of 80,200 tokens the simulator serves 80,000 from the cache."""
    tail = REPLY + placeholder_tokens(2) + BOILERPLATE_TOKENS
    snapshot = await parent.ask(tokens=80_000 - tail, answer=sized_reply(2, REPLY))

    results = await run(forks, snapshot, llm, directives(2, 200))

    sibling = sim.log[2]
    assert (sibling.read, sibling.prompt_tokens) == (80_000, 80_200)
    assert round(sibling.read / sibling.prompt_tokens, 4) == 0.9975
    assert agrees(results, sim.log[1:])


@pytest.mark.breaks_prefix("shows what children pay that differ by a session id")
async def test_eight_warm_forks_of_100k_save_over_90_percent_of_what_diverging_children_pay(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Eight children whose system prompts name their session pay eight writes; eight forks pay reads."""
    system = [text("Scratch directory: /tmp/session-0. Work there.")]
    snapshot = await parent.ask(tokens=HISTORY, answer=sized_reply(8, REPLY), system=system)
    results = await run(forks, snapshot, llm, directives(8))
    shared = list(sim.log[1:])

    for number, record in enumerate(shared, 1):
        body = sim.body(record.index)
        assert body is not None
        await _resend(parent, body.replace(b"session-0", b"session-%d" % number))

    diverging = sim.log[9:]
    assert {one.read for one in diverging} == {0}
    assert len(diverging) == 8
    saved = 1 - sum(map(equivalents, shared)) / sum(map(equivalents, diverging))
    assert saved > 0.9
    assert agrees(results, shared)


async def test_eight_warm_forks_of_100k_save_over_90_percent_of_full_price_where_reads_cost_a_twentieth(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """On a model that reads at 0.05 the eight forks cost under a tenth of the same prompts without any caching."""
    model = "claude-opus-5-5"
    snapshot = await parent.ask(tokens=HISTORY, answer=sized_reply(8, REPLY), model=model)
    results = await run(forks, snapshot, llm, directives(8))
    shared = list(sim.log[1:])

    for record in shared:
        body = sim.body(record.index)
        assert body is not None
        await _resend(parent, body.replace(b',"cache_control":{"type":"ephemeral"}', b""))

    plain = sim.log[9:]
    assert {(one.read, one.write_5m) for one in plain} == {(0, 0)}
    assert len(plain) == 8
    assert _input_usd(shared) < 0.1 * _input_usd(plain)
    assert agrees(results, shared)


async def test_siblings_are_over_99_percent_the_same_bytes(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """What differs between the bodies of two siblings is the directive alone."""
    snapshot = await parent.ask(tokens=HISTORY, answer=sized_reply(3, REPLY))

    await run(forks, snapshot, llm, directives(3))

    bodies = [sim.body(index) or b"" for index in (1, 2, 3)]
    for one, other in itertools.pairwise(bodies):
        same = common_prefix(one, other) + common_suffix(one, other)
        assert same / len(one) > 0.99
        assert len(one) - same < 4 * DIRECTIVE


async def test_what_sharing_saves_doubles_with_the_context_and_with_the_children(
    start_simulator: StartSimulator, forks: DefaultForkSubagent
) -> None:
    """Against the same prompts at full price: from 50K to 100K tokens of history, and from three children to six."""
    saved: dict[tuple[int, int], float] = {}
    for tokens, children in ((50_000, 3), (100_000, 3), (100_000, 6)):
        sim = await start_simulator()
        async with Parent(sim.url) as parent, open_llm(sim.url) as llm:
            snapshot = await parent.ask(tokens=tokens, answer=sized_reply(3, REPLY))
            await run(forks, snapshot, llm, directives(children))
        records = sim.log[1:]
        saved[tokens, children] = sum(one.prompt_tokens for one in records) - sum(map(equivalents, records))

    assert saved[50_000, 3] == pytest.approx(0.9 * 3 * 50_000, rel=0.02)
    assert saved[100_000, 3] == pytest.approx(2 * saved[50_000, 3], rel=0.02)
    assert saved[100_000, 6] == pytest.approx(2 * saved[100_000, 3], rel=0.02)


async def _resend(parent: Parent, body: bytes) -> None:
    """Send bytes as they are, without the fork runtime."""
    plain = body.replace(b',"stream":true', b"").replace(b'"stream":true,', b"")
    assert json.loads(plain)
    await parent.client.post("/v1/messages", content=plain, cast_to=object, options={"timeout": 30.0})


def _input_usd(records: list[RequestRecord]) -> float:
    price = {"claude-opus-5-5": (4.0, 0.2)}
    paid = 0.0
    for one in records:
        fresh, read = price[str(one.model)]
        paid += (one.fresh + 1.25 * one.write_5m) * fresh + one.read * read
    return paid
