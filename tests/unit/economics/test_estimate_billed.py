"""What was estimated against what the provider then bills for the same fan-out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import FunctionTools, estimate
from nexofork.simulator.catalog import CATALOG
from tests.support.conversation import MARK, MARK_1H, agent_calls, call, says
from tests.support.parents import fork

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork import AnthropicProvider, CacheSafeParams, DefaultForkSubagent, Estimate
    from nexofork.simulator import RequestRecord, Simulator
    from tests.support.parents import Parent

# Without the delay the first entry is there before the next request arrives, whoever waits or not.
SLOW = {"text": "Done.", "delay_s": 0.2}
QUICK = {"text": "Done."}


async def bash(_: dict[str, Any]) -> str:
    """Answer a tool call with little."""
    return "README.md"


def input_usd(records: Sequence[RequestRecord], model: str) -> float:
    """What the provider bills for the prompts, by its own list."""
    return sum(
        CATALOG[model]
        .price(record.fresh + record.read + record.write_5m + record.write_1h)
        .of(fresh=record.fresh, read=record.read, write_5m=record.write_5m, write_1h=record.write_1h, output=0)
        for record in records
    )


def directives(count: int, *turns: dict[str, Any]) -> list[str]:
    """Directives of about the same length."""
    return [says(f"Look at part {number:03} of it.", *turns) for number in range(count)]


async def billed(
    sim: Simulator, forks: DefaultForkSubagent, llm: AnthropicProvider, snapshot: CacheSafeParams, texts: list[str]
) -> float:
    """Fork, wait for all, and return what the children's prompts were billed."""
    began = sim.request_count
    params = fork(snapshot, llm, tool_dispatcher=FunctionTools({"Bash": bash}))
    for handle in await forks.fork_each(params, texts):
        assert (await handle.result()).ok
    return input_usd(sim.log[began:], snapshot.model)


def check(found: Estimate, bill: float) -> None:
    """The estimate is within 2% of the bill."""
    assert found.shared.input_usd == pytest.approx(bill, rel=0.02)


@pytest.mark.parametrize("children", [1, 3, 8, 20])
@pytest.mark.parametrize("mark", [MARK, MARK_1H])
@pytest.mark.parametrize("tokens", [20_000, 150_000])
async def test_a_warm_fan_out(
    sim: Simulator,
    parent: Parent,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    children: int,
    mark: dict[str, str],
    tokens: int,
) -> None:
    """The parent has just written its prefix."""
    snapshot = await parent.ask(tokens=tokens, mark=mark, model="claude-opus-5-5", answer=agent_calls(3))
    texts = directives(children, SLOW)
    found = estimate(snapshot, texts)

    assert found.warm_tokens == found.prefix_tokens == tokens
    check(found, await billed(sim, forks, llm, snapshot, texts))


@pytest.mark.parametrize("children", [1, 3, 8, 20])
@pytest.mark.parametrize("mark", [MARK, MARK_1H])
@pytest.mark.parametrize("model", ["claude-opus-4-8", "claude-haiku-5-5"])
async def test_a_cold_fan_out(
    sim: Simulator,
    parent: Parent,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    children: int,
    mark: dict[str, str],
    model: str,
) -> None:
    """The parent's entries are gone, and nobody knows when it wrote them."""
    snapshot = replace(await parent.ask(tokens=20_000, mark=mark, model=model), sent_at=None)
    sim.clock.advance(4_000)
    texts = directives(children, SLOW)
    found = estimate(snapshot, texts)

    assert found.warm_tokens == 0
    check(found, await billed(sim, forks, llm, snapshot, texts))


async def test_a_long_prompt_at_its_own_price(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Haiku 5.5 above 100,000 tokens, without a parent's entry."""
    snapshot = await parent.ask(tokens=120_000, mark=None, model="claude-haiku-5-5")
    texts = directives(5, SLOW)

    check(estimate(snapshot, texts), await billed(sim, forks, llm, snapshot, texts))


async def test_children_of_several_turns(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Each reads its own prefix again and writes what was said since."""
    snapshot = await parent.ask(tokens=20_000, model="claude-opus-5-5")
    texts = directives(4, *[{"tools": [call(command="ls")], "delay_s": 0.1}] * 3, QUICK)
    found = estimate(snapshot, texts, turns=4, output_tokens=40)
    bill = await billed(sim, forks, llm, snapshot, texts)

    assert sim.request_count == 1 + 4 * 4
    check(found, bill)


async def test_below_the_minimum(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Nothing is cached, and the estimate knew."""
    snapshot = await parent.ask(tokens=2_000, model="claude-opus-4-6")
    texts = directives(3, QUICK)
    found = estimate(snapshot, texts)

    assert found.break_even_children is None
    check(found, await billed(sim, forks, llm, snapshot, texts))


async def test_a_request_file_without_a_bill(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Where four bytes are a token, counting bytes is as good as a bill."""
    captured = await parent.ask(tokens=20_000, mark=None)
    snapshot = replace(captured, reply=None, sent_at=None)
    texts = directives(5, SLOW)
    found = estimate(snapshot, texts)

    assert found.counted_by == "bytes"
    check(found, await billed(sim, forks, llm, snapshot, texts))


@pytest.mark.parametrize(("tokens", "mark"), [(20_000, None), (20_000, MARK), (400_000, MARK)])
async def test_the_fan_out_starts_as_it_was_estimated_to(
    parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent, tokens: int, mark: dict[str, str] | None
) -> None:
    """Estimate and runtime decide by the same figures."""
    snapshot = await parent.ask(tokens=tokens, mark=mark, model="claude-opus-5-5")
    texts = directives(3, QUICK)
    first, *_ = await forks.fork_each(fork(snapshot, llm), texts)
    decided = (await first.result()).decision

    expected = estimate(snapshot, texts).decision
    assert decided is not None
    assert decided["plan"] == expected.plan
    assert decided["shared_tokens"] == expected.shared_tokens
    assert decided["leader_first"] == pytest.approx(expected.leader_first, rel=0.01)


@pytest.mark.parametrize("children", [1, 2, 3])
async def test_sharing_pays_from_the_break_even_on(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent, children: int
) -> None:
    """On an hour's TTL three cold children are the fewest for which the bill is lower than without sharing."""
    snapshot = replace(await parent.ask(tokens=20_000, mark=MARK_1H), sent_at=None)
    sim.clock.advance(4_000)
    texts = directives(children, SLOW)
    found = estimate(snapshot, texts)
    bill = await billed(sim, forks, llm, snapshot, texts)

    assert found.unshared.input_usd is not None
    assert found.break_even_children == 3
    assert (bill < found.unshared.input_usd) == (children >= 3)
