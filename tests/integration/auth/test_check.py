"""The attacks: refused by the rendered configuration, and each weakening of it is found."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from nexofork.auth.book import ROLES
from nexofork.auth.check import Outcome, check_server
from nexofork.auth.folder import read_book
from nexofork.bus.connection import BusSettings
from nexofork.bus.failures import NoResponders
from nexofork.bus.jetstream import call
from nexofork.bus.run_log import RunLog
from nexofork.errors import BusError
from tests.support.nats import (
    AccountsServer,
    ServerProcess,
    a_claim,
    a_request,
    connected,
    provision_as_admins,
    run_accounts_server,
    running,
)
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nexofork.auth.book import Role
    from nexofork.bus.connection import Bus
    from nexofork.bus.embedded import EmbeddedServer

STREAMS = ("FORK", "FORK_INBOX", "FORK_BLOBS", "FORK_WARM", "FORK_PRESENCE", "FORK_LEDGER")


async def attacked(server: AccountsServer) -> tuple[list[Outcome], list[str]]:
    """Run the check and return every outcome and what was left behind."""
    outcomes: list[Outcome] = []
    seeds = {tenant: {role: server.seeds_of(tenant)[role] for role in ROLES} for tenant in server.tenants}
    left = await check_server(BusSettings(urls=(server.url,)), seeds, pools=server.pools, tell=outcomes.append)
    return outcomes, left


async def state(admin: Bus) -> dict[str, Any]:
    """Everything an attack could change, as the admin sees it."""
    facts: dict[str, Any] = {"streams": sorted((await call(admin, "STREAM.NAMES", {}))["streams"])}
    for stream in STREAMS:
        info = await call(admin, f"STREAM.INFO.{stream}")
        facts[stream] = (info["config"], info["state"]["messages"], info["state"]["last_seq"])
    facts["consumers"] = (await call(admin, "CONSUMER.NAMES.FORK", {}))["consumers"]
    queue = await call(admin, "CONSUMER.INFO.FORK.pickup")
    facts["queue"] = (queue["config"], queue["delivered"], queue["num_pending"], queue["num_ack_pending"])
    return facts


async def test_no_role_can_do_more_than_its_own(tmp_path: Path, run_id: str) -> None:
    """Hundreds of attempts are refused, and streams, consumers and a run of others are exactly as before."""
    with run_accounts_server(tmp_path) as server:
        async with (
            connected(server.url, seed=server.seeds["admin"]) as admin,
            connected(server.url, seed=server.seeds["parent"]) as parent,
            connected(server.url, seed=server.seeds["daemon"]) as daemon,
        ):
            requested = await RunLog(parent, run_id).request(a_request())
            claimed = await RunLog(daemon, run_id).append(a_claim(), after=requested)
            before = await state(admin)

            outcomes, left = await attacked(server)

            assert [outcome for outcome in outcomes if not outcome.refused] == []
            assert await state(admin) == before
            assert [entry.seq for entry in await RunLog(parent, run_id).entries()] == [requested, claimed]
    assert left == []
    kinds = Counter(outcome.kind for outcome in outcomes)
    assert kinds["request"] > 150
    assert kinds["reply"] > 100
    assert kinds["subscribe"] > 30


async def test_tenants_share_nothing_in_any_pool(tmp_path: Path) -> None:
    """Of what one tenant writes in a pool of another name, nobody of the other tenant reads or hears anything."""
    with run_accounts_server(tmp_path, tenants=("red", "blue"), pools=("gpu",)) as server:
        outcomes, left = await attacked(server)

    assert [outcome for outcome in outcomes if not outcome.refused] == []
    assert len([outcome for outcome in outcomes if outcome.kind == "tenant"]) == 8
    assert [subject.split(".")[::3] for subject in left] == [["agent", "inbox"]] * 2
    assert any("agent.gpu." in outcome.detail for outcome in outcomes)


def _replaced(text: str, old: str, new: str) -> str:
    assert old in text, old
    return text.replace(old, new)


def _daemons_abort(text: str) -> str:
    """Daemons may publish and import what belongs to parents."""
    text = _replaced(
        text,
        '{ service: "agent.fork.*.events",  accounts: [PARENTS_default] }',
        '{ service: "agent.fork.*.events",  accounts: [PARENTS_default, DAEMONS_default] }',
    )
    text = _replaced(
        text,
        '{ service: { account: CORE_default, subject: "agent.fork.*.reports" } }',
        '{ service: { account: CORE_default, subject: "agent.fork.*.reports" } }\n'
        '{ service: { account: CORE_default, subject: "agent.fork.*.events" } }',
    )
    text = _replaced(text, '{ stream:  { account: PARENTS_default, subject: "agent.fork.*.events" } }', "")
    return _replaced(text, '"agent.fork.*.reports", "delta', '"agent.fork.*.events", "agent.fork.*.reports", "delta')


def _parents_make_consumers(text: str) -> str:
    """A parent may create consumers, whose deliver subject can be anything."""
    text = _replaced(
        text,
        '{ service: "$JS.API.STREAM.INFO.*", ',
        '{ service: "$JS.API.CONSUMER.CREATE.FORK.>", accounts: [PARENTS_default] }\n'
        '{ service: "$JS.API.STREAM.INFO.*", ',
    )
    text = _replaced(
        text,
        '{ service: { account: CORE_default, subject: "blob.parent.*.*" } }',
        '{ service: { account: CORE_default, subject: "blob.parent.*.*" } }\n'
        '{ service: { account: CORE_default, subject: "$JS.API.CONSUMER.CREATE.FORK.>" },'
        ' to: "$JS.fork.API.CONSUMER.CREATE.FORK.>" }',
    )
    return _replaced(text, '"blob.parent.*.*"\n', '"blob.parent.*.*", "$JS.fork.API.CONSUMER.CREATE.FORK.>"\n')


def _observers_among_parents(text: str) -> str:
    """Observers live in the parents' account, where the reply to a read is a hint to daemons."""
    users = re.search(r"  OBSERVERS_default: \{.*?users: \[\n(.*?)\n    \]\n", text, re.DOTALL)
    assert users is not None
    text = text.replace(users[1], "")
    head, found, tail = text.partition("\n  PARENTS_default: {")
    return head + found + tail.replace("users: [\n", f"users: [\n{users[1]}\n", 1)


