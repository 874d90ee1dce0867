"""Take requests from the shared consumer: never more than there are free slots, and at once after a reconnect.

nats-py's own ``fetch`` can stall, and its pulls die with the connection. Here one pull is outstanding, for as many
requests as there are free slots; it is replaced when the server ends it, after each reconnect, and when its heartbeat
falls silent, as soon as NATS answers again. A request stays unacknowledged while its run lives; renewing it is the
run's lease.

The server also hands requests to the open pull of a daemon that is frozen or cut off. So a pull is open for at most a
third of a lease, and a request that arrives more than a lease after its pull was sent is dropped: the server has
offered it to another daemon by then.
Invariant: what is handed to ``deliver`` never exceeds ``free_slots``; anything beyond goes back to the queue at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from typing import TYPE_CHECKING, NamedTuple

from nexofork.bus.failures import JetStreamRefused, provision_command
from nexofork.bus.jetstream import call
from nexofork.errors import BadMessage, BusError
from nexofork.wire.streams import CONSUMER, log_stream
from nexofork.wire.subjects import DEFAULT_POOL, check_run_id, run_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nexofork.bus.connection import Bus, Msg

__all__ = ["RENEWALS", "Delivery", "Pickup", "QueueState", "queue_depth", "queue_state"]

log = logging.getLogger(__name__)

RENEWALS = 3
"""How often a lease is renewed while it lasts."""
_MAX_BATCH = 256
_LONGEST_PULL_S = 60.0
"""The longest that the consumer allows."""
_PULLS_PER_LEASE = 3
_HEARTBEAT_S = 5.0
_SILENT_HEARTBEATS = 2.5
_ANSWER_S = 2.0
_BACKOFF_S = 0.2
_MAX_BACKOFF_S = 5.0
_GONE = (10014, 10059)  # no such consumer, no such stream


class QueueState(NamedTuple):
    """How far a queue is."""

    waiting: int
    """Events that were not handed out yet."""
    reached: int
    """Sequence of the newest event that was."""


class Delivery:
    """A request that was handed to us and is ours to renew, acknowledge or give back."""

    def __init__(self, bus: Bus, msg: Msg, *, lease_s: float, pulled_at: float) -> None:
        """Take over a message of the queue.

        Args:
            bus: The connection it came on.
            msg: The message.
            lease_s: How long it may stay unrenewed.
            pulled_at: When we asked for it, by the clock of the event loop: the server sent it later.
        """
        self.subject = msg.subject
        self.data = msg.data
        self.headers: Mapping[str, str] = msg.headers
        self.run_id = run_of(msg.subject)
        # $JS.ACK.<stream>.<consumer>.<attempt>.<stream sequence>.<consumer sequence>.<time>.<pending>
        tokens = msg.reply.split(".")
        self.attempt = int(tokens[4])
        """1 for the first delivery."""
        self.seq = int(tokens[5])
        """The request's sequence in the log."""
        self.stored_at = int(tokens[7]) / 1e9
        """When the server stored the request, by its own clock."""
        self._bus = bus
        self._reply = msg.reply
        self._lease_s = lease_s
        self._renewed_at = pulled_at

    @property
    def lapsed(self) -> bool:
        """Whether the server may have offered the request to another daemon."""
        return asyncio.get_running_loop().time() - self._renewed_at > self._lease_s

    @property
    def due_s(self) -> float:
        """How long the next renewal can wait, so that two may fail before the lease is over."""
        passed_s = asyncio.get_running_loop().time() - self._renewed_at
        return max(0.0, self._lease_s / RENEWALS - passed_s)

    async def renew(self) -> bool:
        """Extend the lease; False when the server did not confirm it.

        A confirmation does not prove that the run is still ours: the log does.
        """
        asked_at = asyncio.get_running_loop().time()
        try:
            await self._bus.request(self._reply, b"+WPI")
        except BusError as exc:
            log.warning("the lease of run %s was not renewed: %s", self.run_id, exc)
            return False
        self._renewed_at = asked_at
        return True

    async def ack(self) -> None:
        """Say that the run is over; returns when the server has taken it.

        Raises:
            BusError: It was not confirmed; the request may be delivered again.
        """
        await self._bus.request(self._reply, b"+ACK")

    async def release(self, delay_s: float = 0) -> None:
        """Give the request back; where that fails, the lease runs out by itself.

        One that has lapsed is not given back: the server would take the run from the daemon that has it now.
        """
        if self.lapsed:
            log.info("run %s was not given back: its lease has run out", self.run_id)
            return
        delay = b' {"delay":%d}' % int(delay_s * 1e9) if delay_s > 0 else b""
        try:
            await self._bus.request(self._reply, b"-NAK" + delay)
        except BusError as exc:
            log.warning("run %s was not given back, so its lease must run out: %s", self.run_id, exc)

    async def terminate(self, reason: str) -> None:
        """Say that nobody should get this request again.

        Raises:
            BusError: It was not confirmed; the request may be delivered again.
        """
        await self._bus.request(self._reply, b"+TERM " + reason.encode("utf-8", "replace")[:512])


