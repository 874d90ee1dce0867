from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from nexofork.bus.embedded import EmbeddedServer
from nexofork.bus.jetstream import call, store
from nexofork.bus.pickup import Delivery, Pickup, queue_depth
from nexofork.bus.provisioning import provision
from nexofork.bus.run_log import RunLog
from nexofork.errors import BusError
from tests.support.nats import SMALL, AccountsServer, Proxy, a_request, connected, free_port
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nexofork.bus.connection import Bus

LONG_LEASE_S = 10 * PATIENCE_S
SLOW_HEARTBEAT_S = 15.0
"""No pull is open for less than two of these with the long lease."""
AT_ONCE_S = 30.0
"""A pull with slow heartbeats that was lost is not noticed so soon by its silence."""


@pytest.fixture
async def pool_bus(pool_bus: Bus, pool: str) -> Bus:
    """The shared server with a lease that outlasts every wait: what comes again was given back."""
    await lease(pool_bus, pool, LONG_LEASE_S)
    return pool_bus


async def lease(bus: Bus, pool: str, lease_s: float) -> None:
    """Set how long a request may be left alone."""
    await provision(bus, pool=pool, lease_s=lease_s, max_bytes=SMALL)


class Worker:
    """A daemon that takes requests and does nothing with them."""

    def __init__(
        self, bus: Bus, pool: str, slots: int = 4, heartbeat_s: float = 5.0, lease_s: float = LONG_LEASE_S
    ) -> None:
        self.slots = slots
        self.held: list[Delivery] = []
        self.seen: list[Delivery] = []
        self.most = 0
        self.late = 0
        self.stop = asyncio.Event()
        self.pickup = Pickup(
            bus,
            pool=pool,
            free_slots=lambda: self.slots - len(self.held),
            deliver=self.deliver,
            lease_s=lease_s,
            heartbeat_s=heartbeat_s,
        )

    def deliver(self, delivery: Delivery) -> None:
        """Take the slot."""
        self.late += self.stop.is_set()
        self.held.append(delivery)
        self.seen.append(delivery)
        self.most = max(self.most, len(self.held))

    async def finish(self, delivery: Delivery) -> None:
        """End a run and free its slot."""
        await delivery.ack()
        self.held.remove(delivery)
        self.pickup.wake()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Worker]:
        """Work for as long as the block."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.pickup.run(self.stop))
            try:
                yield self
            finally:
                self.stop.set()


async def ask(bus: Bus, pool: str, *run_ids: str) -> None:
    """Ask for runs."""
    for run_id in run_ids:
        await RunLog(bus, run_id, pool=pool).request(a_request())


async def test_a_request_arrives_with_what_is_needed_to_claim_it(pool_bus: Bus, pool: str) -> None:
    """A delivery names the run, the request's sequence and the attempt, and holds the exact bytes."""
    log, request = RunLog(pool_bus, "r1", pool=pool), a_request()
    seq = await log.request(request, headers={"traceparent": "00-a-b-01"})

    async with Worker(pool_bus, pool).running() as worker:
        await eventually(lambda: worker.seen)
        (got,) = worker.seen
        await worker.finish(got)

    assert (got.run_id, got.seq, got.attempt) == ("r1", seq, 1)
    assert got.data == (await log.entries())[0].raw.data
    assert got.headers["traceparent"] == "00-a-b-01"


async def test_a_request_that_comes_later_is_taken_at_once(pool_bus: Bus, pool: str) -> None:
    """A waiting pull takes what comes while it waits."""
    async with Worker(pool_bus, pool, heartbeat_s=SLOW_HEARTBEAT_S).running() as worker:
        await eventually(lambda: worker.pickup._outstanding)
        await ask(pool_bus, pool, "late")
        await eventually(lambda: worker.seen)

        assert worker.pickup._pulls == 1


