"""One connection to NATS: requests with an inbox of their own, subscriptions that outlive reconnects.

A request fails with the reason: not permitted (the server's violation, which nats-py would show as a timeout), nobody
there, connection broken, or no answer in time. After the last two the outcome is unknown, so whoever publishes to a
stream must be able to ask again. A request made while the connection is down waits for it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import secrets
import ssl
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

from nats import errors as nats_errors

from nexofork.bus.admission import FIRST_PAUSE_S, Admission, is_denial, not_connected, spoken, trust
from nexofork.bus.client import SturdyClient
from nexofork.bus.credentials import read_login
from nexofork.bus.exchange import Exchange
from nexofork.bus.failures import (
    BusDenied,
    BusUnreachable,
    ConnectionLost,
    NoAnswer,
    NoResponders,
    NotPermitted,
    PayloadTooLarge,
)
from nexofork.bus.jetstream import API, Waits, call, find_api, retry
from nexofork.bus.subscription import Msg, Reply, Subscription
from nexofork.errors import BusError
from nexofork.wire.streams import fill_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from nats.aio.msg import Msg as NatsMsg

__all__ = [
    "Bus",
    "BusDenied",
    "BusSettings",
    "BusUnreachable",
    "Msg",
    "PayloadTooLarge",
    "Reply",
    "Subscription",
    "open_bus",
]

log = logging.getLogger(__name__)

_VIOLATION = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')
_FILL_AGE_S = 1.0
_FIRST_TRIES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BusSettings:
    """Where NATS is and who we are."""

    urls: tuple[str, ...] = ("nats://127.0.0.1:4222",)
    creds: Path | None = None
    """A credentials file: a user token and its seed."""
    nkey_seed: Path | None = None
    """A file with an nkey seed alone."""
    ca: Path | None = None
    """The authority that signed the server's certificate; with it, a server without TLS is refused."""
    name: str = "nexofork"
    """What the server's monitoring calls this connection."""
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 5.0
    denied_s: float = 5.0
    """How long a server that has let us in before may refuse us until that is an error."""
    patience_s: float = 60.0
    """How long a step is tried again while NATS restarts or elects a leader."""
    unreached_s: float = 0.0
    """How long the first connection is tried again while no server is reached. Not at all by default: a wrong URL is
    told at once."""


