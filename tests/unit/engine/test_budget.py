from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import Budget, DefaultForkSubagent, ForkStatus, FunctionTools
from nexofork.core.usage import Usage
from nexofork.economics.prices import cost_usd
from nexofork.errors import ForkRefused, OverBudget
from nexofork.run.budget import LocalTill, RunPurse, cost_of
from nexofork.wire.budget import Account
from nexofork.wire.messages import Amount, BudgetLimit
from tests.support.conversation import MODEL, call, request, says
from tests.support.parents import Parent, fork, usage_in_log

if TYPE_CHECKING:
    from nexofork import AnthropicProvider, CacheSafeParams
    from nexofork.simulator import Simulator

GOES_ON = says("Go.", *({"text": f"Step {step}.", "tools": [call(command="ls")]} for step in range(9)))
HELD = says("Wait.", {"text": "Done.", "hold": "go"})


async def bash(arguments: dict[str, Any]) -> str:
    """Pretend to run a command."""
    return f"ran {arguments['command']}"


TOOLS = FunctionTools({"Bash": bash})


@pytest.fixture
async def snapshot(parent: Parent) -> CacheSafeParams:
    """A parent that has made one call, with short answers."""
    return await parent.ask(request(max_tokens=500))


def tokens_of_forks(sim: Simulator) -> int:
    """What the children were billed for."""
    bills = [usage_in_log(record) for record in sim.log[1:]]
    return sum(bill.prompt_tokens + bill.output_tokens for bill in bills)


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"usd": 0},
        {"usd": -1},
        {"usd": float("nan")},
        {"usd": float("inf")},
        {"usd": True},
        {"usd": "1"},
        {"tokens": 0},
        {"tokens": -5},
        {"tokens": 1.5},
        {"tokens": True},
        {"tokens": "many"},
        {"tokens": float("nan")},
        {"usd": 1.0, "tokens": -1},
    ],
)
def test_a_budget_that_is_none_is_refused(limits: dict[str, Any]) -> None:
    """By name, and before anything is begun."""
    with pytest.raises(ForkRefused, match=r"budget"):
        Budget(**limits)


@pytest.mark.parametrize("limits", [{"usd": 1}, {"usd": 1e-9}, {"usd": 1e300}, {"tokens": 1}, {"tokens": 10**30}])
def test_small_and_large_budgets_are_taken(limits: dict[str, Any]) -> None:
    """Only what cannot be used is absurd."""
    assert Budget(**limits).limit.model_dump(exclude_none=True) == limits


