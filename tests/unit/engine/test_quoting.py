from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import Budget, CacheSafeParams, DefaultForkSubagent, ForkOverrides, ForkParams, FunctionTools, Reply
from nexofork.core.prompt import ForkBase
from nexofork.core.usage import Usage
from nexofork.economics.prices import cost_usd
from nexofork.run.model_calls import CallQuotes
from nexofork.run.result import CallRecord
from tests.support.conversation import MARK, MARK_1H, MODEL, call, request, says
from tests.support.parents import Parent, fork, usage_in_log

if TYPE_CHECKING:
    from nexofork import AnthropicProvider
    from nexofork.simulator import Simulator

NOW = 1_000_000.0
BILL = Usage(input_tokens=10, cache_write_5m_tokens=5_000, output_tokens=200)


def snapshot(*, bill: Usage | None = BILL, sent_at: float | None = NOW, mark: dict[str, str] = MARK) -> CacheSafeParams:
    """A parent's call of 5,000 tokens, with the bill it got."""
    body = json.dumps(request(max_tokens=1_000, mark=mark)).encode()
    found = CacheSafeParams.from_parent_request(body, sent_at=sent_at)
    reply = Reply.from_response(b'[{"type":"text","text":"I fork."}]')
    return found if bill is None else replace(found, reply=replace(reply, usage=bill))


def quotes(params: ForkParams, *, now: float = NOW) -> CallQuotes:
    """What quotes this fork's calls at that time."""
    base = ForkBase(params.cache_safe, overrides=params.overrides.request)
    return CallQuotes(params, base, now=lambda: now)


def first(params: ForkParams, *, added: int = 400, is_warm: bool = False, now: float = NOW) -> tuple[int, float]:
    """What the first call may cost, in tokens and dollars."""
    size = len(params.cache_safe.body) + added
    amount = quotes(params, now=now).quote(1, size_bytes=size, calls=[], is_warm=is_warm)
    return amount.tokens, round(amount.usd, 9)


def made_call(usage: Usage) -> CallRecord:
    """The first call, as it was billed."""
    return CallRecord(turn=1, message_id="m", usage=usage, stop_reason=None, retries=0)


def priced(**counts: int) -> float:
    """What such a call costs."""
    return round(cost_usd(Usage(**counts), MODEL), 9)


def test_the_parents_bill_is_where_counting_starts() -> None:
    """What it covered is known to the token and read; what was added counts two bytes to a token, and is written."""
    params = ForkParams(cache_safe=snapshot(), prompt_messages="Look.")

    expected = priced(cache_read_tokens=5_000, cache_write_5m_tokens=10 + 200, output_tokens=1_000)
    assert first(params) == (5_010 + 200 + 1_000, expected)


@pytest.mark.parametrize(
    ("found", "now"), [(snapshot(), NOW + 295), (snapshot(), NOW + 4_000), (snapshot(sent_at=None), NOW)]
)
def test_what_may_have_expired_is_quoted_as_written(found: CacheSafeParams, now: float) -> None:
    """The tokens are as known as before; the cache is not."""
    params = ForkParams(cache_safe=found, prompt_messages="Look.")
    assert first(params, now=now) == (6_210, priced(cache_write_5m_tokens=5_210, output_tokens=1_000))


def test_without_a_bill_everything_counts_by_its_bytes() -> None:
    """And at the price of the TTL it would be written with."""
    found = snapshot(bill=None, mark=MARK_1H)
    prompt = (len(found.body) + 400 + 1) // 2

    expected = priced(cache_write_1h_tokens=prompt, output_tokens=1_000)
    assert first(ForkParams(cache_safe=found, prompt_messages="Look.")) == (prompt + 1_000, expected)


def test_behind_a_leader_the_shared_part_is_read() -> None:
    """Although the parent's own entry is long gone."""
    params = ForkParams(cache_safe=snapshot(), prompt_messages="Look.")
    tail = ForkBase(params.cache_safe).tail_bytes

    shared = 5_010 + (tail + 1) // 2
    expected = priced(cache_read_tokens=shared, cache_write_5m_tokens=50, output_tokens=1_000)
    assert first(params, added=tail + 100, now=NOW + 4_000, is_warm=True) == (shared + 50 + 1_000, expected)


def test_a_prefix_too_short_to_be_kept_is_never_quoted_as_read() -> None:
    """A leader's response began, and yet nothing is in the cache."""
    params = ForkParams(cache_safe=snapshot(bill=Usage(input_tokens=900)), prompt_messages="Look.")
    assert first(params, is_warm=True) == first(params, is_warm=False)


