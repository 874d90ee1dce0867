from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from nexofork.bus.failures import NotPermitted
from nexofork.bus.group_budget import GroupBudgets, LeftBehind
from nexofork.bus.jetstream import call as call_api
from nexofork.bus.jetstream import store
from nexofork.bus.provisioning import provision
from nexofork.bus.reading import read_subject
from nexofork.bus.run_log import RunLog
from nexofork.errors import BusError, OverBudget
from nexofork.wire.budget import Account, budget_run_id, decode_account
from nexofork.wire.messages import Amount, BudgetLimit, encode
from nexofork.wire.streams import log_stream
from nexofork.wire.subjects import DEFAULT_POOL, reports
from tests.support.nats import SMALL, Proxy, a_claim, a_request, connected
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from nexofork.bus.connection import Bus
    from nexofork.bus.embedded import EmbeddedServer
    from nexofork.bus.group_budget import GroupBudget
    from tests.support.nats import AccountsServer, Cluster


@asynccontextmanager
async def holders(
    url: str, count: int, *, pool: str = DEFAULT_POOL, wait_s: float = 20.0
) -> AsyncIterator[list[GroupBudgets]]:
    """So many processes, as far as NATS can tell, with their writers at work; they take turns at the URLs."""
    urls = url.split(",")
    async with AsyncExitStack() as stack:
        buses = [await stack.enter_async_context(connected(urls[number % len(urls)])) for number in range(count)]
        found = [GroupBudgets(bus, pool=pool, wait_s=wait_s) for bus in buses]
        async with asyncio.TaskGroup() as tasks:
            writers = [tasks.create_task(one.run()) for one in found]
            try:
                yield found
            finally:
                for writer in writers:
                    writer.cancel()


def of(tokens: int) -> Callable[[], Amount]:
    """A quote."""
    return lambda: Amount(tokens=tokens)


async def claimed_runs(bus: Bus, group: str, limit: BudgetLimit, *names: str, pool: str = DEFAULT_POOL) -> None:
    """Put runs on the log that a parent asked for in the group, and that a daemon has."""
    for name in names:
        request = a_request().model_copy(update={"group": group, "group_budget": limit})
        seq = await RunLog(bus, name, pool=pool).request(request)
        await RunLog(bus, name, pool=pool).append(a_claim(), after=seq)


async def changes(bus: Bus, pool: str, group: str) -> list[Account]:
    """Every state the account was in."""
    stored = await read_subject(bus, log_stream(pool), reports(budget_run_id(group), pool))
    return [decode_account(one.data) for one in stored]


def within(accounts: Sequence[Account], limit: int) -> bool:
    """Whether spent and set aside never passed the limit."""
    return all((one.spent + one.held).tokens <= limit for one in accounts)


async def test_a_hundred_calls_from_five_hosts_lose_nothing(
    nats_server: EmbeddedServer, pool_bus: Bus, pool: str
) -> None:
    """What all of them cost is in the account, to the token; nothing is open, and the limit was never passed."""
    costs = {f"r{number}.1.1": random.Random(number).randint(1, 60) for number in range(100)}
    limit = BudgetLimit(tokens=10_000)

    async def call(budget: GroupBudget, key: str) -> None:
        await budget.reserve(key, of(60))
        await asyncio.sleep(0.001)
        budget.settle(key, Amount(tokens=costs[key]))
        await budget.flushed()

    async with holders(nats_server.url, 5, pool=pool) as hosts, asyncio.timeout(PATIENCE_S):
        async with asyncio.TaskGroup() as tasks:
            for number, key in enumerate(costs):
                tasks.create_task(call(hosts[number % 5].of_group("g", limit), key))
        account = await hosts[0].of_group("g", limit).account()

    states = await changes(pool_bus, pool, "g")
    assert (account.spent.tokens, account.open) == (sum(costs.values()), {})
    assert within(states, 10_000)
    assert len(states) < 200


async def test_a_crowd_with_money_for_half_stays_within_and_ends(
    nats_server: EmbeddedServer, pool_bus: Bus, pool: str
) -> None:
    """Sixty calls of 50 where 1,000 are there: as many as fit are made, the others are told, nobody hangs."""
    limit = BudgetLimit(tokens=1_000)
    outcomes: list[str] = []
    await claimed_runs(pool_bus, "g", limit, *(f"r{number}" for number in range(60)), pool=pool)

    async def call(budget: GroupBudget, key: str) -> None:
        try:
            await budget.reserve(key, of(80))
        except OverBudget:
            outcomes.append("over")
            return
        await asyncio.sleep(0.002)
        budget.settle(key, Amount(tokens=50))
        outcomes.append("made")

    async with holders(nats_server.url, 3, pool=pool) as hosts, asyncio.timeout(PATIENCE_S):
        async with asyncio.TaskGroup() as tasks:
            for number in range(60):
                tasks.create_task(call(hosts[number % 3].of_group("g", limit), f"r{number}.1.1"))
        for host in hosts:
            await host.of_group("g", limit).flushed()

    states = await changes(pool_bus, pool, "g")
    assert (outcomes.count("made"), outcomes.count("over")) == (19, 41)
    assert within(states, 1_000)
    assert (states[-1].spent.tokens, states[-1].open) == (950, {})


