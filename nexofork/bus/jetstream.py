"""Talk to JetStream by its own subjects: call its API, store a message, read its refusals.

Every role reaches the API under the domain ``fork``, with and without accounts, so that code is the same for all. A
plain server without that domain, and an admin in the account that owns JetStream, are reached under ``$JS.API``; which
one it is shows when the connection is opened.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

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
    from collections.abc import Mapping

    from nexofork.bus.connection import Bus, Msg

__all__ = ["API", "EXPECTED_LAST", "PLAIN_API", "call", "expect_last", "find_api", "store"]

API = f"$JS.{DOMAIN}.API"
PLAIN_API = "$JS.API"
"""For a server without the domain, and for an admin who logs in to the account that owns JetStream."""

EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"
"""The header of a compare-and-set; it stays on the message, so a reader knows what it was appended behind."""

_WRONG_LAST = 10071
_IN_FLIGHT = 10164  # on a replicated stream: a write under the same filter is not decided yet
_STORE_FAILED = 10077
_NO_RESOURCES = (10002, 10023, 10028, 10047)  # of the account, the server, its memory, its disk


async def find_api(bus: Bus) -> str:
    """Return the prefix this connection reaches JetStream under; the domain's where that cannot be told yet."""
    probe = f"STREAM.INFO.{log_stream()}"
    try:
        await bus.request(f"{API}.{probe}", b"")
    except NotPermitted:
        return PLAIN_API
    except NoResponders:
        try:
            await bus.request(f"{PLAIN_API}.{probe}", b"")
        except BusError:
            return API
        return PLAIN_API
    except BusError:
        return API
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