class Pickup:
    """The pull loop of one daemon.

    ``deliver`` must not block, and must have taken the slot when it returns: ``free_slots`` is asked again after it.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        pool: str = DEFAULT_POOL,
        free_slots: Callable[[], int],
        deliver: Callable[[Delivery], None],
        lease_s: float = 15.0,
        heartbeat_s: float = _HEARTBEAT_S,
    ) -> None:
        """Prepare to pull.

        Args:
            bus: An open connection.
            pool: Whose queue.
            free_slots: Returns how many requests may be taken now.
            deliver: Called with each request.
            lease_s: The lease of the pool.
            heartbeat_s: How often the server shows that a pull is alive; more often where pulls are short.
        """
        self._bus = bus
        self._pool = pool
        self._stream = log_stream(pool)
        self._next = f"{bus.api}.CONSUMER.MSG.NEXT.{self._stream}.{CONSUMER}"
        self._ack_prefix = f"$JS.ACK.{self._stream}.{CONSUMER}."
        self._free_slots = free_slots
        self._deliver = deliver
        self._lease_s = lease_s
        self._heartbeat_s = heartbeat_s
        self._changed = asyncio.Event()
        self._inbox = bus.new_inbox()
        self._pulls = 0
        self._outstanding = 0
        """How many requests the pull may still bring."""
        self._pulled_at = 0.0
        self._heard_at = 0.0
        self._silence_s = 0.0
        """How long the pull may be without a heartbeat."""
        self._backoff_s = 0.0
        self._not_before = 0.0
        self._unsure = False
        """Whether the consumer must answer before the next pull; one that we cannot hear would swallow requests."""
        self._problem: BusError | None = None
        self._unwanted: list[Delivery] = []
        self._unusable: list[Delivery] = []
        self._stop = asyncio.Event()

    def wake(self) -> None:
        """Look at the free slots again."""
        self._changed.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Hand out requests until told to stop; what arrives while stopping goes back to the queue.

        Raises:
            BusDenied: NATS does not let us in any more.
            BusError: The consumer does not exist any more, or this role may not pull from it.
        """
        self._stop = stop
        subscription = await self._bus.subscribe(f"{self._inbox}.*", self._take)
        removers = (
            self._bus.on_reconnect(self._forget),
            self._bus.on_denied(self._next, self._fail),
            self._bus.on_shut_out(self._fail),
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                notice = tasks.create_task(self._notice(stop))
                await self._serve(stop)
                notice.cancel()
        finally:
            self._stop = asyncio.Event()
            self._stop.set()  # whatever ended the loop, what still comes goes back
            for remove in removers:
                remove()
            await subscription.drain()
            await self._give_back()
        if self._problem is not None:
            raise self._problem

    async def _notice(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._changed.set()

    async def _serve(self, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        while not stop.is_set() and self._problem is None:
            self._changed.clear()
            await self._give_back()
            if self._unsure and loop.time() >= self._not_before:
                await self._check_consumer()
            free = min(self._free_slots(), _MAX_BATCH)
            ready = not self._unsure and not self._outstanding and loop.time() >= self._not_before
            if free > 0 and ready and self._bus.connected:
                await self._pull(free)
            await self._wait()

    async def _pull(self, batch: int) -> None:
        self._pulls += 1
        self._outstanding = batch
        self._heard_at = self._pulled_at = asyncio.get_running_loop().time()
        # The server serves the oldest pull first. Equal lengths would keep daemons in one order, and what the first of
        # them gives back after a pause would come to it again and again.
        longest_s = min(self._lease_s / _PULLS_PER_LEASE, _LONGEST_PULL_S)
        expires_s = random.uniform(longest_s / 2, longest_s)
        heartbeat_s = min(self._heartbeat_s, expires_s / 2)  # the server allows no longer one
        self._silence_s = _SILENT_HEARTBEATS * heartbeat_s
        query = {"batch": batch, "expires": int(expires_s * 1e9), "idle_heartbeat": int(heartbeat_s * 1e9)}
        try:
            await self._bus.publish(self._next, json.dumps(query).encode(), reply=f"{self._inbox}.{self._pulls}")
        except BusError as exc:
            self._fail(exc)

    async def _wait(self) -> None:
        """Sleep until something changes: a message, a free slot, a reconnect, the end of a pause, silence."""
        now, limit = asyncio.get_running_loop().time(), None
        if now < self._not_before:
            limit = self._not_before - now
        elif self._outstanding:
            limit = max(0.0, self._heard_at + self._silence_s - now)
        try:
            async with asyncio.timeout(limit):
                await self._changed.wait()
        except TimeoutError:
            silent_s = asyncio.get_running_loop().time() - self._heard_at
            if self._outstanding and silent_s >= self._silence_s:
                log.warning("the pull for requests fell silent; it is repeated when NATS answers")
                self._outstanding, self._unsure = 0, True

    def _take(self, msg: Msg) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        # A stored message can carry a forged status; only the server can set this reply.
        if msg.reply.startswith(self._ack_prefix):
            self._take_request(Delivery(self._bus, msg, lease_s=self._lease_s, pulled_at=self._pulled_at))
        elif msg.subject == f"{self._inbox}.{self._pulls}" and msg.status != "100":
            self._take_status(msg)

    def _take_request(self, delivery: Delivery) -> None:
        self._outstanding = max(0, self._outstanding - 1)
        self._backoff_s = 0.0
        try:
            check_run_id(delivery.run_id)
        except BadMessage as exc:
            log.warning("a request was dropped: %s", exc)
            self._unusable.append(delivery)
        else:
            if delivery.lapsed:
                log.info("run %s came more than a lease after it was asked for; left to other daemons", delivery.run_id)
            # A pull that was given up after silence may still bring something: more than there is room for.
            elif self._stop.is_set() or self._free_slots() <= 0:
                self._unwanted.append(delivery)
            else:
                self._deliver(delivery)
        if not self._outstanding or self._unwanted or self._unusable:
            self._changed.set()

    def _take_status(self, msg: Msg) -> None:
        """End the pull: any status but a heartbeat does."""
        words = msg.headers.get("Description", "")
        self._outstanding = 0
        self._unsure = msg.status == "503"
        if msg.status == "409" and "Consumer Deleted" in words:
            self._fail(self._deleted())
        elif msg.status not in ("404", "408"):
            log.info("the pull for requests ended: %s %s", msg.status, words)
            self._backoff_s = min(max(_BACKOFF_S, 2 * self._backoff_s), _MAX_BACKOFF_S)
            self._not_before = asyncio.get_running_loop().time() + self._backoff_s
        self._changed.set()

    def _forget(self) -> None:
        """The pull went with the connection."""
        self._outstanding, self._unsure = 0, False
        self._backoff_s = self._not_before = 0.0
        self._changed.set()

    def _fail(self, error: BusError) -> None:
        self._problem = self._problem or error
        self._changed.set()

    def _deleted(self) -> BusError:
        return BusError(
            f"The consumer {CONSUMER!r} of stream {self._stream} does not exist any more. Start the daemon again where "
            f"it may create it, or let an admin run `{provision_command(self._pool)} --nats URL --creds ADMIN`.",
            retryable=False,
        )

    async def _check_consumer(self) -> None:
        """Tell a consumer without a leader, which comes back, from one that does not exist; wait for an answer."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                await call(self._bus, f"CONSUMER.INFO.{self._stream}.{CONSUMER}")
        except JetStreamRefused as refused:
            if refused.err_code in _GONE:
                self._fail(self._deleted())
        except (BusError, TimeoutError) as exc:
            log.info(
                "the consumer %s of %s does not answer: %s", CONSUMER, self._stream, str(exc) or "no answer in time"
            )
            self._not_before = asyncio.get_running_loop().time() + _BACKOFF_S
            return
        self._unsure = False

    async def _give_back(self) -> None:
        unwanted, self._unwanted = self._unwanted, []
        unusable, self._unusable = self._unusable, []
        async with asyncio.TaskGroup() as tasks:
            for delivery in unwanted:
                tasks.create_task(delivery.release())
            for delivery in unusable:
                tasks.create_task(_drop(delivery))


async def _drop(delivery: Delivery) -> None:
    try:
        await delivery.terminate("its subject does not hold a run id")
    except BusError as exc:
        log.warning("a request that cannot be used was not dropped yet: %s", exc)


async def queue_depth(bus: Bus, *, pool: str = DEFAULT_POOL) -> int:
    """Return how many events wait for a daemon of a pool.

    Raises:
        BusError: NATS did not answer.
    """
    return (await queue_state(bus, pool=pool)).waiting


async def queue_state(bus: Bus, *, pool: str = DEFAULT_POOL) -> QueueState:
    """Return how far the daemons of a pool are with its queue.

    Raises:
        BusError: NATS did not answer.
    """
    info = await call(bus, f"CONSUMER.INFO.{log_stream(pool)}.{CONSUMER}")
    return QueueState(int(info["num_pending"]), int((info.get("delivered") or {}).get("stream_seq", 0)))