async def test_no_more_is_taken_than_there_are_slots(pool_bus: Bus, pool: str) -> None:
    """Ten requests go through three slots, never more than three at a time, each once."""
    await ask(pool_bus, pool, *(f"r{number}" for number in range(10)))

    async with Worker(pool_bus, pool, slots=3).running() as worker:
        while len(worker.seen) < 10 or worker.held:
            await eventually(lambda: len(worker.held) == min(3, 10 - len(worker.seen) + len(worker.held)))
            await worker.finish(worker.held[0])

    assert worker.most == 3
    assert sorted(delivery.run_id for delivery in worker.seen) == sorted(f"r{number}" for number in range(10))
    assert await queue_depth(pool_bus, pool=pool) == 0


async def test_without_a_slot_nothing_is_taken_until_one_is_free(pool_bus: Bus, pool: str) -> None:
    """A full daemon leaves requests to others; a freed slot is used at once."""
    await ask(pool_bus, pool, "r1", "r2")

    async with Worker(pool_bus, pool, slots=1).running() as worker:
        await eventually(lambda: worker.held)
        assert await queue_depth(pool_bus, pool=pool) == 1
        await worker.finish(worker.held[0])
        await eventually(lambda: worker.held)

        assert worker.held[0].run_id == "r2"


async def test_two_daemons_share_the_queue(nats_server: EmbeddedServer, pool_bus: Bus, pool: str) -> None:
    """Each request goes to one of them."""
    async with (
        connected(nats_server.url) as other,
        Worker(pool_bus, pool, 50).running() as one,
        Worker(other, pool, 50).running() as two,
    ):
        await ask(pool_bus, pool, *(f"r{number}" for number in range(40)))
        await eventually(lambda: len(one.seen) + len(two.seen) == 40)

    assert len({delivery.run_id for delivery in one.seen + two.seen}) == 40


async def test_what_is_not_renewed_is_delivered_again(pool_bus: Bus, pool: str) -> None:
    """After the lease of one second the request comes again, as the second attempt."""
    await lease(pool_bus, pool, 1.0)
    await ask(pool_bus, pool, "r1")

    async with Worker(pool_bus, pool).running() as worker:
        await eventually(lambda: len(worker.seen) >= 2)

    assert [delivery.attempt for delivery in worker.seen[:2]] == [1, 2]
    assert len({delivery.seq for delivery in worker.seen}) == 1


async def test_what_is_renewed_stays_ours(pool_bus: Bus, pool: str) -> None:
    """Renewed for twice the lease, a request is not delivered again; left alone, it is."""
    await lease(pool_bus, pool, 3.0)
    await ask(pool_bus, pool, "r1")

    async with Worker(pool_bus, pool).running() as worker:
        await eventually(lambda: worker.seen)
        until = time.monotonic() + 6.5
        while time.monotonic() < until:
            assert await worker.held[0].renew()
            await asyncio.sleep(0.3)
        assert len(worker.seen) == 1
        await eventually(lambda: len(worker.seen) >= 2)


async def test_a_renewal_without_a_server_is_not_confirmed(tmp_path: Path, pool: str) -> None:
    """When nobody confirms the lease, the holder is told so and not with an exception."""
    async with EmbeddedServer(store_dir=tmp_path) as server:
        async with connected(server.url) as patient:
            await provision(patient, pool=pool, max_bytes=SMALL)
            await ask(patient, pool, "r1")
        async with connected(server.url, request_timeout_s=0.2) as own, Worker(own, pool).running() as worker:
            await eventually(lambda: worker.seen)
            server.server.kill()

            assert not await worker.held[0].renew()


async def test_what_is_given_back_goes_to_the_next_at_once(pool_bus: Bus, pool: str) -> None:
    """A released request is delivered again long before its lease ends; a delayed one after its delay."""
    await ask(pool_bus, pool, "r1")

    async with Worker(pool_bus, pool).running() as worker:
        await eventually(lambda: worker.seen)
        await worker.held[0].release()
        await eventually(lambda: len(worker.seen) == 2)
        released = time.monotonic()
        await worker.held[1].release(0.4)
        await eventually(lambda: len(worker.seen) == 3)
        delayed = time.monotonic() - released

    assert [delivery.attempt for delivery in worker.seen] == [1, 2, 3]
    assert delayed >= 0.4