async def test_three_servers_keep_one_account(cluster: Cluster) -> None:
    """Replicated, with writers at all three: nothing is lost and nothing passes the limit."""
    limit = BudgetLimit(tokens=100)

    async def call(budget: GroupBudget, key: str) -> bool:
        try:
            await budget.reserve(key, of(20))
        except OverBudget:
            return False
        budget.settle(key, Amount(tokens=3))
        return True

    async with connected(cluster.urls[0]) as bus:
        await provision(bus, max_bytes=SMALL)
        await claimed_runs(bus, "replicated", limit, *(f"r{number}" for number in range(45)))
        async with holders(",".join(cluster.urls), 3) as hosts, asyncio.timeout(PATIENCE_S):
            async with asyncio.TaskGroup() as tasks:
                budgets = [host.of_group("replicated", limit) for host in hosts]
                calls = [tasks.create_task(call(budgets[number % 3], f"r{number}.1.1")) for number in range(45)]
            for budget in budgets:
                await budget.flushed()
        states = await changes(bus, DEFAULT_POOL, "replicated")

    made = sum(task.result() for task in calls)
    assert made == 27
    assert within(states, 100)
    assert (states[-1].spent.tokens, states[-1].open) == (3 * made, {})


async def test_a_call_waits_for_one_on_another_host(nats_server: EmbeddedServer, pool_bus: Bus, pool: str) -> None:
    """It goes when that has cost less than was set aside."""
    limit = BudgetLimit(tokens=100)
    async with holders(nats_server.url, 2, pool=pool) as (here, there), asyncio.timeout(PATIENCE_S):
        mine, theirs = here.of_group("g", limit), there.of_group("g", limit)
        await theirs.reserve("r1.1.1", of(80))
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(mine.reserve("r2.1.1", of(60)))
            await mine.account()
            assert not waiting.done()
            theirs.settle("r1.1.1", Amount(tokens=40))

    assert waiting.result().tokens == 60


async def test_a_wait_for_calls_that_never_end_has_an_end(
    nats_server: EmbeddedServer, pool_bus: Bus, pool: str
) -> None:
    """The error says that the rest is set aside, not spent."""
    limit = BudgetLimit(tokens=100)
    async with holders(nats_server.url, 2, pool=pool, wait_s=0.5) as (here, there), asyncio.timeout(PATIENCE_S):
        await there.of_group("g", limit).reserve("r1.1.1", of(80))
        with pytest.raises(OverBudget, match="80 tokens set aside for calls that did not end"):
            await here.of_group("g", limit).reserve("r2.1.1", of(60))


async def test_the_first_limit_stands(nats_server: EmbeddedServer, pool_bus: Bus, pool: str) -> None:
    """Who comes later with another one does not change it."""
    await claimed_runs(pool_bus, "g", BudgetLimit(tokens=100), "r1", pool=pool)
    async with holders(nats_server.url, 2, pool=pool) as (here, there), asyncio.timeout(PATIENCE_S):
        await here.of_group("g", BudgetLimit(tokens=100)).reserve("r1.1.1", of(50))

        with pytest.raises(OverBudget) as caught:
            await there.of_group("g", BudgetLimit(tokens=10**9)).reserve("r2.1.1", of(500))

    assert caught.value.limit == 100


async def test_a_limit_that_nothing_fits_stands_too(nats_server: EmbeddedServer, pool_bus: Bus, pool: str) -> None:
    """Who comes next with more money finds the first one's limit, although nothing was ever set aside."""
    await claimed_runs(pool_bus, "g", BudgetLimit(tokens=10), "r1", pool=pool)
    async with holders(nats_server.url, 2, pool=pool) as (one, other):
        with pytest.raises(OverBudget):
            await one.of_group("g", BudgetLimit(tokens=10)).reserve("r1.1.1", of(50))
        with pytest.raises(OverBudget):
            await other.of_group("g", BudgetLimit(tokens=1_000)).reserve("r2.1.1", of(50))

    (account,) = await changes(pool_bus, pool, "g")
    assert account.limit.tokens == 10


async def test_a_cancelled_wait_leaves_nothing_behind(nats_server: EmbeddedServer, pool_bus: Bus, pool: str) -> None:
    """Whether it was waiting, on its way or just granted."""
    limit = BudgetLimit(tokens=100_000)
    async with holders(nats_server.url, 2, pool=pool) as hosts, asyncio.timeout(PATIENCE_S):
        budgets = [host.of_group("g", limit) for host in hosts]
        async with asyncio.TaskGroup() as tasks:
            for number in range(40):
                wish = tasks.create_task(budgets[number % 2].reserve(f"r{number}.1.1", of(10)))
                asyncio.get_running_loop().call_later(random.uniform(0, 0.01), wish.cancel)
        for number in range(40):
            budgets[number % 2].settle(f"r{number}.1.1", Amount())  # those that were quicker
        for budget in budgets:
            await budget.flushed()
        account = await budgets[0].account()

    assert (account.open, account.spent.tokens) == ({}, 0)