async def test_a_fork_ends_before_the_call_that_would_pass_its_budget(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """What it said so far is kept, and what was billed is within."""
    budget = Budget(tokens=20_000)

    handle = await forks.fork(fork(snapshot, llm, GOES_ON, tool_dispatcher=TOOLS, budget=budget))
    result = await handle.result()

    assert (result.status, result.end, result.turns) == (ForkStatus.OVER_BUDGET, "over_budget", 3)
    assert result.final_text == "Step 2."
    assert result.usage.prompt_tokens + result.usage.output_tokens == tokens_of_forks(sim) <= 20_000
    assert result.budget is not None
    assert (result.budget["limit"], result.budget["spent"]) == (20_000, tokens_of_forks(sim))
    assert "20,000 tokens" in (result.error or "")


async def test_dollars_are_counted_as_they_are_billed(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The provider's own sum stays within the budget, and most of the budget can be used."""
    handle = await forks.fork(fork(snapshot, llm, GOES_ON, tool_dispatcher=TOOLS, budget=Budget(usd=0.04)))
    result = await handle.result()

    billed = sum(record.price_usd for record in sim.log[1:])
    assert result.status is ForkStatus.OVER_BUDGET
    assert 0.02 < billed <= 0.04


async def test_a_budget_too_small_for_one_call_sends_none(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The end says what the first call may cost."""
    result = await (await forks.fork(fork(snapshot, llm, budget=Budget(tokens=100)))).result()

    assert (result.status, result.turns, sim.request_count) == (ForkStatus.OVER_BUDGET, 0, 1)


async def test_a_fork_within_its_budget_completes(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A budget that suffices changes nothing."""
    result = await (await forks.fork(fork(snapshot, llm, budget=Budget(usd=1, tokens=10_000)))).result()

    assert (result.ok, result.budget, sim.request_count) == (True, None, 2)


async def test_a_group_shares_its_budget(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Eight children, money for some: those complete, the others end over budget, the sum stays within."""
    params = fork(snapshot, llm, group_budget=Budget(tokens=25_000))

    handles = await forks.fork_each(params, [f"Part {number}." for number in range(8)], group="g")
    results = [await handle.result() for handle in handles]

    statuses = [result.status for result in results]
    assert set(statuses) == {ForkStatus.COMPLETED, ForkStatus.OVER_BUDGET}
    assert statuses.count(ForkStatus.COMPLETED) == 4
    assert tokens_of_forks(sim) <= 25_000
    assert {result.budget["group"] for result in results if result.budget} == {"g"}


async def test_groups_and_calls_without_one_do_not_mix(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Each group has its own account, and who names no budget has none."""
    params = fork(snapshot, llm, group_budget=Budget(tokens=7_000))

    first = await (await forks.fork(params, group="a")).result()
    again = await (await forks.fork(params, group="a")).result()
    other = await (await forks.fork(params, group="b")).result()
    free = await (await forks.fork(fork(snapshot, llm), group="a")).result()

    assert [result.ok for result in (first, again, other, free)] == [True, False, True, True]


async def test_a_group_budget_needs_a_group(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """It is refused before anything is sent."""
    params = fork(snapshot, llm, group_budget=Budget(tokens=7_000))

    for group in (None, " "):
        with pytest.raises(ForkRefused, match="no group"):
            await forks.fork_each(params, ["Look."], group=group)
    assert sim.request_count == 1


@pytest.mark.parametrize("which", ["budget", "group_budget"])
async def test_a_bare_number_is_no_budget(
    snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent, which: str
) -> None:
    """It does not say of what."""
    with pytest.raises(ForkRefused, match=r"A budget is 0.5; pass Budget\(usd=…\)"):
        await forks.fork(fork(snapshot, llm, "Look.", **{which: 0.5}), group="g")


@pytest.mark.parametrize("which", ["budget", "group_budget"])
async def test_dollars_for_a_model_without_a_price_are_refused(
    llm: AnthropicProvider, forks: DefaultForkSubagent, parent: Parent, which: str
) -> None:
    """It names the model and the way out; tokens are taken."""
    body = request(max_tokens=500, model="claude-nova-9")
    snapshot = type(await parent.ask()).from_parent_request(body)

    with pytest.raises(ForkRefused, match=r"'claude-nova-9'.*tokens.*price file"):
        await forks.fork(fork(snapshot, llm, "Look.", **{which: Budget(usd=1)}), group="g")
    handle = await forks.fork(fork(snapshot, llm, "Look.", **{which: Budget(tokens=10)}), group="g")
    assert (await handle.result()).status is ForkStatus.OVER_BUDGET


async def test_an_aborted_call_gives_its_group_nothing_back_but_ends(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Nobody knows what it cost, so all that was set aside counts; whoever waited for it goes on."""
    params = fork(snapshot, llm, group_budget=Budget(tokens=14_000), warm_up="all_at_once")
    held = await forks.fork(params.with_directive(HELD), group="g")
    await sim.received(2)
    second = await (await forks.fork(params, group="g")).result()
    third = await forks.fork(params, group="g")

    await held.abort("enough")

    assert ((await third.result()).status, second.ok) == (ForkStatus.OVER_BUDGET, True)
    assert sim.request_count == 3


async def test_a_failed_attempt_that_cost_nothing_counts_as_nothing(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Three overloads before the answer leave the budget as it was."""
    flaky = says("Look.", {"text": "Done.", "fault": {"status": 529, "times": 2}})

    result = await (await forks.fork(fork(snapshot, llm, flaky, budget=Budget(tokens=7_000)))).result()

    assert (result.ok, sim.request_count) == (True, 4)


async def test_a_call_that_broke_off_is_not_sent_again_beyond_the_budget(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """It was billed, nobody knows for how much: the retry finds no room."""
    breaks = says("Look.", {"text": "Done.", "fault": {"cut_after_events": 3, "times": 1}})

    result = await (await forks.fork(fork(snapshot, llm, breaks, budget=Budget(tokens=7_000)))).result()

    assert (result.status, sim.request_count) == (ForkStatus.OVER_BUDGET, 2)


def account(tokens: int) -> Account:
    """An account with this limit."""
    return Account(name="g", limit=BudgetLimit(tokens=tokens))


def of(tokens: int) -> Any:
    """A quote."""
    return lambda: Amount(tokens=tokens)


async def test_a_call_waits_for_what_others_may_give_back() -> None:
    """It goes as soon as another cost less than was set aside."""
    till = LocalTill(account(100))
    await till.reserve("a", of(80))

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(till.reserve("b", of(60)))
        await asyncio.sleep(0)
        assert not waiting.done()
        till.settle("a", Amount(tokens=30))

    assert (waiting.result().tokens, till.account.spent.tokens, till.account.held.tokens) == (60, 30, 60)


async def test_a_wait_ends_when_what_was_spent_leaves_no_room() -> None:
    """The other call cost so much that this one cannot be made."""
    till = LocalTill(account(100))
    await till.reserve("a", of(80))
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(_error(till.reserve("b", of(60))))
        await asyncio.sleep(0)
        till.settle("a", None)

    assert (waiting.result().spent, waiting.result().waited_s) == (80, None)


async def test_a_wait_has_an_end() -> None:
    """After the deadline it counts as over budget, and says who has the rest."""
    till = LocalTill(account(100), wait_s=0.01)
    await till.reserve("a", of(80))

    with pytest.raises(OverBudget, match=r"80 tokens set aside for calls that did not end within 0.01 s"):
        await till.reserve("b", of(60))


async def test_the_quote_is_asked_again_after_a_wait() -> None:
    """By then the cache may be warm and the call cheaper."""
    till = LocalTill(account(100))
    quotes = iter((60, 20))
    await till.reserve("a", of(80))
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(till.reserve("b", lambda: Amount(tokens=next(quotes))))
        await asyncio.sleep(0)
        till.settle("a", None)

    assert waiting.result().tokens == 20


async def test_a_run_holds_nothing_of_its_own_when_the_group_has_no_room() -> None:
    """Neither account has anything open, and the log's record says how far the run was."""
    own, group = LocalTill(account(1000)), LocalTill(account(50))
    purse = RunPurse(own, name="r.1", cost=cost_of(MODEL), group=group)

    with pytest.raises(OverBudget):
        await purse.reserve(of(60))
    held = await purse.reserve(of(40))
    assert held.record is not None
    assert (held.record.key, held.record.spent.tokens, held.record.reserved.tokens) == ("r.1.2", 0, 40)
    held.settle(Usage(input_tokens=10))
    assert (own.account.open, own.account.spent) == ({}, group.account.spent)


def test_a_bill_is_counted_in_both_units() -> None:
    """Tokens are all tokens; what a provider reports below nothing is nothing."""
    usage = Usage(input_tokens=10, cache_read_tokens=100, output_tokens=5)

    assert cost_of(MODEL)(usage) == Amount(tokens=115, usd=cost_usd(usage, MODEL))
    assert cost_of("unknown")(usage) == Amount(tokens=115)
    assert cost_of(MODEL)(Usage(input_tokens=-7)) == Amount()


async def _error(work: Any) -> OverBudget:
    with pytest.raises(OverBudget) as caught:
        await work
    return caught.value