async def test_what_is_terminated_never_comes_again(pool_bus: Bus, pool: str) -> None:
    """Poison is taken out of the queue for good."""
    await ask(pool_bus, pool, "poison")
    async with Worker(pool_bus, pool).running() as worker:
        await eventually(lambda: worker.seen)
        await worker.held[0].terminate("it is poison\nreally")
        info = await call(pool_bus, f"CONSUMER.INFO.FORK_POOL_{pool}.pickup")

    assert (info["num_ack_pending"], info["num_pending"]) == (0, 0)


async def test_a_stopped_daemon_leaves_nothing_in_its_hands(pool_bus: Bus, pool: str) -> None:
    """What is sent to a daemon that is stopping is given back, not left to the lease."""
    worker = Worker(pool_bus, pool, slots=100)
    async with worker.running():
        await eventually(lambda: worker.pickup._outstanding)
        async with asyncio.TaskGroup() as tasks:
            for number in range(50):
                tasks.create_task(ask(pool_bus, pool, f"r{number}"))
            await eventually(lambda: worker.seen)
            worker.stop.set()
    for delivery in worker.held:
        await delivery.ack()

    assert worker.late == 0
    async with Worker(pool_bus, pool, slots=100).running() as heir:
        await eventually(lambda: len({d.run_id for d in worker.held + heir.seen}) == 50)


async def test_requests_come_at_once_after_a_server_restart(tmp_path: Path, pool: str) -> None:
    """The pull that died with the server is replaced by the reconnect, with the store kept."""
    async with EmbeddedServer(port=free_port(), store_dir=tmp_path) as server, connected(server.url) as own:
        await provision(own, pool=pool, max_bytes=SMALL)
        async with Worker(own, pool, heartbeat_s=SLOW_HEARTBEAT_S).running() as worker:
            await eventually(lambda: worker.pickup._outstanding)
            server.server.kill()
            server.server.spawn()
            await eventually(server.server.ready)
            async with connected(server.url) as other:
                await ask(other, pool, "after")
            await eventually(lambda: worker.seen, deadline_s=AT_ONCE_S)

            await worker.finish(worker.held[0])


async def test_requests_come_at_once_after_a_cut_wire(nats_server: EmbeddedServer, pool_bus: Bus, pool: str) -> None:
    """A broken connection costs no more than the reconnect."""
    async with (
        Proxy(nats_server.url) as wire,
        connected(wire.url) as own,
        Worker(own, pool, heartbeat_s=SLOW_HEARTBEAT_S).running() as worker,
    ):
        await eventually(lambda: worker.pickup._outstanding)
        wire.cut()
        await eventually(lambda: own.reconnects == 1)
        await ask(pool_bus, pool, "after")
        await eventually(lambda: worker.seen, deadline_s=AT_ONCE_S)

        assert [(delivery.run_id, delivery.attempt) for delivery in worker.seen] == [("after", 1)]


async def test_silence_makes_a_new_pull(nats_server: EmbeddedServer, pool_bus: Bus, pool: str) -> None:
    """When heartbeats stop the pull is repeated once NATS answers, and what comes twice does not exceed the slots."""
    async with (
        Proxy(nats_server.url) as wire,
        connected(wire.url) as own,
        Worker(own, pool, slots=2, heartbeat_s=1.0).running() as worker,
    ):
        await eventually(lambda: worker.pickup._outstanding)
        wire.hold_answers()
        await eventually(lambda: worker.pickup._unsure)
        wire.release_answers()
        await eventually(lambda: worker.pickup._pulls == 2)
        await ask(pool_bus, pool, *(f"r{number}" for number in range(6)))
        await eventually(lambda: len(worker.held) == 2)
        info = await call(pool_bus, f"CONSUMER.INFO.FORK_POOL_{pool}.pickup")

        assert worker.most == 2
        assert info["num_ack_pending"] <= 4  # what two pulls brought too much is on its way back