async def test_what_a_lost_daemon_left_open_is_booked(nats_server: EmbeddedServer, pool_bus: Bus, pool: str) -> None:
    """At what is known of it: the bill, all that was set aside, or nothing where the call was never sent."""
    limit = BudgetLimit(tokens=1_000)
    async with holders(nats_server.url, 2, pool=pool) as (lost, next_), asyncio.timeout(PATIENCE_S):
        theirs, ours = lost.of_group("g", limit), next_.of_group("g", limit)
        for key in ("r1.1.1", "r1.2.1", "r1.2.2", "r1.3.1", "r10.1.1"):
            await theirs.reserve(key, of(100))

        sent = {"r1.1.1": Amount(tokens=7), "r1.2.1": None}
        ours.book(LeftBehind(run_id="r1", epoch=3, sent=sent))
        await ours.flushed()
        theirs.settle("r1.1.1", Amount(tokens=7))  # it was only slow
        await theirs.flushed()
        account = await ours.account()

    assert account.spent.tokens == 7 + 100
    assert set(account.open) == {"r1.3.1", "r10.1.1"}


async def test_a_write_whose_answer_is_lost_counts_once(nats_server: EmbeddedServer, pool_bus: Bus, pool: str) -> None:
    """No call goes before its amount is confirmed; after the outage everything is booked, and booked once."""
    limit = BudgetLimit(tokens=1_000)
    async with Proxy(nats_server.url) as wire, holders(wire.url, 1, pool=pool) as (host,), asyncio.timeout(PATIENCE_S):
        budget = host.of_group("g", limit)
        await budget.reserve("r1.1.1", of(100))
        wire.hold_answers()
        budget.settle("r1.1.1", Amount(tokens=30))
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(budget.reserve("r2.1.1", of(100)))
            await wire.withheld.wait()
            assert not waiting.done()
            wire.cut()
        account = await budget.account()

    assert (account.spent.tokens, set(account.open)) == (30, {"r2.1.1"})


async def test_an_account_that_takes_no_more_changes_fails_the_call(
    nats_server: EmbeddedServer, pool_bus: Bus, pool: str
) -> None:
    """A subject of the log has room for so many messages; nobody hangs, and no call goes that is not booked."""
    info = await call_api(pool_bus, f"STREAM.INFO.{log_stream(pool)}")
    await call_api(pool_bus, f"STREAM.UPDATE.{log_stream(pool)}", {**info["config"], "max_msgs_per_subject": 2})
    async with holders(nats_server.url, 1, pool=pool) as (host,), asyncio.timeout(PATIENCE_S):
        budget = host.of_group("g", BudgetLimit(tokens=1_000))
        for number in (1, 2):
            await budget.reserve(f"r{number}.1.1", of(1))
        with pytest.raises(BusError, match="takes no more changes"):
            await budget.reserve("r3.1.1", of(1))
        budget.settle("r1.1.1", None)
        await budget.flushed()


async def test_daemons_may_keep_accounts_and_parents_may_not(accounts_server: AccountsServer) -> None:
    """The permissions that daemons have for reports are all it takes; a parent cannot give itself money."""
    async with connected(accounts_server.url, seed=accounts_server.seeds["daemon"]) as daemon:
        budgets = GroupBudgets(daemon)
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(PATIENCE_S):
            writer = tasks.create_task(budgets.run())
            budget = budgets.of_group("allowed", BudgetLimit(tokens=100))
            await budget.reserve("r1.1.1", of(60))
            budget.settle("r1.1.1", None)
            await budget.flushed()
            assert (await budget.account()).spent.tokens == 60
            writer.cancel()
    async with connected(accounts_server.url, seed=accounts_server.seeds["parent"]) as parent:
        with pytest.raises(NotPermitted):
            await store(parent, reports(budget_run_id("allowed")), encode(Account(name="allowed")))


async def test_an_account_that_cannot_be_read_fails_the_call(
    nats_server: EmbeddedServer, pool_bus: Bus, pool: str
) -> None:
    """With a clear error, at once, and other groups go on."""
    await store(pool_bus, reports(budget_run_id("bad"), pool), b"garbage")
    limit = BudgetLimit(tokens=1_000)
    async with holders(nats_server.url, 1, pool=pool) as (host,), asyncio.timeout(PATIENCE_S):
        with pytest.raises(BusError, match="budget of group 'bad' cannot be used: it cannot be read"):
            await host.of_group("bad", limit).reserve("r1.1.1", of(1))
        assert await host.of_group("good", limit).reserve("r1.1.1", of(1)) == Amount(tokens=1)
