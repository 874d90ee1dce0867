from __future__ import annotations

import asyncio
import itertools
import json
import re
import secrets
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from nexofork.auth.attacks import carriers, requests, targets
from nexofork.bus.blobs import BlobStore
from nexofork.bus.connection import Bus, BusSettings, Msg, open_bus
from nexofork.bus.credentials import new_seed
from nexofork.bus.failures import BusDenied, NotPermitted
from nexofork.bus.jetstream import API, PLAIN_API, call, store
from nexofork.bus.pickup import Delivery, Pickup
from nexofork.bus.reading import last_of, read_subject
from nexofork.bus.run_log import RunLog
from nexofork.errors import BusError
from nexofork.wire.messages import AbortEvent, encode
from nexofork.wire.subjects import delta, events, inbox, live_reports, reports
from tests.support.nats import AccountsServer, a_claim, a_final, a_request, a_turn, connected, run_accounts_server
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from pathlib import Path

    from nexofork.auth.book import Role

FORGED = encode(AbortEvent(note="forged"))
STREAMS = ("FORK", "FORK_INBOX", "FORK_BLOBS", "FORK_WARM", "FORK_PRESENCE", "FORK_LEDGER")
READS: tuple[dict[str, Any], ...] = (
    {"last_by_subj": "agent.fork.*.reports"},
    {"seq": 1, "next_by_subj": "agent.fork.*.reports", "batch": 5},
    {"multi_last": ["agent.fork.*.reports"]},
)


@asynccontextmanager
async def role(server: AccountsServer, name: str) -> AsyncIterator[Bus]:
    """A connection of a role."""
    async with connected(server.url, seed=server.seeds[name]) as bus:
        yield bus


class Roles:
    """A connection of every role."""

    def __init__(self, admin: Bus, parent: Bus, daemon: Bus, observer: Bus) -> None:
        self.admin, self.parent, self.daemon, self.observer = admin, parent, daemon, observer

    def of(self, name: str) -> Bus:
        """The connection of a role by its name."""
        bus: Bus = getattr(self, name)
        return bus


@asynccontextmanager
async def all_roles(server: AccountsServer) -> AsyncIterator[Roles]:
    """A connection of every role."""
    async with (
        role(server, "admin") as admin,
        role(server, "parent") as parent,
        role(server, "daemon") as daemon,
        role(server, "observer") as observer,
    ):
        yield Roles(admin, parent, daemon, observer)


@pytest.fixture
async def roles(accounts_server: AccountsServer) -> AsyncIterator[Roles]:
    """All roles at once."""
    async with all_roles(accounts_server) as them:
        yield them


async def test_a_run_from_request_to_end_with_each_role_in_its_place(roles: Roles, run_id: str) -> None:
    """Parent asks, daemon takes, claims, renews, stores, reports; parent watches, reads and aborts; observer reads."""
    parents, daemons = RunLog(roles.parent, run_id), RunLog(roles.daemon, run_id)
    live, hints, deltas, taken = list[Msg](), list[Msg](), list[Msg](), list[Delivery]()
    await roles.parent.subscribe(live_reports(run_id), live.append)
    await roles.parent.subscribe(delta(run_id), deltas.append)
    await roles.daemon.subscribe(events(run_id), hints.append)
    await roles.parent.flushed()
    await roles.daemon.flushed()
    snapshot = secrets.token_bytes(300_000)
    ref = await BlobStore(roles.parent, "parent").put(snapshot)
    large = await BlobStore(roles.parent, "parent").put(snapshot * 4)
    seq = await parents.request(a_request())

    stop = asyncio.Event()
    pickup = Pickup(roles.daemon, free_slots=lambda: 1000 - len(taken), deliver=taken.append)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pickup.run(stop))
        await eventually(lambda: [delivery for delivery in taken if delivery.run_id == run_id])
        stop.set()
    (mine,) = [delivery for delivery in taken if delivery.run_id == run_id]
    claimed = await daemons.append(a_claim(), after=mine.seq)
    assert await mine.renew()
    assert await BlobStore(roles.daemon, "daemon").get(ref) == snapshot
    assert await BlobStore(roles.daemon, "daemon").get(large) == snapshot * 4
    await roles.daemon.publish(delta(run_id), b"token")
    turned = await daemons.append(a_turn(), after=claimed)
    outcome = await parents.abort(AbortEvent(note="enough"))
    await roles.parent.request(inbox(run_id, "q1"), b"an answer")
    answer = await last_of(roles.daemon, "FORK_INBOX", inbox(run_id, "q1"))
    final = await daemons.append(a_final(), after=outcome.seq)
    for delivery in taken:
        await delivery.ack()
    await eventually(lambda: len(live) == 3 and len(hints) == 2 and deltas)

    assert answer is not None
    assert answer.data == b"an answer"
    expected = [seq, claimed, turned, outcome.seq, final]
    for bus in (roles.parent, roles.daemon, roles.observer):
        assert [entry.seq for entry in await RunLog(bus, run_id).entries()] == expected
    assert [int(msg.headers["Nats-Sequence"]) for msg in live] == [claimed, turned, final]
    assert 0 <= await roles.parent.stream_fill("FORK") < 0.1