async def test_a_deleted_consumer_stops_the_loop(pool_bus: Bus, pool: str) -> None:
    """The daemon ends with a reason instead of waiting for ever."""
    worker = Worker(pool_bus, pool)
    async with asyncio.TaskGroup() as tasks:

        async def delete() -> None:
            while not (await call(pool_bus, f"CONSUMER.INFO.FORK_POOL_{pool}.pickup"))["num_waiting"]:
                pass
            await call(pool_bus, f"CONSUMER.DELETE.FORK_POOL_{pool}.pickup")

        tasks.create_task(delete())
        with pytest.raises(BusError, match=r"does not exist any more.*nexofork provision"):
            await worker.pickup.run(worker.stop)


async def test_a_consumer_that_never_was_stops_the_loop(bus: Bus, pool: str) -> None:
    """Pulling from nowhere is said, too."""
    worker = Worker(bus, pool)

    with pytest.raises(BusError, match="does not exist any more"):
        await worker.pickup.run(worker.stop)


async def test_a_role_that_may_not_pull_is_told(accounts_server: AccountsServer) -> None:
    """The permission itself is the error."""
    async with connected(accounts_server.url, seed=accounts_server.seeds["parent"]) as parent:
        worker = Worker(parent, "fork")
        with pytest.raises(BusError, match="permissions violation for publish"):
            await worker.pickup.run(worker.stop)


@pytest.mark.parametrize("status", ["409", "404", "503", "100"])
async def test_a_forged_status_is_just_a_request(pool_bus: Bus, pool: str, status: str) -> None:
    """A stored event that looks like the server's word is delivered like any other and stops nothing."""
    headers = {"Status": status, "Description": "Consumer Deleted"}
    await store(pool_bus, f"agent.{pool}.forged.events", b"", headers=headers)
    await ask(pool_bus, pool, "honest")

    async with Worker(pool_bus, pool).running() as worker:
        await eventually(lambda: len(worker.seen) == 2)

    assert [delivery.run_id for delivery in worker.seen] == ["forged", "honest"]


async def test_a_handler_that_fails_does_not_end_the_loop(pool_bus: Bus, pool: str) -> None:
    """A defect in taking one request leaves the others to be taken."""
    worker = Worker(pool_bus, pool)
    take = worker.deliver

    def fragile(delivery: Delivery) -> None:
        if delivery.run_id == "broken":
            raise ValueError("on purpose")
        take(delivery)

    worker.pickup._deliver = fragile
    await ask(pool_bus, pool, "broken", "fine")
    async with worker.running():
        await eventually(lambda: worker.seen)

    assert [delivery.run_id for delivery in worker.seen] == ["fine"]


