"""What a daemon's key can do to the bills, budgets and forks of others: real keys of one tenant on a real server."""

from __future__ import annotations

import asyncio
import io
import json
import time
import uuid
from contextlib import asynccontextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

import pytest

from nexofork.auth.folder import add_user
from nexofork.bus.group_budget import GroupBudgets
from nexofork.bus.jetstream import call as call_api
from nexofork.bus.jetstream import store
from nexofork.bus.ledger import append_calls, check_ledger, read_bookings
from nexofork.bus.run_log import RunLog
from nexofork.cli import run_command
from nexofork.client.runs import claimants, find_runs, list_runs
from nexofork.core.usage import Usage
from nexofork.errors import OverBudget
from nexofork.wire.budget import Account, budget_run_id
from nexofork.wire.ledger import BookedCall, encode_calls
from nexofork.wire.messages import Amount, BudgetLimit, CallStarted, Claimed, Daemon, Payload, Requested, Turn, encode
from nexofork.wire.subjects import ledger, reports
from tests.support.nats import a_final, connected, run_accounts_server
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from nexofork.bus.connection import Bus
    from nexofork.bus.ledger import CheckedLedger
    from tests.support.nats import AccountsServer

MODEL = "claude-sonnet-4-5"
BILL = (10, 2_000, 0, 0, 50)
MUCH = (900_000, 0, 0, 0, 90_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccountsServer]:
    """A server whose tenant has two daemons with keys of their own: `default`, and `rogue`."""
    with run_with_rogue(tmp_path_factory.mktemp("rogue")) as started:
        yield started


def run_with_rogue(folder: Path) -> AbstractContextManager[AccountsServer]:
    """Such a server for as long as the block."""

    def added(_: str) -> str:
        add_user(folder / "auth", "daemon", "rogue")
        return (folder / "auth" / "nats-server.conf").read_text()

    return run_accounts_server(folder, change=added)


def rogue_seed(server: AccountsServer) -> Path:
    """The seed of the daemon that lies."""
    return server.seeds["daemon"].with_name(server.seeds["daemon"].name.replace("default", "rogue"))


class Roles:
    """Connections of a parent, an honest daemon and a rogue one."""

    def __init__(self, parent: Bus, honest: Bus, rogue: Bus) -> None:
        self.parent, self.honest, self.rogue = parent, honest, rogue

    async def claimed_run(self, *, group: str | None = None, by: Bus | None = None, tokens: int | None = None) -> str:
        """Return the id of a run that a parent asked for and a daemon claimed, the honest one unless said."""
        run_id, bus = uuid.uuid4().hex, by or self.honest
        limit = None if tokens is None else BudgetLimit(tokens=tokens)
        seq = await RunLog(self.parent, run_id).request(a_grouped_request(group, group_budget=limit))
        claim = Claimed(epoch=1, at=1.7e9, daemon=who(bus), request=seq)
        await RunLog(bus, run_id).append(claim, after=seq)
        return run_id

    async def report(self, run_id: str, *messages: Any, by: Bus | None = None) -> None:
        """Append to a run's log without asking whether the run is ours."""
        for message in messages:
            await store(by or self.honest, reports(run_id), encode(message))

    async def checked(self, *run_ids: str) -> CheckedLedger:
        """The ledger of these runs as a parent reads it."""
        bookings = [one for one in await read_bookings(self.parent) if one.call.run_id in run_ids]
        return await check_ledger(self.parent, bookings, pool="fork")


@pytest.fixture
async def roles(server: AccountsServer) -> AsyncIterator[Roles]:
    """Everybody connected."""
    async with opened(server) as found:
        yield found


@asynccontextmanager
async def opened(server: AccountsServer) -> AsyncIterator[Roles]:
    """Connections for as long as the block."""
    async with (
        connected(server.url, seed=server.seeds["parent"]) as parent,
        connected(server.url, seed=server.seeds["daemon"]) as honest,
        connected(server.url, seed=rogue_seed(server)) as rogue,
    ):
        yield Roles(parent, honest, rogue)


def who(bus: Bus, instance: str = "d1") -> Daemon:
    """The daemon of a connection."""
    return Daemon(nkey=bus.identity, instance=instance, name=f"host-{bus.identity[:6]}")


def a_grouped_request(group: str | None = None, **more: Any) -> Requested:
    """The smallest request of a group."""
    return Requested(snapshot=Payload(text="{}"), directive="look around", group=group, **more)