async def test_a_violation_is_named_and_is_not_a_timeout(roles: Roles, run_id: str) -> None:
    """Each role is told at once which subject it may not use, and can go on."""
    denied = {
        "daemon": (events(run_id), inbox(run_id, "abort"), "$JS.fork.API.STREAM.PURGE.FORK", "presence.X.y"),
        "parent": (reports(run_id), "$JS.fork.API.CONSUMER.MSG.NEXT.FORK.pickup", "warm.k"),
        "observer": (events(run_id), reports(run_id), "$JS.fork.API.STREAM.MSG.GET.FORK"),
        "admin": (events(run_id), reports(run_id), "$JS.fork.API.INFO"),
    }
    for name, subjects in denied.items():
        for subject in subjects:
            with pytest.raises(NotPermitted) as caught:
                await roles.of(name).request(subject, b"", timeout_s=30)
            assert caught.value.subject == subject
            assert "permissions violation" in str(caught.value)
        assert roles.of(name).reconnects == 0


async def test_a_subscription_that_is_not_permitted_is_known(roles: Roles, run_id: str) -> None:
    """After a flush the subscription says that it brings nothing."""
    forbidden = await roles.parent.subscribe("agent.fork.*.events", print)
    allowed = await roles.parent.subscribe(live_reports(run_id), print)
    await roles.parent.flushed()

    assert forbidden.denied is not None
    assert "agent.fork.*.events" in str(forbidden.denied)
    assert allowed.denied is None


async def test_nobody_reads_anothers_inbox(roles: Roles) -> None:
    """Answers to one client cannot be subscribed to by another."""
    for name in ("parent", "daemon", "observer"):
        other = await roles.of(name).subscribe(f"_INBOX.{roles.admin.identity}.>", print)
        every = await roles.of(name).subscribe("_INBOX.>", print)
        await roles.of(name).flushed()
        assert other.denied is not None
        assert every.denied is not None


async def test_wrong_credentials_are_the_error(accounts_server: AccountsServer, tmp_path: Path) -> None:
    """A stranger's key, and none at all, are refused in the server's words and without waiting."""
    stranger = tmp_path / "stranger.nk"
    stranger.write_text("SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU")
    for seed in (stranger, None):
        with pytest.raises(BusDenied, match=r"(?i)authorization violation"):
            async with open_bus(BusSettings(urls=(accounts_server.url,), nkey_seed=seed, connect_timeout_s=3.0)):
                pass


def pulls() -> Iterator[tuple[str, bytes]]:
    """What `nexofork auth check` does not dare to ask: it would take requests, or carry what others wrote."""
    yield f"{API}.CONSUMER.MSG.NEXT.FORK.pickup", b'{"batch":1,"no_wait":true}'
    yield "$JS.ACK.FORK.pickup.1.1.1.1.0", b"+NXT"
    for query in READS:
        yield f"{API}.DIRECT.GET.FORK", json.dumps(query).encode()
        yield f"{API}.STREAM.MSG.GET.FORK", json.dumps(query).encode()


