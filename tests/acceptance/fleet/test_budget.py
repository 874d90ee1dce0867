"""What a fleet spends: the provider's own bills stay within the budgets, on however many hosts the children run."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import Budget, CacheSafeParams, ForkStatus
from nexofork.bus.jetstream import store
from nexofork.bus.reading import last_of
from nexofork.errors import BadMessage, ForkRefused
from nexofork.wire import messages as wire
from nexofork.wire.budget import Account, budget_run_id, decode_account
from nexofork.wire.streams import log_stream
from nexofork.wire.subjects import events, reports
from tests.support.conversation import call, request, says
from tests.support.parents import usage_in_log
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from nexofork import ForkResult
    from tests.support.fleet import Fleet

STEP = {"text": "I look.", "tools": [call(command="true")]}
DONE = {"text": "Scope: all\nResult: done"}


async def short_answers(fleet: Fleet) -> None:
    """Let the parent ask for short answers, so that what is set aside is near to what is billed."""
    fleet.captured = await fleet.agent.ask(request(max_tokens=200))


def billed_usd(fleet: Fleet) -> float:
    """What the provider says the children cost."""
    return sum(record.price_usd for record in fleet.sim.log[1:])


def billed_tokens(fleet: Fleet) -> int:
    """What the provider says the children used."""
    bills = [usage_in_log(record) for record in fleet.sim.log[1:]]
    return sum(bill.prompt_tokens + bill.output_tokens for bill in bills)


async def account_of(fleet: Fleet, group: str) -> Account:
    """The group's account as it was left."""
    stored = await last_of(fleet.bus, log_stream(fleet.pool), reports(budget_run_id(group), fleet.pool))
    assert stored is not None
    return decode_account(stored.data)


def counted(results: list[ForkResult]) -> dict[ForkStatus, int]:
    """How many ended how."""
    statuses = [result.status for result in results]
    return {status: statuses.count(status) for status in set(statuses)}


async def test_twenty_children_on_three_hosts_share_what_suffices_for_half(fleet: Fleet) -> None:
    """Some complete, the others end over budget, nobody hangs, and the bills are within to the last cent."""
    await short_answers(fleet)
    await fleet.daemons(3, slots=8)
    budget = Budget(usd=0.08)
    async with fleet.connect() as forks, asyncio.timeout(PATIENCE_S):
        params = await fleet.params("", group_budget=budget)
        directives = [says(f"Part {number}.", STEP, DONE) for number in range(20)]
        handles = await forks.fork_each(params, directives, group="half")
        results = [await handle.result() for handle in handles]

    ends = counted(results)
    assert set(ends) == {ForkStatus.COMPLETED, ForkStatus.OVER_BUDGET}
    assert 5 <= ends[ForkStatus.COMPLETED] <= 15
    assert 0.8 * 0.08 < billed_usd(fleet) <= 0.08
    account = await account_of(fleet, "half")
    assert (account.open, round(account.spent.usd, 9)) == ({}, round(billed_usd(fleet), 9))
    for result in results:
        if result.status is ForkStatus.OVER_BUDGET:
            assert result.budget is not None
            assert (result.budget["group"], result.budget["limit"]) == ("half", 0.08)
            assert "'half'" in (result.error or "")


async def test_a_cold_fan_out_stays_within_although_writes_cost_more(fleet: Fleet) -> None:
    """Whoever writes the prefix is quoted the write, whoever reads behind it is not, and both are covered."""
    fleet.captured = CacheSafeParams.from_parent_request(json.dumps(request(max_tokens=200, tokens=20_000)).encode())
    await fleet.daemons(3, slots=8)
    budget = Budget(usd=0.45)
    async with fleet.connect() as forks, asyncio.timeout(PATIENCE_S):
        params = await fleet.params("", group_budget=budget)
        directives = [says(f"Part {number}.", STEP, DONE) for number in range(20)]
        handles = await forks.fork_each(params, directives, group="cold")
        results = [await handle.result() for handle in handles]

    billed = sum(record.price_usd for record in fleet.sim.log)
    assert set(counted(results)) == {ForkStatus.COMPLETED, ForkStatus.OVER_BUDGET}
    assert 0.15 < billed <= 0.45
    assert round((await account_of(fleet, "cold")).spent.usd, 9) == round(billed, 9)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
async def test_a_daemon_that_ends_leaves_nothing_open(fleet: Fleet, end: signal.Signals) -> None:
    """Killed or told to stop: its calls count in full, and the others go on within the budget."""
    await short_answers(fleet)
    doomed = await fleet.daemon("doomed", slots=4)
    limit = 60_000
    async with fleet.connect() as forks, asyncio.timeout(PATIENCE_S):
        params = await fleet.params("", group_budget=Budget(tokens=limit), warm_up="all_at_once")
        held = says("Held.", {**STEP, "hold": "never"}, DONE)
        lost = await forks.fork_each(params, [held.replace("Held", f"Held {number}") for number in range(3)], group="g")
        await fleet.sim.received(4)
        await fleet.daemons(2, slots=4)
        rest = await forks.fork_each(params, [says(f"Part {number}.", DONE) for number in range(9)], group="g")
        doomed.signal(end)
        await doomed.gone()
        fleet.sim.release("never")
        results = [await handle.result() for handle in (*lost, *rest)]

    account = await account_of(fleet, "g")
    ends = counted(results)
    assert set(ends) == {ForkStatus.COMPLETED, ForkStatus.OVER_BUDGET}
    assert billed_tokens(fleet) <= account.spent.tokens <= limit
    assert account.open == {}


