from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from nexofork.bus.failures import NoResponders, NotPermitted, StoreFull, StreamsDiffer
from nexofork.bus.jetstream import call, store
from nexofork.bus.provisioning import check_pool, look, provision
from nexofork.errors import BusError
from nexofork.wire.streams import consumer_settings, stream_settings
from nexofork.wire.subjects import ledger, reports
from tests.support.nats import SMALL, AccountsServer, ServerProcess, connected, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nexofork.bus.connection import Bus
    from nexofork.bus.embedded import EmbeddedServer


async def config_of(bus: Bus, stream: str) -> dict[str, Any]:
    """A stream's settings as the server has them."""
    config: dict[str, Any] = (await call(bus, f"STREAM.INFO.{stream}"))["config"]
    return config


async def test_every_stream_and_the_consumer_exist_as_designed(bus: Bus) -> None:
    """The server reports each setting that was asked for."""
    for wanted in stream_settings(max_bytes=SMALL):
        config = await config_of(bus, wanted["name"])
        assert {key: config.get(key, False) for key in wanted} == wanted
    consumer = (await call(bus, "CONSUMER.INFO.FORK.pickup"))["config"]
    wanted = consumer_settings()
    assert {key: consumer[key] for key in wanted} == wanted


async def test_provisioning_again_changes_nothing(bus: Bus, pool: str) -> None:
    """A second run, and twenty at the same time, leave stream and consumer as they are."""
    await provision(bus, pool=pool, max_bytes=SMALL)
    before = await call(bus, f"CONSUMER.INFO.FORK_POOL_{pool}.pickup")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(20):
            tasks.create_task(provision(bus, pool=pool))

    assert (await call(bus, f"CONSUMER.INFO.FORK_POOL_{pool}.pickup"))["created"] == before["created"]
    assert (await config_of(bus, f"FORK_POOL_{pool}"))["max_bytes"] == SMALL


async def test_many_at_once_create_one_set(bus: Bus, pool: str) -> None:
    """The first start of many processes is no race."""
    async with asyncio.TaskGroup() as tasks:
        for _ in range(10):
            tasks.create_task(provision(bus, pool=pool, max_bytes=SMALL))

    assert (await config_of(bus, f"FORK_POOL_{pool}"))["subjects"] == [
        f"agent.{pool}.*.events",
        f"agent.{pool}.*.reports",
    ]


async def test_a_lease_is_changed_when_asked_for_and_kept_otherwise(bus: Bus, pool: str) -> None:
    """`lease_s` sets the consumer's ack_wait; None leaves it."""
    first = await provision(bus, pool=pool, lease_s=2.0, max_bytes=SMALL)
    kept = await provision(bus, pool=pool, lease_s=None)
    changed = await provision(bus, pool=pool, lease_s=3.0)

    assert (first.lease_s, kept.lease_s, changed.lease_s) == (2.0, 2.0, 3.0)
    consumer = (await call(bus, f"CONSUMER.INFO.FORK_POOL_{pool}.pickup"))["config"]
    assert consumer["ack_wait"] == 3 * 10**9


async def test_a_needed_setting_is_named_and_repaired_only_when_asked(bus: Bus, pool: str) -> None:
    """What the design needs comes back when somebody says so; how much may be stored is the admin's."""
    name = f"FORK_POOL_{pool}"
    await provision(bus, pool=pool, max_bytes=SMALL)
    wrong = {**await config_of(bus, name), "discard": "old", "discard_new_per_subject": False, "max_bytes": 2 * SMALL}
    await call(bus, f"STREAM.UPDATE.{name}", wrong)

    with pytest.raises(StreamsDiffer, match=f"provision --pool {pool} --apply") as refused:
        await provision(bus, pool=pool)
    assert refused.value.differences == (
        f'stream {name} has discard "old" and needs "new"',
        f"stream {name} has discard_new_per_subject null and needs true",
    )
    assert (await look(bus, pool=pool)).differ == refused.value.differences
    assert (await config_of(bus, name))["discard"] == "old"

    await provision(bus, pool=pool, repair=True)

    config = await config_of(bus, name)
    assert (config["discard"], config["discard_new_per_subject"], config["max_bytes"]) == ("new", True, 2 * SMALL)


