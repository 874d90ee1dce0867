"""Talk to JetStream by its own subjects: call its API, store a message, read its refusals, wait for it to come back.

Every role reaches the API under the domain ``fork``, with and without accounts, so that code is the same for all. A
plain server without that domain, and an admin in the account that owns JetStream, are reached under ``$JS.API``; which
one it is shows when the connection is opened.

A server that restarts, and a cluster that elects a leader, answer again after seconds. `Tries` is the one policy for
that: pauses that grow up to a second, for as long as the connection's settings say.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
from typing import TYPE_CHECKING, Any, Self, TypeVar

from nexofork.bus.failures import (
    AlreadyStored,
    JetStreamRefused,
    NoAnswer,
    NoResponders,
    NotPermitted,
    NotStored,
    StoreFull,
    WrongTip,
)
from nexofork.errors import BusError
from nexofork.wire.streams import DOMAIN, log_stream, stream_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from nexofork.bus.connection import Bus, Msg

__all__ = [
    "API",
    "EXPECTED_LAST",
    "PLAIN_API",
    "Tries",
    "Waits",
    "call",
    "expect_last",
    "find_api",
    "pause_s",
    "retry",
    "store",
]

log = logging.getLogger(__name__)

T = TypeVar("T")

API = f"$JS.{DOMAIN}.API"
PLAIN_API = "$JS.API"
"""For a server without the domain, and for an admin who logs in to the account that owns JetStream."""

EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"
"""The header of a compare-and-set; it stays on the message, so a reader knows what it was appended behind."""

_WRONG_LAST = 10071
_IN_FLIGHT = 10164  # on a replicated stream: a write under the same filter is not decided yet
_STORE_FAILED = 10077
_NO_RESOURCES = (10002, 10023, 10028, 10047)  # of the account, the server, its memory, its disk
_FIRST_PAUSE_S = 0.004
_LONGEST_PAUSE_S = 1.0
_MOMENT_S = 1.0
"""A shorter wait is not worth a line."""
_ADVICE = (
    "It was tried for {:.0f} s. See that the NATS servers run and reach each other (a cluster needs more than half of "
    "them; `nexofork doctor` says more), then try again."
)


def pause_s(count: int) -> float:
    """Return how long to wait after so many failures; not the same for all who wait."""
    longest = math.ldexp(_FIRST_PAUSE_S, min(count, 20))
    return min(longest, _LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)


class Waits:
    """What the steps of one connection wait for: logged once for each kind of failure, and once when it is over."""

    def __init__(self, told: Callable[[str], None] | None = None) -> None:
        """Start with nothing to wait for.

        Args:
            told: Called at every try with the failure, and with an empty text when the wait is over. Given by who
                goes on waiting when the time of a step is over.
        """
        self._told = told
        self._steps = 0
        self._since = 0.0
        self._logged: set[type[BusError]] = set()

    def begin(self, since: float) -> None:
        """Count one more step that waits."""
        if not self._steps:
            self._since = since
            self._logged.clear()
        self._steps += 1

    def failed(self, error: BusError, limit_s: float) -> None:
        """Take note of what a step waits for."""
        if self._told is not None:
            self._told(str(error))
        if type(error) not in self._logged:
            self._logged.add(type(error))
            log.warning("waiting%s: %s", f" for up to {limit_s:g} s" if self._told is None else "", error)

    def end(self, *, succeeded: bool) -> None:
        """Count one step less."""
        self._steps -= 1
        if succeeded and not self._steps:
            if self._told is not None:
                self._told("")
            log.warning("NATS answers again after %.0f s; going on", asyncio.get_running_loop().time() - self._since)


class Tries:
    """A context for one step that is tried again, after pauses that grow, while NATS may come back."""

    def __init__(self, bus: Bus, limit_s: float | None = None, *, final: tuple[type[BusError], ...] = ()) -> None:
        """Begin to count the time.

        Args:
            bus: The connection.
            limit_s: How long to try; None is what the connection's settings say.
            final: Failures that another try does not heal, besides those that say so themselves.
        """
        self.count = 0
        """How many pauses there were."""
        self._waits = bus.waits
        self._limit_s = bus.settings.patience_s if limit_s is None else limit_s
        self._speaks = self._limit_s >= bus.settings.patience_s
        # Who waits without an end also waits until there is room.
        self._final = (AlreadyStored, *final, *(() if math.isinf(self._limit_s) else (StoreFull,)))
        self._began = asyncio.get_running_loop().time()
        self._last: BusError | None = None
        self._waiting = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._waiting:
            self._waits.end(succeeded=kind is None)

    @property
    def spent_s(self) -> float:
        """How long it has been tried."""
        return asyncio.get_running_loop().time() - self._began

    def note(self, error: BusError) -> None:
        """Keep a failure that is no outage, to be raised if the time runs out."""
        self._last = error

    def check(self, error: BusError) -> None:
        """Go on after a failure that may heal; its outcome may be unknown.

        Raises:
            BusError: It does not heal.
        """
        if not error.retryable or isinstance(error, self._final):
            raise error
        self._last = error
        if not self._speaks or self.spent_s < min(_MOMENT_S, self._limit_s):
            return
        if not self._waiting:
            self._waiting = True
            self._waits.begin(self._began)
        self._waits.failed(error, self._limit_s)

    async def pause(self) -> None:
        """Wait, longer each time, and not beyond the limit.

        Raises:
            BusError: The time is over; it is the last failure.
        """
        self.count += 1
        if (left_s := self._limit_s - self.spent_s) <= 0:
            assert self._last is not None, "a pause follows a failure"
            if self._waiting and "It was tried for" not in str(self._last):
                self._last.args = (f"{self._last} {_ADVICE.format(self.spent_s)}",)
            raise self._last
        await asyncio.sleep(min(pause_s(self.count), left_s))

    async def run(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what is asked for, asking again until it comes.

        Raises:
            BusError: It did not come in time, or never will.
        """
        while True:
            try:
                return await ask()
            except BusError as exc:
                self.check(exc)
            await self.pause()