class Bus:
    """A connection; made by ``open_bus``."""

    def __init__(self, settings: BusSettings, waits: Waits | None = None) -> None:
        self.settings = settings
        self.waits = waits or Waits()
        """Which steps wait for NATS to answer again."""
        login = read_login(settings.creds, settings.nkey_seed)
        self.identity = login.identity
        """The public nkey, or ``local`` without one."""
        self.api = API
        """The prefix under which JetStream is reached."""
        self._login_options = login.options | trust(settings.ca)
        self._admission = Admission(settings, self.identity)
        self._client = SturdyClient()
        self._online = asyncio.Event()
        self._closed = False
        self._inbox = f"_INBOX.{self.identity}.{secrets.token_hex(12)}"
        self._inbox_denied = False
        self._tokens = itertools.count()
        self._exchanges: dict[str, Exchange] = {}
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._on_reconnect: list[Callable[[], None]] = []
        self._on_shut_out: list[Callable[[BusError], None]] = []
        self._on_denied: dict[str, list[Callable[[BusError], None]]] = {}
        self._violations: deque[tuple[str, str]] = deque(maxlen=100)
        self._last_problem: Exception | None = None
        self._opening: asyncio.Timeout | None = None
        self._fill: dict[str, tuple[float, float]] = {}

    @property
    def connected(self) -> bool:
        """Whether the connection is up now."""
        return self._online.is_set() and self._client.is_connected

    @property
    def reconnects(self) -> int:
        """How often the connection was restored."""
        return self._client.stats["reconnects"]

    @property
    def max_payload(self) -> int:
        """The most bytes a message may have, headers included."""
        return self._client.max_payload

    def new_inbox(self) -> str:
        """Return a subject that the server lets only us subscribe to."""
        return f"{self._inbox}x.{next(self._tokens)}"

    async def request(
        self, subject: str, data: bytes, *, headers: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> Reply:
        """Send a request and return the first answer.

        Raises:
            NotPermitted: The server does not let us publish there.
            NoResponders: Nobody listens there.
            PayloadTooLarge: It was not sent.
            BusDenied: The server does not let us in any more; it was not sent, or the outcome is unknown.
            NoAnswer: Nothing came in time; the outcome is unknown.
            ConnectionLost: The connection broke; the outcome is unknown.
            BusError: The connection was closed.
        """
        reply = (await self.collect(subject, data, headers=headers, is_last=_always, timeout_s=timeout_s))[0]
        if _nobody(reply):
            raise NoResponders(subject)
        return reply

    async def collect(
        self,
        subject: str,
        data: bytes,
        *,
        is_last: Callable[[Msg], bool],
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> list[Msg]:
        """Send a request and return all its answers, up to and with the last one.

        Args:
            subject: Where to.
            data: The request.
            is_last: Tells the answer that ends it.
            headers: Of the request.
            timeout_s: How long the next answer may take.

        Raises:
            BusError: As ``request``; a missing responder is an answer here.
        """
        self._guard(subject, data, headers)
        if self._admission.refusal is not None:
            raise self._admission.refusal
        token, limit = str(next(self._tokens)), timeout_s or self.settings.request_timeout_s
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(limit) as scope:
                exchange = Exchange(subject=subject, is_last=is_last, timeout_s=limit, done=done, scope=scope)
                self._exchanges[token] = exchange
                await self._online.wait()
                exchange.sent = True
                await self._send(subject, data, headers, reply=f"{self._inbox}.{token}")
                await done
        except TimeoutError:
            raise self._no_answer(subject, limit) from None
        finally:
            self._exchanges.pop(token, None)
            if done.done() and not done.cancelled():
                done.exception()  # seen, whoever ended the wait
        return exchange.replies

    async def publish(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, *, reply: str = ""
    ) -> None:
        """Send a message over core NATS: at most once, kept for the next connection while there is none.

        Raises:
            PayloadTooLarge: It was not sent.
            BusError: The connection was closed, or too much is waiting for it.
        """
        self._guard(subject, data, headers)
        await self._send(subject, data, headers, reply=reply)

    async def subscribe(self, subject: str, handler: Callable[[Msg], Awaitable[None] | None]) -> Subscription:
        """Call the handler for each message, one after the other; what it raises is logged and forgotten.

        Raises:
            BusError: The connection was closed, or the subject is not one.
        """
        subscription = Subscription(self, self._client, subject, handler)
        self._subscriptions.add(subscription)
        try:
            await subscription.begin()
        except nats_errors.Error as exc:
            raise self._problem(subject, exc) from exc
        return subscription

    def on_reconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after each reconnect, when subscriptions are in place again; returns the remover."""
        self._on_reconnect.append(callback)
        return lambda: self._on_reconnect.remove(callback)

    def on_shut_out(self, callback: Callable[[BusError], None]) -> Callable[[], None]:
        """Call back when the server does not let us in any more, and that is final; returns the remover."""
        self._on_shut_out.append(callback)
        return lambda: self._on_shut_out.remove(callback)

    def on_denied(self, subject: str, callback: Callable[[BusError], None]) -> Callable[[], None]:
        """Call back when the server does not permit a publish to the subject; returns the remover."""
        watchers = self._on_denied.setdefault(subject.lower(), [])
        watchers.append(callback)
        return lambda: watchers.remove(callback)

    async def flushed(self) -> None:
        """Return when the server has processed every subscription and message from before this call.

        Raises:
            NoAnswer: It did not confirm in time.
        """
        limit = self.settings.request_timeout_s
        try:
            async with asyncio.timeout(limit):
                while not await self._confirmed():
                    pass
        except TimeoutError:
            raise self._no_answer("PING", limit) from None

    async def stream_fill(self, stream: str) -> float:
        """Return how full a stream is, from 0 to 1; known for a second.

        Raises:
            BusError: The server did not say.
        """
        now = asyncio.get_running_loop().time()
        asked_at, fill = self._fill.get(stream, (-_FILL_AGE_S, 0.0))
        if now - asked_at >= _FILL_AGE_S:
            fill = fill_of(await call(self, f"STREAM.INFO.{stream}"))
            self._fill[stream] = (now, fill)
        return fill

    async def _confirmed(self) -> bool:
        await self._online.wait()
        before = self.reconnects
        while self._client.pending_data_size and self.connected:  # noqa: ASYNC110 - its writer has no event
            await asyncio.sleep(0)
        # nats-py's flush pings before what is pending, and a flush that is cancelled ends its read loop later on, when
        # the answer meets the cancelled future. Hence an own, shielded future behind what is written.
        pong: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        await self._client._send_ping(pong)
        while not pong.done():
            if not self.connected or self.reconnects != before:
                return False
            await asyncio.wait((pong,), timeout=0.5)
        return True

    async def _open(self) -> None:
        settings = self.settings
        self._client, self._last_problem = SturdyClient(), None  # nats-py cannot open a client again
        try:
            async with asyncio.timeout(settings.connect_timeout_s) as self._opening:
                await self._client.connect(
                    list(settings.urls),
                    name=settings.name,
                    error_cb=self._noticed,
                    disconnected_cb=self._disconnected,
                    reconnected_cb=self._reconnected,
                    connect_timeout=settings.connect_timeout_s,  # type: ignore[arg-type]  # it goes to wait_for
                    reconnect_time_wait=FIRST_PAUSE_S,  # type: ignore[arg-type]  # it goes to sleep
                    max_reconnect_attempts=_FIRST_TRIES,
                    ping_interval=5,
                    pending_size=64 << 20,
                    inbox_prefix=f"_INBOX.{self.identity}",
                    **self._login_options,
                )
        except (TimeoutError, nats_errors.Error, OSError) as exc:
            await self._shut()
            raise not_connected(settings, exc, self._last_problem) from exc
        except BaseException:
            await self._shut()
            raise
        # The first connection is tried thrice, so that a wrong URL is said at once; a lost one is restored for ever.
        self._client.options["max_reconnect_attempts"] = -1
        self._last_problem = self._opening = None
        self._online.set()
        await self._client.subscribe(f"{self._inbox}.*", cb=self._answered)

    async def _close(self) -> None:
        self._closed = True
        for exchange in self._exchanges.values():
            exchange.fail(self._gone(exchange.subject))
        await self._shut()
        self._online.set()  # whoever waits for the connection learns that there will be none

    async def _shut(self) -> None:
        if self._client.options:  # else nats-py did not get as far as to have anything to close
            await self._client.close()

    async def _send(self, subject: str, data: bytes, headers: Mapping[str, str] | None, *, reply: str) -> None:
        if self._closed:
            raise self._gone(subject)
        if reply and self._inbox_denied:
            raise NotPermitted("subscription", f"{self._inbox}.*", self.identity)
        try:
            await self._client.publish(subject, data, reply=reply, headers=dict(headers) if headers else None)
        except nats_errors.Error as exc:
            raise self._problem(subject, exc) from exc

    def _guard(self, subject: str, data: bytes, headers: Mapping[str, str] | None) -> None:
        # The server counts the header block and closes the connection of whoever sends too much.
        size = len(data) + _header_bytes(headers)
        if size > self.max_payload:
            raise PayloadTooLarge(subject, size=size, limit=self.max_payload)

    async def _answered(self, raw: NatsMsg) -> None:
        exchange = self._exchanges.get(raw.subject.rpartition(".")[2])
        if exchange is not None:
            exchange.take(Msg.of(raw))

    async def _disconnected(self) -> None:
        if not self._closed and self._online.is_set():
            log.warning("the connection to NATS was lost; reconnecting")
        self._online.clear()
        for exchange in list(self._exchanges.values()):
            exchange.fail(ConnectionLost(exchange.subject))

    async def _reconnected(self) -> None:
        log.info("the connection to NATS was restored")
        self._admission.let_in()
        self._pause()
        self._online.set()
        for callback in list(self._on_reconnect):
            try:
                callback()
            except Exception:
                log.exception("a listener failed after the reconnect")

    async def _noticed(self, error: Exception) -> None:
        if not is_denial(self._last_problem):  # a server that refuses us may reset the next try before it says so
            self._last_problem = error
        if isinstance(error, ssl.SSLCertVerificationError) and self._opening and not self._online.is_set():
            # Trying again will not help, and nats-py would wait for the rest of a handshake that ended.
            self._opening.reschedule(asyncio.get_running_loop().time())
        if found := _VIOLATION.search(str(error)):
            self._violated(found[1], found[2])
        elif self._online.is_set():
            log.warning("NATS: %s", error)
        else:
            log.debug("NATS, while connecting: %s", error)
            if self._opening is None and is_denial(error):
                self._refused(spoken(error))

    def _refused(self, words: str) -> None:
        """Let the next try wait longer, and say so where there is no more use in waiting."""
        refusal = self._admission.refused(words)
        self._pause()
        if refusal is not None:
            for callback in list(self._on_shut_out):
                callback(refusal)

    def _pause(self) -> None:
        self._client.options["reconnect_time_wait"] = self._admission.pause_s

    def _violated(self, action: str, subject: str) -> None:
        """Tell whoever waits for it, or the log where nobody does. nats-py gives the server's words in lower case."""
        waiting = [exchange for exchange in self._exchanges.values() if exchange.subject.lower() == subject]
        watching = list(self._on_denied.get(subject, ()))
        told = action == "publish" and (waiting or watching)
        news = logging.DEBUG if told or (action, subject) in self._violations else logging.WARNING
        log.log(news, "NATS does not permit %s: %s to %r", self.identity, action, subject)
        self._violations.append((action, subject))
        if action == "subscription":
            self._not_subscribed(subject)
            return
        for exchange in waiting:
            exchange.fail(NotPermitted(action, exchange.subject, self.identity))
        for callback in watching:
            callback(NotPermitted(action, subject, self.identity))

    def _not_subscribed(self, subject: str) -> None:
        if subject == f"{self._inbox}.*".lower():  # no answer will ever come
            self._inbox_denied = True
            for exchange in list(self._exchanges.values()):
                exchange.fail(NotPermitted("subscription", f"{self._inbox}.*", self.identity))
        for subscription in self._subscriptions:
            if subscription.subject.lower() == subject:
                subscription.denied = NotPermitted("subscription", subscription.subject, self.identity)

    def _no_answer(self, subject: str, limit: float) -> BusError:
        return self._admission.refusal or NoAnswer(
            subject, limit, state="" if self.connected else self._admission.state
        )

    def _problem(self, subject: str, error: Exception) -> BusError:
        if isinstance(error, nats_errors.ConnectionClosedError):
            return self._gone(subject)
        full = isinstance(error, nats_errors.OutboundBufferLimitError)
        return BusError(f"NATS did not take {subject!r}: {error}.", retryable=full)

    def _gone(self, subject: str) -> BusError:
        return BusError(f"The connection to NATS was closed before {subject!r} was done.", retryable=False)


@asynccontextmanager
async def open_bus(settings: BusSettings, *, told: Callable[[str], None] | None = None) -> AsyncIterator[Bus]:
    """Connect, and close at the end.

    Args:
        settings: Where to, and how long to wait for it.
        told: As `Waits` takes it.

    Raises:
        BusUnreachable: No server answered within ``connect_timeout_s``, nor again within ``unreached_s``.
        BusDenied: The credentials are not accepted.
        ServerNotTrusted: The server's certificate is not.
        BusError: Where JetStream is could not be found out within ``patience_s``.
    """
    bus = Bus(settings, Waits(told))
    await retry(bus, bus._open, limit_s=settings.unreached_s)
    try:
        bus.api = await retry(bus, lambda: find_api(bus), limit_s=max(settings.patience_s, settings.unreached_s))
        yield bus
    finally:
        await bus._close()


def _always(_: Msg) -> bool:
    return True


def _nobody(reply: Msg) -> bool:
    # A stored message can carry a forged status, but not without the server naming its stream.
    return reply.status == "503" and not reply.data and "Nats-Stream" not in reply.headers


def _header_bytes(headers: Mapping[str, str] | None) -> int:
    if not headers:
        return 0
    lines = sum(len(key.encode()) + len(value.encode()) + len(": \r\n") for key, value in headers.items())
    return len("NATS/1.0\r\n") + lines + len("\r\n")