async def test_a_setting_that_cannot_be_changed_is_said(bus: Bus, pool: str) -> None:
    """A stream that somebody made otherwise is refused by the server's own reason."""
    wanted = stream_settings(pool, max_bytes=SMALL)[0]
    await call(bus, f"STREAM.CREATE.{wanted['name']}", {**wanted, "retention": "workqueue"})

    with pytest.raises(StreamsDiffer, match='has retention "workqueue" and needs "limits"'):
        await provision(bus, pool=pool)
    with pytest.raises(BusError, match="retention"):
        await provision(bus, pool=pool, repair=True)


async def test_streams_that_lose_or_refuse_runs_are_not_as_they_have_to_be(bus: Bus, pool: str) -> None:
    """Memory, tiny messages, a consumer that skips what was there or hands out one at a time: each is named."""
    log, inbox = f"FORK_POOL_{pool}", f"FORK_POOL_{pool}_INBOX"
    for wanted in stream_settings(pool, max_bytes=SMALL)[:2]:
        await call(bus, f"STREAM.CREATE.{wanted['name']}", {**wanted, "storage": "memory", "max_msg_size": 100})
    narrow = {**consumer_settings(pool), "deliver_policy": "new", "max_ack_pending": 1}
    await call(bus, f"CONSUMER.CREATE.{log}.pickup", {"stream_name": log, "config": narrow})

    assert (await look(bus, pool=pool)).differ == (
        f"stream {log} has max_msg_size 100 and needs at least 1048576",
        f'stream {log} has storage "memory" and needs "file"',
        f"stream {inbox} has max_msg_size 100 and needs at least 1048576",
        f'stream {inbox} has storage "memory" and needs "file"',
        f'consumer pickup of {log} has deliver_policy "new" and needs "all"',
        f"consumer pickup of {log} has max_ack_pending 1 and needs at least 1000",
    )
    with pytest.raises(StreamsDiffer, match=f"provision --pool {pool} --apply"):
        await provision(bus, pool=pool)


async def test_limits_above_the_least_and_none_at_all_are_the_admins(bus: Bus, pool: str) -> None:
    """More room for messages or pending requests is no difference."""
    log = f"FORK_POOL_{pool}"
    await provision(bus, pool=pool, max_bytes=SMALL)
    await call(bus, f"STREAM.UPDATE.{log}", {**await config_of(bus, log), "max_msg_size": -1})
    wide = {**consumer_settings(pool), "max_ack_pending": 50_000}
    await call(bus, f"CONSUMER.CREATE.{log}.pickup", {"stream_name": log, "config": wide})

    assert (await look(bus, pool=pool)).differ == ()


SHARED = ("FORK_WARM", "FORK_PRESENCE", "FORK_LEDGER")