async def retry(
    bus: Bus,
    ask: Callable[[], Awaitable[T]],
    *,
    limit_s: float | None = None,
    final: tuple[type[BusError], ...] = (),
) -> T:
    """Ask until there is an answer; for what may be done twice. The arguments are those of `Tries`.

    Raises:
        BusError: There was none in time, or there never will be.
    """
    with Tries(bus, limit_s, final=final) as tries:
        return await tries.run(ask)


async def find_api(bus: Bus) -> str:
    """Return the prefix this connection reaches JetStream under; the domain's where it is not reached at all.

    Raises:
        BusError: That cannot be told yet.
    """
    probe = f"STREAM.INFO.{log_stream()}"
    try:
        await bus.request(f"{API}.{probe}", b"")
    except NotPermitted:
        return PLAIN_API
    except NoResponders:
        try:
            await bus.request(f"{PLAIN_API}.{probe}", b"")
        except (NotPermitted, NoResponders):
            return API
        return PLAIN_API
    except NoAnswer as silent:
        if silent.state:
            raise
        return API  # it is there, and has no leader at the moment
    return API


async def call(bus: Bus, subject: str, payload: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Call the JetStream API and return its answer.

    Args:
        bus: The connection.
        subject: Without the prefix, as ``STREAM.INFO.FORK``.
        payload: The request, as JSON.

    Raises:
        JetStreamRefused: The answer is an error.
        BusError: There was no answer.
    """
    full = f"{bus.api}.{subject}"
    return _answer(full, await bus.request(full, b"" if payload is None else json.dumps(payload).encode()))


async def store(
    bus: Bus, subject: str, data: bytes, *, headers: Mapping[str, str] | None = None, timeout_s: float | None = None
) -> int:
    """Store a message and return its sequence once JetStream has confirmed it.

    Raises:
        WrongTip: The compare-and-set in the headers lost.
        AlreadyStored: The subject takes no more messages.
        StoreFull: The stream has no more room.
        PayloadTooLarge: It was not sent.
        NotStored: The stream is there and did not confirm it; its server's disk may be full.
        BusError: There was no answer, so it may be stored or not.
    """
    try:
        answer = _answer(subject, await bus.request(subject, data, headers=headers, timeout_s=timeout_s))
    except NoAnswer as silent:
        stream = stream_of(subject)
        if silent.state or stream is None or not await _has(bus, stream):
            raise
        raise NotStored(subject, stream=stream, timeout_s=silent.timeout_s) from silent
    try:
        return int(answer["seq"])
    except (KeyError, TypeError, ValueError) as exc:
        raise _not_jetstream(subject) from exc


def expect_last(seq: int, filter_: str) -> dict[str, str]:
    """Return the headers that make a write a compare-and-set over a filter.

    On a replicated stream only writes that name the identical filter see each other while they are under way.
    """
    return {
        EXPECTED_LAST: str(seq),
        "Nats-Expected-Last-Subject-Sequence-Subject": filter_,
    }


async def _has(bus: Bus, stream: str) -> bool:
    """Whether the server answers for a stream."""
    try:
        await call(bus, f"STREAM.INFO.{stream}")
    except BusError:
        return False
    return True


def _answer(subject: str, reply: Msg) -> dict[str, Any]:
    try:
        answer = json.loads(reply.data)
    except (ValueError, RecursionError) as exc:
        raise _not_jetstream(subject) from exc
    if not isinstance(answer, dict):
        raise _not_jetstream(subject)
    error = answer.get("error")
    if isinstance(error, dict):
        raise _refusal(subject, error)
    return answer


def _refusal(subject: str, error: Mapping[str, Any]) -> BusError:
    err_code, description = int(error.get("err_code", 0)), str(error.get("description", "no reason given"))
    if err_code in _NO_RESOURCES or (err_code == _STORE_FAILED and "per subject" not in description):
        return StoreFull(subject, description)
    kind = JetStreamRefused
    if err_code in (_WRONG_LAST, _IN_FLIGHT):
        kind = WrongTip
    elif err_code == _STORE_FAILED:
        kind = AlreadyStored
    return kind(subject, code=int(error.get("code", 0)), err_code=err_code, description=description)


def _not_jetstream(subject: str) -> BusError:
    return BusError(f"Something that is not JetStream answered on {subject!r}.", retryable=False)