def a_call(run_id: str, billed: tuple[int, int, int, int, int] | None = BILL, **more: Any) -> BookedCall:
    """A call of a run."""
    return BookedCall(**{"at": time.time(), "run_id": run_id, "model": MODEL, "billed": billed, **more})


def bills(checked: CheckedLedger) -> list[tuple[int, ...] | None]:
    """What counts."""
    return [call.billed for call in checked.counted]


def cost(server: AccountsServer, *arguments: str) -> tuple[str, str]:
    """What `nexofork cost` prints for a parent."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    words = ["cost", *arguments, "--nats", server.url, "--nkey", str(server.seeds["parent"])]
    with redirect_stdout(out), redirect_stderr(err):
        code = run_command(arguments=words)
    said, problem = (stream.buffer.getvalue().decode() for stream in (out, err))
    assert code == 0, problem
    return said, problem


async def test_a_bill_for_a_run_that_no_parent_asked_for_is_unverified(roles: Roles) -> None:
    """Not with a claim of the rogue's own on the log either; nor under a name that is no run id."""
    claimed, bare = uuid.uuid4().hex, uuid.uuid4().hex
    await roles.report(claimed, Claimed(epoch=1, daemon=who(roles.rogue)), by=roles.rogue)
    invented = [claimed, bare, "*", ">", "a.b", "budget-x", ""]
    await append_calls(roles.rogue, who(roles.rogue), [a_call(run_id, MUCH) for run_id in invented])

    checked = await roles.checked(*invented)

    assert bills(checked) == []
    assert {one.call.run_id for one in checked.unverified} == set(invented)
    assert {one.nkey for one in checked.unverified} == {roles.rogue.identity}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("forged", [MUCH, (0, 0, 0, 0, 0)])
async def test_the_key_of_the_claim_decides_between_two_entries(
    roles: Roles, forged: tuple[int, int, int, int, int], first: bool
) -> None:
    """Whether the other one comes first or last, invents a bill or takes one away."""
    run_id = await roles.claimed_run()
    booking = [(roles.honest, a_call(run_id)), (roles.rogue, a_call(run_id, forged))]
    for bus, call in reversed(booking) if first else booking:
        await append_calls(bus, who(bus), [call])

    checked = await roles.checked(run_id)

    assert bills(checked) == [BILL]
    assert [(one.nkey, one.call.billed) for one in checked.disputed] == [(roles.rogue.identity, forged)]


async def test_a_bill_on_a_run_of_another_daemon_is_unverified(roles: Roles) -> None:
    """A call that the run's daemon never made; a later claim that breaks the log's rules does not help."""
    run_id, ended = await roles.claimed_run(), await roles.claimed_run()
    mine = who(roles.rogue)
    await roles.report(run_id, Claimed(epoch=1, daemon=mine), by=roles.rogue)
    await roles.report(ended, a_final())
    await roles.report(ended, Claimed(epoch=2, daemon=mine), by=roles.rogue)
    forged = [a_call(run_id, MUCH, turn=9), a_call(run_id, MUCH, epoch=2), a_call(ended, MUCH, epoch=2)]
    await append_calls(roles.rogue, mine, forged)

    checked = await roles.checked(run_id, ended)

    assert bills(checked) == []
    assert len(checked.unverified) == 3


async def test_a_successor_books_what_the_log_says_and_nothing_else(roles: Roles) -> None:
    """The calls of a lost daemon count once, at the bill on the log; more than that does not."""
    run_id = await roles.claimed_run()
    usage = Usage(input_tokens=BILL[0], cache_read_tokens=BILL[1], output_tokens=BILL[4])
    answered = CallStarted(epoch=1, at=2e9, turn=1, model=MODEL)
    reply = Turn(epoch=1, turn=1, content=Payload(text="[]"), usage=usage.to_wire())
    unanswered = CallStarted(epoch=1, at=2.1e9, turn=2, model=MODEL)
    await roles.report(run_id, answered, reply, unanswered)
    await roles.report(run_id, Claimed(epoch=2, daemon=who(roles.rogue)), by=roles.rogue)
    # Written after the takeover, so it is not of the first daemon.
    await roles.report(run_id, CallStarted(epoch=1, at=2.2e9, turn=3, model=MODEL), by=roles.rogue)
    left = [a_call(run_id, at=2e9), a_call(run_id, None, at=2.1e9, turn=2, outcome="unconfirmed")]
    forged = [
        a_call(run_id, MUCH, at=2e9),
        a_call(run_id, at=2e9, model="claude-opus-4-1"),
        a_call(run_id, MUCH, at=2.1e9, turn=2),
        a_call(run_id, None, at=2.2e9, turn=3, outcome="unconfirmed"),
    ]
    await append_calls(roles.rogue, who(roles.rogue), [*left, *forged])

    checked = await roles.checked(run_id)

    assert [(call.turn, call.billed) for call in checked.counted] == [(1, BILL), (2, None)]
    assert [one.call for one in checked.unverified] == forged