async def without_limits(bus: Bus) -> None:
    """Make the streams as the version before did."""
    for wanted in stream_settings(max_bytes=4 << 20):
        bounded = wanted["name"] not in SHARED
        kept = {"max_bytes": wanted["max_bytes"], "max_msg_size": wanted["max_msg_size"]} if bounded else {}
        none = {"max_bytes": -1, "max_msg_size": -1, "max_msgs": -1}
        await call(bus, f"STREAM.CREATE.{wanted['name']}", {**wanted, **none, **kept})
    consumer = {"stream_name": "FORK", "config": consumer_settings()}
    await call(bus, "CONSUMER.CREATE.FORK.pickup", consumer)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server for one test."""
    text = f'host: 127.0.0.1\nport: -1\nhttp: "127.0.0.1:-1"\njetstream {{ domain: fork, store_dir: "{tmp_path}" }}\n'
    with running(ServerProcess(text, folder=tmp_path / "server")) as server:
        yield server


async def test_streams_of_the_version_before_are_used_named_and_limited_on_request(own_server: ServerProcess) -> None:
    """A daemon starts on them as they are; a repair gives each its limits and deletes nothing."""
    async with connected(own_server.url) as bus:
        await without_limits(bus)
        await store(bus, ledger("local", "d1"), b"a bill")

        found, started = await look(bus), await provision(bus)
        await check_pool(bus)

        assert (found.differ, found.missing) == ((), ())
        assert found.unlimited == started.unlimited
        assert {lack.split()[1] for lack in found.unlimited} > set(SHARED)
        assert "stream FORK_LEDGER has no max_bytes, max_msgs, max_msg_size" in found.unlimited
        assert (await config_of(bus, "FORK_LEDGER"))["max_bytes"] == -1

        repaired = await provision(bus, repair=True)

        assert (repaired.unlimited, repaired.oversized) == ((), ())
        assert (await look(bus)).unlimited == ()
        for wanted in stream_settings(max_bytes=4 << 20):
            config = await config_of(bus, wanted["name"])
            assert {key: config.get(key, False) for key in wanted} == wanted
        assert (await call(bus, "STREAM.INFO.FORK_LEDGER"))["state"]["messages"] == 1


async def test_a_ledger_that_holds_more_than_the_limit_keeps_its_bills_and_takes_more(
    own_server: ServerProcess,
) -> None:
    """It gets room for what it holds and a quarter more, and that is said."""
    async with connected(own_server.url) as bus:
        await without_limits(bus)
        for _ in range(8):
            await store(bus, ledger("local", "d1"), b"x" * 1_000_000)
        before = (await call(bus, "STREAM.INFO.FORK_LEDGER"))["state"]

        repaired = await provision(bus, repair=True)

        info = await call(bus, "STREAM.INFO.FORK_LEDGER")
        limit = info["config"]["max_bytes"]
        assert info["state"] == before
        assert limit == before["bytes"] * 5 // 4
        assert repaired.oversized == (
            f"stream FORK_LEDGER holds {before['bytes']} bytes, so its limit is {limit} and not the usual {4 << 20}",
        )
        await store(bus, ledger("local", "d1"), b"another bill")


async def test_a_server_without_room_for_a_limit_is_said_and_goes_on(tmp_path: Path) -> None:
    """The streams that fit get theirs; the one that does not stays as it was and is named."""
    text = 'host: 127.0.0.1\nport: -1\nhttp: "127.0.0.1:-1"\n'
    text += f'jetstream {{ domain: fork, store_dir: "{tmp_path}", max_file: 22MB }}\n'
    with running(ServerProcess(text, folder=tmp_path / "server")) as server:
        async with connected(server.url) as bus:
            await without_limits(bus)

            repaired = await provision(bus, repair=True)

            assert repaired.unlimited == (
                "stream FORK_LEDGER has no max_bytes, max_msgs, max_msg_size, "
                "and the server has no room for 4194304 bytes",
            )
            assert (await config_of(bus, "FORK_WARM"))["max_bytes"] == 4 << 20
            await store(bus, ledger("local", "d1"), b"a bill")


async def test_a_limit_below_what_is_stored_deletes_nothing_and_is_said(own_server: ServerProcess) -> None:
    """What an admin asks for is done: the log keeps all it holds and takes nothing more."""
    async with connected(own_server.url) as bus:
        await provision(bus, max_bytes=8 << 20)
        for number in range(3):
            await store(bus, reports(f"r{number}"), b"x" * 1_000_000)

        done = await provision(bus, max_bytes=2 << 20)

        state = (await call(bus, "STREAM.INFO.FORK"))["state"]
        assert state["messages"] == 3
        assert done.oversized == (
            f"stream FORK holds {state['bytes']} bytes and its limit is {2 << 20} now, "
            "so it takes nothing new until enough has expired",
        )
        with pytest.raises(StoreFull):
            await store(bus, reports("more"), b"")


async def test_a_small_pool_takes_no_room_from_what_all_pools_share(own_server: ServerProcess) -> None:
    """Another pool's limit is for its own log and inbox; what is shared only grows by it."""
    async with connected(own_server.url) as bus:
        await provision(bus, max_bytes=64 << 20)
        await provision(bus, pool="tiny", max_bytes=1 << 20)
        small = {name: (await config_of(bus, name))["max_bytes"] for name in ("FORK_POOL_tiny", "FORK", "FORK_LEDGER")}
        await provision(bus, pool="tiny", max_bytes=128 << 20)
        large = (await config_of(bus, "FORK_LEDGER"))["max_bytes"]

    assert small == {"FORK_POOL_tiny": 1 << 20, "FORK": 64 << 20, "FORK_LEDGER": (64 << 20) * 4 // 5}
    assert large == (128 << 20) * 4 // 5


async def test_a_log_that_forgets_early_is_noted(bus: Bus, pool: str) -> None:
    """An age is the admin's choice, so it is no error."""
    log = f"FORK_POOL_{pool}"
    await provision(bus, pool=pool, max_bytes=SMALL)
    await call(bus, f"STREAM.UPDATE.{log}", {**await config_of(bus, log), "max_age": 60 * 10**9})

    note = f"stream {log} forgets after 60 s, where 259200 s are usual"
    assert (await look(bus, pool=pool)).notes == (note,)
    assert (await provision(bus, pool=pool)).notes == (note,)


async def test_what_no_command_can_change_says_how_to_make_it_anew(bus: Bus, pool: str) -> None:
    """A stream is removed with what it holds, a consumer without; then the pool is provisioned."""
    log = f"FORK_POOL_{pool}"
    wanted = stream_settings(pool, max_bytes=SMALL)[0]
    await call(bus, f"STREAM.CREATE.{log}", {**wanted, "retention": "workqueue"})
    remedy = rf"cannot be changed.*`nats stream rm {log}`.*`nexofork provision --pool {pool}`"
    with pytest.raises(BusError, match=remedy):
        await provision(bus, pool=pool, repair=True)

    await call(bus, f"STREAM.DELETE.{log}")
    await provision(bus, pool=pool, max_bytes=SMALL)
    await call(bus, f"CONSUMER.DELETE.{log}.pickup")
    skipping = {**consumer_settings(pool), "deliver_policy": "new"}
    await call(bus, f"CONSUMER.CREATE.{log}.pickup", {"stream_name": log, "config": skipping})
    with pytest.raises(BusError, match=rf"cannot be changed.*`nats consumer rm {log} pickup`"):
        await provision(bus, pool=pool, repair=True)


async def test_more_than_the_server_has_is_said(bus: Bus, pool: str) -> None:
    """A limit beyond the disk is refused with what to do."""
    with pytest.raises(BusError, match=r"no room.*max_bytes"):
        await provision(bus, pool=pool, max_bytes=1 << 50)


async def test_a_server_without_jetstream_is_said(tmp_path: Path) -> None:
    """Core NATS alone is not what we need, and the error says what is."""
    plain = 'host: 127.0.0.1\nport: -1\nhttp: "127.0.0.1:-1"\n'
    with running(ServerProcess(plain, folder=tmp_path)) as server:
        async with connected(server.url) as bus:
            with pytest.raises(NoResponders, match="needs JetStream"):
                await provision(bus)


@pytest.mark.parametrize("role", ["parent", "daemon", "observer"])
async def test_a_role_that_may_not_create_checks_what_is_there(accounts_server: AccountsServer, role: str) -> None:
    """With the admin's streams in place it is content, whatever lease it would have liked."""
    async with connected(accounts_server.url, seed=accounts_server.seeds[role]) as bus:
        provisioned = await provision(bus, lease_s=4.0)

    assert provisioned.lease_s == 15.0


@pytest.mark.parametrize("role", ["parent", "daemon"])
async def test_a_role_that_may_not_create_names_the_admin_command(
    accounts_server: AccountsServer, role: str, pool: str
) -> None:
    """What is missing is named, and who can make it."""
    async with connected(accounts_server.url, seed=accounts_server.seeds[role]) as bus:
        with pytest.raises(BusError, match=rf"FORK_POOL_{pool} does not exist.*nexofork provision") as caught:
            await provision(bus, pool=pool)

    assert isinstance(caught.value.__cause__, NotPermitted)


async def test_the_admin_changes_what_exists(accounts_server: AccountsServer, nats_server: EmbeddedServer) -> None:
    """Under its own prefix the admin provisions again and again."""
    async with connected(accounts_server.url, seed=accounts_server.seeds["admin"]) as admin:
        assert (await provision(admin, lease_s=14.0)).lease_s == 14.0
        assert (await provision(admin, lease_s=15.0)).lease_s == 15.0