def _everybody_reads_inboxes(text: str) -> str:
    return re.sub(r'"_INBOX\.U[A-Z2-7]{55}\.>"', '"_INBOX.>"', text)


def _any_presence(text: str) -> str:
    return re.sub(r'"presence\.U[A-Z2-7]{55}\.\*"', '"presence.*.*"', text)


def _no_permissions_for_observers(text: str) -> str:
    head, found, tail = text.partition("  OBSERVERS_default: {")
    return head + found + re.sub(r"publish: \{ allow: \[.*?\] \}", 'publish: { allow: [">"] }', tail, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("weaken", "who", "what"),
    [
        (_daemons_abort, "daemon", "abort a run"),
        (_parents_make_consumers, "parent", "create a consumer that writes aborts"),
        (_observers_among_parents, "observer", "aim the answer to a read of FORK"),
        (_everybody_reads_inboxes, "observer", "hear the answers to the admin of default"),
        (_any_presence, "daemon", "speak for another daemon"),
        (_no_permissions_for_observers, "observer", "list the connections of the account"),
    ],
)
async def test_a_weakened_configuration_is_found(
    tmp_path: Path, weaken: Callable[[str], str], who: str, what: str
) -> None:
    """What the role could do is named."""
    with run_accounts_server(tmp_path, change=weaken) as server:
        outcomes, _ = await attacked(server)

    assert (who, what) in {(outcome.role, outcome.what) for outcome in outcomes if not outcome.refused}


PLACES = ("the ledger", "the warmth of prefixes", "its presence", "a group's budget", "a run's reports", "its blobs")