async def test_a_bill_is_named_by_the_log(roles: Roles) -> None:
    """A daemon cannot charge its own run to another group, parent or host."""
    run_id = await roles.claimed_run(group="mine", by=roles.rogue)
    shifted = a_call(run_id, group="theirs", parent="victim", host="host-victim")
    await append_calls(roles.rogue, who(roles.rogue), [shifted])

    (call,) = (await roles.checked(run_id)).counted

    assert (call.group, call.parent, call.host) == ("mine", "", who(roles.rogue).name)


async def test_a_restarted_daemon_and_one_without_a_key_are_known(roles: Roles) -> None:
    """The key is what counts, whichever start booked; a claim that names no key goes by its instance."""
    run_id, keyless = await roles.claimed_run(), uuid.uuid4().hex
    seq = await RunLog(roles.parent, keyless).request(a_grouped_request())
    await RunLog(roles.honest, keyless).append(Claimed(epoch=1, daemon=Daemon(instance="d1")), after=seq)
    await append_calls(roles.honest, who(roles.honest, "d2"), [a_call(run_id)])
    await append_calls(roles.honest, who(roles.honest), [a_call(keyless)])
    await append_calls(roles.rogue, who(roles.rogue, "x"), [a_call(keyless, MUCH)])

    checked = await roles.checked(run_id, keyless)

    assert bills(checked) == [BILL, BILL]
    assert [one.call.billed for one in checked.disputed] == [MUCH]


async def test_the_time_of_an_entry_is_the_servers(roles: Roles) -> None:
    """A forged time, in the message or in its headers, does not make an invented call too old to check."""
    run_id, mine = uuid.uuid4().hex, who(roles.rogue)
    data = encode_calls(mine, [a_call(run_id, MUCH, at=1.6e9)], at=1.6e9)
    headers = {"Nats-Time-Stamp": "2020-01-01T00:00:00.000000000Z"}
    await store(roles.rogue, ledger(mine.nkey, mine.instance), data, headers=headers)

    checked = await roles.checked(run_id)

    assert (bills(checked), len(checked.unverified)) == ([], 1)


def test_cost_shows_doubtful_calls_apart(server: AccountsServer) -> None:
    """Below the total for people, under names of their own for programs; the total has neither."""
    group = uuid.uuid4().hex

    async def book() -> str:
        async with opened(server) as roles:
            run_id = await roles.claimed_run(group=group)
            await append_calls(roles.honest, who(roles.honest), [a_call(run_id)])
            forged = [a_call(run_id, MUCH, group=group), a_call(uuid.uuid4().hex, MUCH, group=group)]
            await append_calls(roles.rogue, who(roles.rogue), forged)
            return roles.rogue.identity

    rogue = asyncio.run(book())
    said = json.loads(cost(server, "--group", group, "--json")[0])
    table, notes = cost(server, "--group", group)
    rows, warned = cost(server, "--group", group, "--csv")

    assert (said["total"]["calls"], said["total"]["fresh"], said["total"]["output"]) == (1, BILL[0], BILL[4])
    assert sum(row["calls"] for row in said["rows"]) == 1
    for kind in ("disputed", "unverified"):
        assert (said[kind]["calls"], said[kind]["fresh"], said[kind]["booked_by"]) == (1, MUCH[0], [rogue])
        assert any(f"1 {kind} call not added up" in note and rogue in note for note in said["notes"])
        assert f"1 {kind} call not added up" in notes
        assert f"1 {kind} call not added up" in warned
    assert [line.split()[0] for line in table.splitlines()][-3:] == ["total", "disputed", "unverified"]
    assert rows.count("\n") == 2