async def test_a_child_ends_before_the_call_that_would_pass_its_own_budget(fleet: Fleet) -> None:
    """Also after it was taken over: what earlier daemons spent, or may have, counts."""
    await short_answers(fleet)
    first = await fleet.daemon("first")
    async with fleet.connect() as forks, asyncio.timeout(PATIENCE_S):
        turns = [STEP, {**STEP, "hold": "never"}, *(6 * [STEP])]
        params = await fleet.params(says("many turns", *turns), budget=Budget(tokens=30_000))
        handle = await forks.fork(params)
        await fleet.sim.received(3)
        await first.kill()
        fleet.sim.release("never")
        await fleet.daemon("second")
        result = await handle.result()

    assert (result.status, result.attempts) == (ForkStatus.OVER_BUDGET, 2)
    assert result.final_text == "I look."
    assert result.budget is not None
    assert billed_tokens(fleet) <= result.budget["spent"] <= 30_000
    # One of the five calls it could pay for was the lost one.
    assert (result.turns, fleet.sim.request_count) == (4, 1 + 5)


async def test_a_child_that_was_refused_money_sent_nothing(fleet: Fleet) -> None:
    """The first call is held to the same rule."""
    await fleet.daemon()
    async with fleet.connect() as forks, asyncio.timeout(PATIENCE_S):
        result = await (await forks.fork(await fleet.params("Look.", budget=Budget(usd=0.001)))).result()

    assert (result.status, result.end, result.turns) == (ForkStatus.OVER_BUDGET, "over_budget", 0)
    assert (fleet.sim.request_count, result.cost_usd) == (1, 0)
    assert "$0.001" in (result.error or "")


async def test_an_aborted_wait_for_money_leaves_nothing_open(fleet: Fleet) -> None:
    """A child that waits for a sibling's money can be aborted, and timed out, like any other."""
    await short_answers(fleet)
    await fleet.daemon()
    async with fleet.connect() as forks, asyncio.timeout(PATIENCE_S):
        params = await fleet.params("", group_budget=Budget(tokens=8_000), warm_up="all_at_once")
        first = await forks.fork(params.with_directive(says("first", {**DONE, "hold": "go"})), group="g")
        await fleet.sim.received(2)
        waiting = await forks.fork(params.with_directive("second"), group="g")
        await fleet.until_logged(waiting.run_id, lambda report: isinstance(report, wire.Claimed))
        await waiting.abort("no longer wanted")
        aborted = await waiting.result()
        fleet.sim.release("go")
        done = await first.result()

    assert (aborted.status, done.ok, fleet.sim.request_count) == (ForkStatus.ABORTED, True, 2)
    assert (await account_of(fleet, "g")).open == {}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"budget": {"usd": -1}}, "greater than 0"),
        ({"budget": {"usd": 0}}, "greater than 0"),
        ({"budget": {"tokens": 1.5}}, "budget.tokens"),
        ({"budget": {"tokens": "many"}}, "budget.tokens"),
        ({"budget": 5}, "budget"),
        ({"budget": {}}, "limits nothing"),
        ({"group_budget": {"usd": 1}}, "no group"),
        ({"group": "g", "group_budget": {"tokens": -7}}, "greater than 0"),
    ],
)
async def test_a_request_with_a_budget_that_is_none_is_refused(
    fleet: Fleet, fields: dict[str, Any], words: str
) -> None:
    """A plain client is told what is wrong; nothing is sent, and the daemon goes on."""
    await fleet.daemon()
    body = '{"model":"claude-opus-4-8","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}'
    plain = wire.Requested(snapshot=wire.Payload(text=body), directive="Look.").model_dump(mode="json") | fields
    async with fleet.connect() as forks, asyncio.timeout(PATIENCE_S):
        await store(fleet.bus, events("poor", fleet.pool), wire._dumps(plain))
        result = await (await forks.attach("poor")).result()

    assert (result.status, fleet.sim.request_count) == (ForkStatus.REFUSED, 0)
    assert words in (result.error or "")


async def test_the_parent_refuses_before_anything_is_published(fleet: Fleet) -> None:
    """A group's budget without a group, and a run id that belongs to a budget."""
    async with fleet.connect() as forks:
        params = await fleet.params("Look.", group_budget=Budget(usd=1))
        with pytest.raises(ForkRefused, match="no group"):
            await forks.fork(params)
        with pytest.raises(ForkRefused, match="no group"):
            await forks.fork_each(params, ["a", "b"])
        with pytest.raises(BadMessage, match="budgets are kept"):
            await forks.fork(await fleet.params("Look."), run_id="budget-1")


async def test_a_request_in_the_place_of_a_budget_is_not_run(fleet: Fleet) -> None:
    """It would write where the account is; the daemon drops it and goes on."""
    fleet.forged = True
    await fleet.daemon()
    name = budget_run_id("g")
    body = '{"model":"claude-opus-4-8","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}'
    request = wire.Requested(snapshot=wire.Payload(text=body), directive="Look.")
    await store(fleet.bus, events(name, fleet.pool), wire.encode(request))
    async with fleet.connect() as forks, asyncio.timeout(PATIENCE_S):
        result = await (await forks.fork(await fleet.params("Look.", group_budget=Budget(usd=1)), group="g")).result()

    assert (result.ok, fleet.sim.request_count) == (True, 2)