async def test_what_a_daemon_may_write_is_attacked_by_size_content_and_rate(accounts_server: AccountsServer) -> None:
    """Each place has a line of every kind, each stream one for its limits, and all are refused."""
    outcomes, left = await attacked(accounts_server)

    lines = [(one.kind, one.what) for one in outcomes if one.kind in ("size", "content", "rate", "room")]
    for kind in ("size", "content", "rate"):
        for place in PLACES:
            assert [what for found, what in lines if found == kind and what.endswith(place)], (kind, place)
    assert {("room", f"fill the tenant's store by {stream}") for stream in STREAMS} < set(lines)
    assert [one for one in outcomes if not one.refused] == []
    assert left == []


async def remade(server: AccountsServer, stream: str, **settings: object) -> None:
    """Make a stream anew, with other settings."""
    async with connected(server.url, seed=server.seeds["admin"]) as admin:
        config = (await call(admin, f"STREAM.INFO.{stream}"))["config"]
        await call(admin, f"STREAM.DELETE.{stream}")
        await call(admin, f"STREAM.CREATE.{stream}", {**config, **settings})


@pytest.mark.parametrize(
    ("stream", "settings", "kind", "what"),
    [
        ("FORK_LEDGER", {"max_bytes": -1}, "room", "fill the tenant's store by FORK_LEDGER"),
        ("FORK_PRESENCE", {"max_msg_size": -1}, "size", "write more than 1048576 bytes at once to its presence"),
        ("FORK_WARM", {"allow_rollup_hdrs": True}, "content", "erase what stood before in the warmth of prefixes"),
        ("FORK_LEDGER", {"allow_msg_ttl": True}, "content", "choose how long a message stays in the ledger"),
        ("FORK_LEDGER", {"allow_atomic": True}, "content", "write a batch at once to the ledger"),
        ("FORK_PRESENCE", {"allow_msg_schedules": True}, "content", "have the server write to presence."),
    ],
)
async def test_a_weakened_stream_is_found(
    tmp_path: Path, stream: str, settings: dict[str, object], kind: str, what: str
) -> None:
    """What a daemon could do to it is named, and so is what that left in it."""

    def roomy(text: str) -> str:
        return _replaced(text, "max_payload: 1MB", "max_payload: 4MB")

    with run_accounts_server(tmp_path, change=roomy) as server:
        await remade(server, stream, **settings, deny_purge=False)
        outcomes, left = await attacked(server)

    found = [one for one in outcomes if not one.refused]
    assert [(one.role, one.kind) for one in found if one.what.startswith(what)] == [("daemon", kind)]
    stored = [one for one in found if one.detail.startswith("stored on ")]
    assert sorted(left) == sorted(one.detail.removeprefix("stored on ") for one in stored)


async def _room(admin: Bus) -> int | None:
    """The bytes an account may store; None while the server links its accounts again after a reload."""
    try:
        return int((await call(admin, "INFO"))["limits"]["max_storage"])
    except NoResponders:
        return None


async def test_an_account_with_less_room_than_its_streams_is_found(tmp_path: Path) -> None:
    """An admin who lowers the account's limit takes the room that aborts rely on."""
    with run_accounts_server(tmp_path) as server:
        config = server.folder / "nats-server.conf"
        config.write_text(
            _replaced(config.read_text(), "max_mem: 256MB, max_file: 8GB", "max_mem: 256MB, max_file: 99MB")
        )
        async with connected(server.url, seed=server.seeds["admin"]) as admin:
            server.reload()
            async with asyncio.timeout(PATIENCE_S):
                while await _room(admin) != 99 << 20:
                    pass
        outcomes, _ = await attacked(server)

    assert [one.what for one in outcomes if not one.refused] == ["keep aborts out by full streams"]


async def test_a_tenant_that_imports_anothers_requests_is_found(tmp_path: Path) -> None:
    """A daemon account that imports the parents of another tenant hears them."""

    def lend(text: str) -> str:
        text = _replaced(
            text,
            '{ stream: "agent.fork.*.inbox.*", accounts: [DAEMONS_red] }',
            '{ stream: "agent.fork.*.inbox.*", accounts: [DAEMONS_red, DAEMONS_blue] }',
        )
        return _replaced(
            text,
            '{ stream:  { account: PARENTS_blue, subject: "agent.fork.*.inbox.*" } }',
            '{ stream:  { account: PARENTS_blue, subject: "agent.fork.*.inbox.*" } }\n'
            '{ stream:  { account: PARENTS_red, subject: "agent.fork.*.inbox.*" } }',
        )

    with run_accounts_server(tmp_path, tenants=("red", "blue"), change=lend) as server:
        outcomes, _ = await attacked(server)

    assert [(one.tenant, one.role, one.what) for one in outcomes if not one.refused] == [
        ("blue", "daemon", "hear what a parent of red writes")
    ]