def replies(aims: Iterable[str]) -> Iterator[str]:
    """Where an answer of the server would do harm, whatever is lost by it."""
    yield from aims
    for api in (API, PLAIN_API):
        yield f"{api}.STREAM.PURGE.FORK"
        yield f"{api}.STREAM.DELETE.FORK"
        yield f"{api}.CONSUMER.DELETE.FORK.pickup"


async def state(admin: Bus) -> dict[str, Any]:
    """Everything an attack could change, as the admin sees it."""
    facts: dict[str, Any] = {}
    streams = await call(admin, "STREAM.NAMES", {})
    facts["streams"] = sorted(streams["streams"])
    for stream in STREAMS:
        info = await call(admin, f"STREAM.INFO.{stream}", {"subjects_filter": ">"})
        facts[f"{stream} config"] = info["config"]
        if stream in ("FORK", "FORK_INBOX"):
            facts[f"{stream} first"] = info["state"]["first_seq"]
            facts[f"{stream} deleted"] = info["state"].get("num_deleted", 0)
            subjects = info["state"].get("subjects") or {}
            facts[f"{stream} subjects"] = {
                subject: count for subject, count in subjects.items() if ".attacker." not in subject
            }
    consumers = await call(admin, "CONSUMER.NAMES.FORK", {})
    facts["consumers"] = consumers["consumers"]
    facts["pickup"] = (await call(admin, "CONSUMER.INFO.FORK.pickup"))["config"]
    return facts


async def settle(bus: Bus, probe: Callable[[], Any]) -> None:
    """Return when everything sent before had its effect: the server works in order, each stream too."""
    await bus.flushed()
    for _ in range(3):
        await probe()


@pytest.mark.parametrize("attacker", ["daemon", "parent", "observer"])
async def test_no_role_can_touch_what_is_not_its_own(
    attacked_server: AccountsServer, run_id: str, attacker: Role
) -> None:
    """Direct publishes and the reply trick on everything it may send leave streams, consumers and the victim alone."""
    async with all_roles(attacked_server) as roles:
        await attack(roles, run_id, attacker)


async def attack(roles: Roles, run_id: str, attacker: Role) -> None:
    """Try everything as one role and check as the others that nothing came of it."""
    victim = RunLog(roles.parent, run_id)
    claimed = await RunLog(roles.daemon, run_id).append(a_claim(), after=await victim.request(a_request()))
    # What a direct get would carry to the victim, if its reply subject could.
    await store(roles.daemon, "agent.fork.attacker.reports", FORGED)
    before, bus = await state(roles.admin), roles.of(attacker)
    stranger = new_seed()[1]
    aims = targets(attacker, run_id=run_id, pool="fork", stranger=stranger)

    sent = 0
    for request in requests(attacker, run_id=run_id, pool="fork", stranger=stranger):
        for data in (request.data, b""):  # as the check sends it, and as it would do harm
            await bus.publish(request.subject, data)
            sent += 1
    vehicles = [(one.subject, one.data) for one in carriers(bus.identity, run_id="attacker", pool="fork")]
    for (subject, data), reply in itertools.product((*vehicles, *pulls()), replies(aims)):
        if attacker == "parent" and subject.startswith("agent.fork.attacker."):
            continue  # its own to write
        await bus.publish(subject, data, reply=reply)
        sent += 1
    await settle(roles.admin, lambda: state(roles.admin))
    await settle(bus, lambda: read_subject(bus, "FORK", "agent.fork.attacker.reports"))

    assert sent > 500
    assert await state(roles.admin) == before
    entries = await victim.entries()
    assert [entry.seq for entry in entries] == [entries[0].seq, claimed]
    assert await RunLog(roles.daemon, run_id).inbox_abort() is None