def test_an_override_of_max_tokens_is_the_longest_answer() -> None:
    """Another override makes the parent's bill worthless."""
    params = ForkParams(cache_safe=snapshot(), prompt_messages="Look.", allow_cache_break=True)
    shorter = replace(params, overrides=ForkOverrides(request={"max_tokens": 50}))
    other = replace(params, overrides=ForkOverrides(request={"system": "Be brief."}))

    assert first(shorter)[0] == 5_210 + 50
    assert first(other)[0] == (len(params.cache_safe.body) + 400 + 1) // 2 + 1_000


def test_a_prewarm_gets_no_answer() -> None:
    """Only its prompt is set aside."""
    params = ForkParams(cache_safe=snapshot(), prompt_messages="Look.")
    size = len(params.cache_safe.body)
    assert quotes(params).quote(0, size_bytes=size, calls=[], is_warm=False).tokens == 5_010


def test_a_later_call_starts_from_the_last_bill() -> None:
    """What that read or wrote is read again, within the TTL."""
    params = ForkParams(cache_safe=snapshot(), prompt_messages="Look.")
    made = made_call(Usage(cache_read_tokens=5_400, input_tokens=100))
    quoting = quotes(params)
    size = len(params.cache_safe.body)
    quoting.quote(1, size_bytes=size, calls=[], is_warm=False)

    later = quoting.quote(2, size_bytes=size + 1_000, calls=[made], is_warm=False)

    assert later.tokens == 5_500 + 500 + 1_000
    assert round(later.usd, 9) == priced(cache_read_tokens=5_400, cache_write_5m_tokens=600, output_tokens=1_000)


def test_after_a_takeover_the_log_says_how_old_the_last_call_is() -> None:
    """What the fork itself said counts by its bytes once more: too much rather than too little."""
    params = ForkParams(cache_safe=snapshot(), prompt_messages="Look.")
    made = made_call(Usage(cache_read_tokens=5_500))
    size = len(params.cache_safe.body) + 2_000
    recent, old, unknown = quotes(params), quotes(params), quotes(params)
    recent.recorded(1, NOW - 20)
    old.recorded(1, NOW - 400)

    amounts = [quoting.quote(2, size_bytes=size, calls=[made], is_warm=False) for quoting in (recent, old, unknown)]

    assert [amount.tokens for amount in amounts] == 3 * [5_500 + 1_000 + 1_000]
    assert amounts[0].usd < amounts[1].usd == amounts[2].usd


@pytest.mark.parametrize("usage", [Usage(), Usage(input_tokens=3)])
def test_a_provider_without_cache_fields_does_no_harm(usage: Usage) -> None:
    """Nothing is known to be cached, so all of it is quoted as written."""
    tokens, usd = first(ForkParams(cache_safe=snapshot(bill=usage), prompt_messages="Look."))
    assert (tokens > 0, usd > 0) == (True, True)


async def test_no_call_of_a_fork_costs_more_than_was_quoted(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Five turns with results of very different length: every bill is covered, and the sum is not far off."""
    sizes = iter((1, 40_000, 300, 9_000))

    async def bash(arguments: dict[str, Any]) -> str:
        return "x" * next(sizes)

    found = await parent.ask(request(max_tokens=300))
    turns = ({"text": "On.", "tools": [call(command="ls")]} for _ in range(4))
    params = fork(found, llm, says("Go.", *turns), tool_dispatcher=FunctionTools({"Bash": bash}))

    params = replace(params, budget=Budget(usd=100))
    async with asyncio.timeout(15):
        result = await (await forks.fork(params)).result()

    assert (result.ok, result.turns) == (True, 5)
    bills = [usage_in_log(record) for record in sim.log[1:]]
    base, calls = ForkBase(found), list(result.calls)
    again = CallQuotes(params, base)
    for number, record in enumerate(sim.log[1:]):
        amount = again.quote(number + 1, size_bytes=record.body_bytes, calls=calls[:number], is_warm=False)
        assert bills[number].prompt_tokens + bills[number].output_tokens <= amount.tokens
        assert record.price_usd <= amount.usd <= 12 * record.price_usd


def test_a_bill_that_cannot_be_is_no_bill() -> None:
    """A negative count would switch every budget off; it is counted by bytes instead."""
    params = ForkParams(cache_safe=snapshot(bill=Usage(input_tokens=-1_000_000)), prompt_messages="Look.")

    assert first(params)[0] > 10_000


def test_an_absurd_max_tokens_is_quoted_as_very_much() -> None:
    """Whatever number the parent asks for, the quote is one that can be compared."""
    body = json.dumps(request(max_tokens=10**400)).encode()
    tokens, usd = first(ForkParams(cache_safe=CacheSafeParams.from_parent_request(body), prompt_messages="Look."))

    assert 10**9 <= tokens < 10**10
    assert usd > 1_000