async def test_calls_outlive_the_log_and_say_so(tmp_path: Path) -> None:
    """After the log has expired a call counts as booked; of two keys' the higher bill, so that no cost is hidden."""
    with run_with_rogue(tmp_path) as server:
        async with opened(server) as roles, connected(server.url, seed=server.seeds["admin"]) as admin:
            info = await call_api(admin, "STREAM.INFO.FORK")
            run_id = await roles.claimed_run()
            await append_calls(roles.rogue, who(roles.rogue), [a_call(run_id, (0, 0, 0, 0, 0))])
            await append_calls(roles.honest, who(roles.honest), [a_call(run_id)])
            assert not (await roles.checked(run_id)).unchecked
            await call_api(admin, "STREAM.UPDATE.FORK", {**info["config"], "max_age": 10**9})
            while (await call_api(admin, "STREAM.INFO.FORK"))["state"]["messages"]:
                pass  # the test's own limit ends this
            await call_api(admin, "STREAM.UPDATE.FORK", info["config"])
            checked = await roles.checked(run_id)

    assert bills(checked) == [BILL]
    assert [one.call.billed for one in checked.disputed] == [(0, 0, 0, 0, 0)]
    assert checked.unchecked == {a_call(run_id).call_id}


LIMIT = BudgetLimit(tokens=100)


class Group:
    """A group with a budget of 100 tokens, and an honest daemon that keeps its account."""

    def __init__(self, roles: Roles, name: str, runs: tuple[str, str, str]) -> None:
        self.roles, self.name = roles, name
        self.run, self.other, self.ended = runs

    @asynccontextmanager
    async def budgets(self) -> AsyncIterator[GroupBudgets]:
        """The accounts of one honest process."""
        budgets = GroupBudgets(self.roles.honest, wait_s=8.0)
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(budgets.run())
            try:
                yield budgets
            finally:
                writing.cancel()

    async def spend(self, budgets: GroupBudgets, key: str, tokens: int) -> None:
        """Make a call that costs so much."""
        budget = budgets.of_group(self.name, LIMIT)
        await budget.reserve(key, lambda: Amount(tokens=tokens))
        budget.settle(key, Amount(tokens=tokens))
        await budget.flushed()

    async def attack(self, *entries: dict[str, Any]) -> None:
        """Write to the account with the rogue's key."""
        for entry in entries:
            plain = {**json.loads(encode(Account(name=self.name, limit=LIMIT))), **entry}
            await store(self.roles.rogue, reports(budget_run_id(self.name)), json.dumps(plain).encode())


@pytest.fixture
async def group(roles: Roles) -> Group:
    """A group whose runs are claimed by the honest daemon; one of them has ended."""
    name = uuid.uuid4().hex
    runs = [await roles.claimed_run(group=name, tokens=100) for _ in range(3)]
    await roles.report(runs[2], a_final())
    return Group(roles, name, (runs[0], runs[1], runs[2]))


RESETS: dict[str, list[dict[str, Any]]] = {
    "nothing spent": [{}],
    "less spent": [{"spent": {"tokens": 10}}],
    "a negative amount": [{"spent": {"tokens": -1_000}}],
    "a larger limit": [{"spent": {"tokens": 60}, "limit": {"tokens": 10**9}}],
    "no limit": [{"spent": {"tokens": 60}, "limit": {}}],
    "a negative reservation": [{"spent": {"tokens": 60}, "open": {"r.1.1": {"tokens": -(10**6)}}}],
    "no account": [{"kind": "nothing"}],
    "twice": [{"open": {"r.1.1": {"tokens": 1}}}, {"spent": {"tokens": 1}}],
}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("attack", RESETS)
async def test_what_a_group_spent_never_falls(group: Group, attack: str, restarted: bool) -> None:
    """After 60 of 100 there is no room for 50, whatever was written, and in whichever order it is read."""
    async with asyncio.timeout(PATIENCE_S), group.budgets() as budgets:
        await group.spend(budgets, f"{group.run}.1.1", 60)
        await group.attack(*RESETS[attack])
        if restarted:
            async with group.budgets() as later:
                with pytest.raises(OverBudget):
                    await group.spend(later, f"{group.other}.1.1", 50)
        with pytest.raises(OverBudget) as refused:
            await group.spend(budgets, f"{group.run}.1.2", 50)
        await group.spend(budgets, f"{group.run}.1.3", 40)

        account = await budgets.of_group(group.name, LIMIT).account()

    assert (refused.value.limit, refused.value.spent) == (100, 60)
    assert account.spent.tokens == 100