async def test_the_same_trick_works_where_there_are_no_accounts(bus: Bus, run_id: str) -> None:
    """The attack is real: in one account the server's answer lands on the victim's subject."""
    await RunLog(bus, run_id).request(a_request())
    await store(bus, f"agent.fork.{run_id}-a.reports", FORGED)

    await bus.publish(f"{API}.DIRECT.GET.FORK.agent.fork.{run_id}-a.reports", b"", reply=events(run_id))
    await settle(bus, lambda: RunLog(bus, run_id).tip())

    assert isinstance((await RunLog(bus, run_id).entries())[-1].message, AbortEvent)


async def test_a_spoofed_hint_is_not_on_the_log(roles: Roles, run_id: str) -> None:
    """A daemon can make another daemon hear an abort, but the log, which decides, has none."""
    await RunLog(roles.parent, run_id).request(a_request())
    await store(roles.daemon, f"agent.fork.{run_id}-a.reports", FORGED)
    hints: list[Msg] = []
    await roles.daemon.subscribe(events(run_id), hints.append)
    await roles.daemon.publish(f"{API}.DIRECT.GET.FORK.agent.fork.{run_id}-a.reports", b"", reply=events(run_id))
    await settle(roles.daemon, lambda: RunLog(roles.daemon, run_id).tip())

    assert len(await RunLog(roles.daemon, run_id).entries()) == 1


async def test_a_stolen_run_id_does_not_abort(roles: Roles, run_id: str) -> None:
    """Knowing a run's id gives a daemon reports only: its abort there is rubbish on the log."""
    seq = await RunLog(roles.parent, run_id).request(a_request())
    await store(roles.daemon, reports(run_id), FORGED)

    claimed = await RunLog(roles.daemon, run_id).append(a_claim(), after=seq)

    entries = await RunLog(roles.parent, run_id).entries()
    assert [type(entry.message).__name__ for entry in entries] == ["Requested", "BadMessage", "Claimed"]
    assert entries[-1].seq == claimed


async def test_a_daemon_cannot_abort_by_the_library_either(roles: Roles, run_id: str) -> None:
    """The library's own abort, in a daemon's hands, is refused by the server."""
    await RunLog(roles.parent, run_id).request(a_request())

    with pytest.raises(BusError, match="permissions violation"):
        await RunLog(roles.daemon, run_id).abort(AbortEvent())
    assert len(await RunLog(roles.parent, run_id).entries()) == 1


async def test_what_is_refused_to_nobody_in_particular_is_logged_once(
    accounts_server: AccountsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A request tells its caller and not the log; of a plain message nobody would know otherwise."""
    async with connected(accounts_server.url, seed=accounts_server.seeds["observer"]) as bus:
        with pytest.raises(NotPermitted):
            await bus.request("warm.asked", b"{}")
        for _ in range(2):
            await bus.publish("warm.said", b"{}")
            await bus.flushed()
        await eventually(lambda: caplog.records)

    assert [record.message.rpartition(": ")[2] for record in caplog.records if record.levelname == "WARNING"] == [
        "publish to 'warm.said'"
    ]


async def test_a_key_that_opens_many_connections_keeps_no_parent_out(tmp_path: Path, run_id: str) -> None:
    """A role has its share of what the server takes: beyond it the daemons' key is refused, and an abort goes in."""

    def few(text: str) -> str:
        text, replaced = re.subn(r"(DAEMONS_default: \{\n +limits: \{ max_connections: )\d+", r"\g<1>4", text)
        assert replaced == 1
        text, replaced = re.subn(r"(?m)^max_connections: \d+", "max_connections: 12", text)
        assert replaced == 1
        return text

    with run_accounts_server(tmp_path, change=few) as server:
        async with role(server, "parent") as parent, AsyncExitStack() as flood:
            await RunLog(parent, run_id).request(a_request())
            settings = BusSettings(urls=(server.url,), nkey_seed=server.seeds["daemon"], connect_timeout_s=2)
            refused = []
            for _ in range(12):
                try:
                    await flood.enter_async_context(open_bus(settings))
                except BusError as exc:
                    refused.append(str(exc))

            async with role(server, "parent") as another:
                outcome = await RunLog(another, run_id).abort(AbortEvent())

    assert outcome.how == "logged"
    # The server closes after its last words, which a client that still writes may not get to read.
    assert any("maximum account active connections exceeded" in said for said in refused)