async def test_one_account_with_lists_of_subjects_is_found(tmp_path: Path) -> None:
    """Permissions without accounts: answers land on a victim's subjects and on the API; what is stored is named."""
    with run_accounts_server(tmp_path / "keys") as keys:
        pass
    with running(ServerProcess(_one_account(keys, tmp_path), folder=tmp_path / "one")) as process:
        server = AccountsServer(
            url=process.url, folder=keys.folder, process=process, tenants=keys.tenants, pools=keys.pools
        )
        await provision_as_admins(server)
        outcomes, left = await attacked(server)

    found = [outcome for outcome in outcomes if not outcome.refused and outcome.kind == "reply"]
    aborts = [
        one for one in found if one.role == "daemon" and re.search(r"stored on agent\.fork\.\S+\.events", one.detail)
    ]
    assert aborts
    assert any("the API was called" in outcome.detail for outcome in found)
    assert any(subject.endswith(".events") for subject in left)


def _one_account(keys: AccountsServer, folder: Path) -> str:
    public = {user.role: user.keys[0] for user in read_book(keys.folder).tenants[0].users}
    reads = '"$JS.API.STREAM.INFO.*", "$JS.API.DIRECT.GET.>", "$JS.API.STREAM.MSG.GET.FORK"'
    rights: dict[Role, tuple[str, str]] = {
        "admin": ('"$JS.>"', '"$JS.EVENT.ADVISORY.>"'),
        "parent": (f'"agent.fork.*.events", "agent.fork.*.inbox.*", {reads}', '"live.fork.*.reports", "delta.fork.*"'),
        "daemon": (f'"agent.fork.*.reports", "warm.*", {reads}', '"agent.fork.*.events", "agent.fork.*.inbox.*"'),
        "observer": (reads, '"live.fork.*.*", "delta.fork.*"'),
    }
    users = "\n".join(
        f"{{ nkey: {public[role]}, permissions: {{ publish: [{may}], "
        f'subscribe: ["_INBOX.{public[role]}.>", {hears}] }} }}'
        for role, (may, hears) in rights.items()
    )
    return (
        f'host: 127.0.0.1\nport: -1\nhttp: "127.0.0.1:-1"\n'
        f'jetstream {{ domain: fork, store_dir: "{folder / "store"}" }}\nauthorization {{ users: [ {users} ] }}\n'
    )


async def test_a_server_without_accounts_is_found_and_left_alone(
    accounts_server: AccountsServer, nats_server: EmbeddedServer
) -> None:
    """Whoever comes is let in: that is the finding, and nothing more is tried."""
    open_door = AccountsServer(
        url=nats_server.url,
        folder=accounts_server.folder,
        process=nats_server.server,
        tenants=accounts_server.tenants,
        pools=accounts_server.pools,
    )

    outcomes, left = await attacked(open_door)

    assert [(one.what, one.refused) for one in outcomes] == [
        ("connect without a key", False),
        ("connect with an unknown key", False),
    ]
    assert "no accounts" in outcomes[0].detail
    assert left == []


async def test_streams_that_are_not_there_cannot_be_attacked(accounts_server: AccountsServer) -> None:
    """All would be refused, for the wrong reason; so it is said what to do first."""
    seeds = {"default": {role: accounts_server.seeds[role] for role in ROLES}}
    settings = BusSettings(urls=(accounts_server.url,))

    with pytest.raises(BusError, match=r"no stream FORK_POOL_none.*nexofork provision --pool none"):
        await check_server(settings, seeds, pools=("none",), tell=lambda _: None)