EXHAUSTING: dict[str, list[dict[str, Any]]] = {
    "much spent": [{"spent": {"tokens": 10**6}}],
    "absurdly much": [{"spent": {"tokens": 10**400, "usd": 1e308}}],
    "a smaller limit": [{"limit": {"tokens": 1}}],
    "set aside for no run": [{"open": {"invented.1.1": {"tokens": 90}}}],
    "set aside under no name": [{"open": {"x": {"tokens": 90}, "*.1.1": {"tokens": 90}}}],
    "set aside and spent for no run": [{"open": {"invented.1.1": {"tokens": 90}}}, {"spent": {"tokens": 90}}],
    "no account": [{"kind": "nothing"}],
}


FOUNDING = ("a smaller limit", "set aside for no run", "set aside under no name", "set aside and spent for no run")
"""What is seen through even in the first entry of an account."""


@pytest.mark.parametrize(
    ("attack", "when"),
    [
        *((attack, when) for attack in EXHAUSTING for when in ("after", "restart")),
        *((one, "before") for one in FOUNDING),
    ],
)
async def test_an_invented_amount_leaves_the_budget_to_the_group(group: Group, attack: str, when: str) -> None:
    """A call that fits is made, before any other entry or after one."""
    async with asyncio.timeout(PATIENCE_S), group.budgets() as budgets, group.budgets() as later:
        if when != "before":
            await group.spend(budgets, f"{group.run}.1.1", 0)
        await group.attack(*EXHAUSTING[attack])

        await group.spend(later if when == "restart" else budgets, f"{group.other}.1.1", 50)


async def test_a_reservation_for_a_run_that_is_over_holds_nothing(group: Group) -> None:
    """Nor one for a run of another group."""
    other = await group.roles.claimed_run(group="another", tokens=100)
    async with asyncio.timeout(PATIENCE_S), group.budgets() as budgets:
        await group.spend(budgets, f"{group.run}.1.1", 10)
        held = {f"{group.ended}.1.9": {"tokens": 80}, f"{other}.1.9": {"tokens": 80}}
        await group.attack({"spent": {"tokens": 10}, "open": held})

        await group.spend(budgets, f"{group.other}.1.1", 50)


async def test_a_call_that_another_key_settles_is_booked_at_its_cost(group: Group) -> None:
    """A rogue closes the reservation at nothing; what the call cost is in the account all the same, once."""
    async with asyncio.timeout(PATIENCE_S), group.budgets() as budgets:
        budget = budgets.of_group(group.name, LIMIT)
        await budget.reserve(f"{group.run}.1.1", lambda: Amount(tokens=70))
        await group.attack({})
        budget.settle(f"{group.run}.1.1", Amount(tokens=65))
        await budget.flushed()
        with pytest.raises(OverBudget):
            await group.spend(budgets, f"{group.other}.1.1", 50)

        assert (await budget.account()).spent.tokens == 65


async def test_logs_that_no_parent_began_are_not_listed(roles: Roles) -> None:
    """A daemon's key can write on any number of them; `ps` neither shows nor reads them."""
    run_id = await roles.claimed_run(by=roles.rogue)
    invented = [f"{run_id}-{number}" for number in range(50)]
    for one in invented:
        await roles.report(one, Claimed(epoch=1, daemon=who(roles.rogue, "liar")), by=roles.rogue)

    listed = {row.run_id for row in await list_runs(roles.parent, "fork")}

    assert run_id in listed
    assert listed.isdisjoint(invented)
    assert await find_runs(roles.parent, run_id[:-1], pool="fork") == [run_id]
    assert "liar" not in {one.instance async for one in claimants(roles.parent, "fork")}


async def test_bills_for_invented_runs_take_no_look_at_each(roles: Roles) -> None:
    """Ten times as many of them are checked in less time than those of real runs."""
    real = [await roles.claimed_run() for _ in range(200)]
    invented = [uuid.uuid4().hex for _ in range(2_000)]
    for bus, ids in ((roles.honest, real), (roles.rogue, invented)):
        for start in range(0, len(ids), 500):
            await append_calls(bus, who(bus), [a_call(run_id) for run_id in ids[start : start + 500]])
    bookings = await read_bookings(roles.parent)
    took = []
    for names, counts in ((real, (200, 0)), (invented, (0, 2_000))):
        named = [one for one in bookings if one.call.run_id in set(names)]
        began = time.monotonic()
        checked = await check_ledger(roles.parent, named, pool="fork")
        took.append(time.monotonic() - began)
        assert (len(checked.counted), len(checked.unverified)) == counts

    assert took[1] < took[0]