async def test_a_pull_with_heartbeats_is_not_given_up(
    pool_bus: Bus, pool: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An idle daemon keeps its one pull for as long as the server shows that it is there."""
    begun, stop = asyncio.get_running_loop().time(), asyncio.Event()
    pickup = Pickup(pool_bus, pool=pool, free_slots=lambda: 1, deliver=lambda _: None, lease_s=180, heartbeat_s=1.0)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pickup.run(stop))
        await eventually(lambda: pickup._heard_at > begun + 5.0)  # twice as long as silence may last
        stop.set()

    assert pickup._pulls == 1
    assert "fell silent" not in caplog.text


async def test_a_daemon_that_cannot_hear_takes_nothing(nats_server: EmbeddedServer, pool_bus: Bus, pool: str) -> None:
    """Its pull is over within a lease and it makes no other one; what is asked for then goes to the next daemon."""
    await lease(pool_bus, pool, 3.0)
    async with (
        Proxy(nats_server.url) as wire,
        connected(wire.url) as own,
        Worker(own, pool, lease_s=3.0).running() as worker,
    ):
        await eventually(lambda: worker.pickup._outstanding)
        wire.hold_answers()
        held = time.monotonic()
        await eventually(lambda: time.monotonic() > held + 3.0)
        await ask(pool_bus, pool, "r1")
        async with Worker(pool_bus, pool).running() as other:
            await eventually(lambda: other.seen)
        wire.release_answers()

    assert [(one.run_id, one.attempt) for one in other.seen] == [("r1", 1)]
    assert worker.seen == []


async def test_what_was_sent_to_a_daemon_that_could_not_hear_is_not_used(
    nats_server: EmbeddedServer, pool_bus: Bus, pool: str
) -> None:
    """What comes more than a lease after it was asked for is another daemon's; new requests are taken again."""
    await lease(pool_bus, pool, 3.0)
    async with (
        Proxy(nats_server.url) as wire,
        connected(wire.url) as own,
        Worker(own, pool, slots=0, lease_s=3.0).running() as worker,
    ):
        await ask(pool_bus, pool, "stale")
        wire.hold_answers_to(b"CONSUMER.MSG.NEXT")
        worker.slots = 4
        worker.pickup.wake()
        await wire.withheld.wait()
        async with Worker(pool_bus, pool).running() as other:
            await eventually(lambda: other.seen)
            await other.finish(other.held[0])
        wire.release_answers()
        await ask(pool_bus, pool, "new")
        await eventually(lambda: worker.seen)

    assert [(one.run_id, one.attempt) for one in other.seen] == [("stale", 2)]
    assert "stale" not in [one.run_id for one in worker.seen]


async def test_what_one_daemon_gives_back_after_pauses_comes_to_the_other(
    nats_server: EmbeddedServer, pool_bus: Bus, pool: str
) -> None:
    """No daemon stays first in the queue, although both pull for the same time and one began earlier."""
    async with connected(nats_server.url) as second:
        one, other = Worker(pool_bus, pool, lease_s=3.0), Worker(second, pool, lease_s=3.0)
        async with one.running():
            await eventually(lambda: one.pickup._outstanding)
            async with other.running():
                await ask(pool_bus, pool, "r1")
                while not other.seen:
                    await eventually(lambda: one.held or other.seen)
                    for delivery in one.held:
                        await delivery.release(1.0)  # as long as the longest pull
                    one.held.clear()

    assert len(one.seen) < 20  # it is more often if all pulls are of one length


async def test_what_lapsed_is_not_given_back(pool_bus: Bus, pool: str) -> None:
    """A daemon that gives a request back after its lease does not take it from the one that has it."""
    await lease(pool_bus, pool, 1.0)
    await ask(pool_bus, pool, "r1")
    async with Worker(pool_bus, pool, lease_s=1.0).running() as slow:
        await eventually(lambda: slow.seen)
        slow.slots = 0
        await eventually(lambda: slow.held[0].lapsed)
        await lease(pool_bus, pool, LONG_LEASE_S)
        async with Worker(pool_bus, pool).running() as heir:
            await eventually(lambda: heir.seen)
            await slow.held[0].release()
            await ask(pool_bus, pool, "r2")
            await eventually(lambda: len(heir.seen) == 2)

    assert [one.run_id for one in heir.seen] == ["r1", "r2"]


async def test_a_renewal_is_due_a_third_of_the_lease_after_the_pull(pool_bus: Bus, pool: str) -> None:
    """The lease counts from the delivery, so what a daemon did since, over a slow link, counts too."""
    await ask(pool_bus, pool, "r1")
    async with Worker(pool_bus, pool).running() as worker:
        await eventually(lambda: worker.seen)
        assert LONG_LEASE_S / 3 - PATIENCE_S < worker.held[0].due_s < LONG_LEASE_S / 3

    await ask(pool_bus, pool, "r2")
    async with Worker(pool_bus, pool, lease_s=1.0).running() as worker:
        await eventually(lambda: worker.seen)
        await eventually(lambda: worker.seen[0].due_s == 0)
