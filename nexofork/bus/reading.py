"""Read what a stream holds, and store what it takes only once.

Decisions are made on ``last_of``, which the stream's leader answers; everything else may come from a replica that is a
moment behind. A message is data only if the server names its stream and subject: a stored message can forge a status,
but not the absence of these.
"""

from __future__ import annotations

import base64
import binascii
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from nexofork.bus.failures import AlreadyStored, JetStreamRefused, NoResponders
from nexofork.bus.jetstream import Tries, call, retry, store
from nexofork.errors import BusError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexofork.bus.connection import Bus, Msg

__all__ = [
    "Stored",
    "first_few",
    "first_of",
    "last_direct",
    "last_of",
    "last_of_many",
    "read_subject",
    "store_once",
    "stored_at",
]

_NOT_FOUND = 10037
_PAGE = 512
_PAGE_BYTES = 8 << 20  # far below what the client buffers for one subscription before it drops messages
_FILTERS = 256
_GAPS = 2  # requests without an answer


class Stored(NamedTuple):
    """A message of a stream."""

    seq: int
    subject: str
    data: bytes
    headers: Mapping[str, str]


async def last_of(bus: Bus, stream: str, subject_or_filter: str) -> Stored | None:
    """Return the newest message that matches, as the stream's leader knows it.

    Raises:
        BusError: It cannot be read.
    """
    return await _from_leader(bus, stream, {"last_by_subj": subject_or_filter})


async def first_of(bus: Bus, stream: str, subject_or_filter: str, *, start_seq: int = 1) -> Stored | None:
    """Return the oldest message that matches from a sequence on, as the stream's leader knows it.

    Raises:
        BusError: It cannot be read.
    """
    return await _from_leader(bus, stream, {"seq": max(start_seq, 1), "next_by_subj": subject_or_filter})


async def first_few(bus: Bus, stream: str, filter_: str, count: int) -> list[Stored]:
    """Return the oldest messages that match, at most so many; a replica may answer.

    Raises:
        BusError: They cannot be read.
    """
    query = {"seq": 1, "next_by_subj": filter_, "batch": count, "max_bytes": _PAGE_BYTES}
    return (await _page(bus, stream, query))[0]


async def last_direct(bus: Bus, stream: str, subject: str) -> Stored | None:
    """Return the newest message of a subject from whichever replica answers; it may be a moment behind.

    Raises:
        BusError: It cannot be read.
    """
    reply = await bus.request(f"{bus.api}.DIRECT.GET.{stream}.{subject}", b"")
    return _stored(reply) if _is_data(reply) else None


async def store_once(
    bus: Bus, stream: str, subject: str, data: bytes, *, limit_s: float | None = None
) -> Stored | None:
    """Store a message under a subject that takes one for ever, trying again while NATS may come back.

    Args:
        bus: The connection.
        stream: Of the subject.
        subject: Where to.
        data: The message. Where several may write, it has to tell them apart.
        limit_s: As `Tries` takes it.

    Returns:
        What stood there before. That is this message where an earlier try had stored it and its answer was lost.

    Raises:
        StoreFull: There is no more room.
        BusError: NATS did not confirm it in time, or does not let us.
    """
    with Tries(bus, limit_s) as tries:
        while True:
            try:
                await store(bus, subject, data)
            except AlreadyStored:
                # The answer may come from a replica that does not have it yet: look again.
                if (found := await tries.run(lambda: last_direct(bus, stream, subject))) is not None:
                    return found
                tries.note(BusError(f"{subject!r} is taken, and what it holds cannot be read.", retryable=True))
            except BusError as exc:
                tries.check(exc)
            else:
                return None
            await tries.pause()


def stored_at(stored: Stored) -> float | None:
    """Return when the server stored a message that was read directly, as Unix time by its own clock."""
    try:
        # Of nine decimals, Python reads six.
        return datetime.fromisoformat(stored.headers["Nats-Time-Stamp"][:26].rstrip("Z") + "+00:00").timestamp()
    except (KeyError, ValueError):
        return None


async def read_subject(
    bus: Bus, stream: str, filter_: str, *, start_seq: int = 1, stored_since: float | None = None
) -> list[Stored]:
    """Return all messages that match, oldest first; a replica may leave out the newest for a moment.

    Args:
        bus: The connection.
        stream: Which stream.
        filter_: A subject or a filter.
        start_seq: Leaves out what stands before this sequence.
        stored_since: Unix time; leaves out what was stored before it, whatever its sequence.

    Raises:
        BusError: They cannot be read.
    """
    start: dict[str, Any] = {"seq": max(start_seq, 1)}
    if stored_since is not None:
        start = {"start_time": datetime.fromtimestamp(stored_since, UTC).isoformat()}
    found: list[Stored] = []
    while True:
        query = {**start, "next_by_subj": filter_, "batch": _PAGE, "max_bytes": _PAGE_BYTES}
        page, end = await _page(bus, stream, query)
        found += page
        if not page or end.headers.get("Nats-Num-Pending", "0") == "0":
            return found
        start = {"seq": page[-1].seq + 1}


async def last_of_many(bus: Bus, stream: str, filters: Sequence[str], *, before_seq: int | None = None) -> list[Stored]:
    """Return the newest message of every subject that matches one of the filters, in the order of the stream.

    Args:
        bus: The connection.
        stream: Which stream.
        filters: Subjects or filters.
        before_seq: Leaves out what stands at this sequence and after it.

    Raises:
        BusError: They cannot be read, or one filter alone matches more subjects than the server answers for (1,024).
    """
    if before_seq is not None and before_seq <= 1:
        return []
    found: dict[int, Stored] = {}
    limit = {} if before_seq is None else {"up_to_seq": before_seq - 1}
    for start in range(0, len(filters), _FILTERS):
        for message in await _newest(bus, stream, filters[start : start + _FILTERS], limit):
            found[message.seq] = message
    return [found[seq] for seq in sorted(found)]


async def _newest(bus: Bus, stream: str, filters: Sequence[str], limit: Mapping[str, int]) -> list[Stored]:
    page, end = await _page(bus, stream, {"multi_last": list(filters), **limit})
    if end.status != "413":
        return page
    if len(filters) == 1:
        raise BusError(f"{filters[0]!r} matches too many subjects of {stream} to read at once.", retryable=False)
    half = len(filters) // 2
    halves = filters[:half], filters[half:]
    return [message for some in halves for message in await _newest(bus, stream, some, limit)]


async def _from_leader(bus: Bus, stream: str, query: Mapping[str, Any]) -> Stored | None:
    try:
        message = (await call(bus, f"STREAM.MSG.GET.{stream}", query))["message"]
    except JetStreamRefused as refused:
        if refused.err_code == _NOT_FOUND:
            return None
        raise
    try:
        data, headers = base64.b64decode(message.get("data", "")), base64.b64decode(message.get("hdrs", ""))
        return Stored(int(message["seq"]), str(message["subject"]), data, _headers(headers))
    except (KeyError, ValueError, binascii.Error) as exc:
        raise BusError(f"The answer about {stream} cannot be read.", retryable=False) from exc


async def _page(bus: Bus, stream: str, query: Mapping[str, Any]) -> tuple[list[Stored], Msg]:
    """Return one batch of messages and the server's closing word; a short gap is waited out."""
    subject = f"{bus.api}.DIRECT.GET.{stream}"

    async def ask() -> list[Msg]:
        answers = await bus.collect(subject, json.dumps(query).encode(), is_last=_is_end)
        if answers[-1].status == "503":
            raise NoResponders(subject)
        return answers

    limit_s = min(_GAPS * bus.settings.request_timeout_s, bus.settings.patience_s)
    *messages, end = await retry(bus, ask, limit_s=limit_s, final=(NoResponders,))
    if end.status not in ("204", "404", "413"):
        words = end.headers.get("Description", "no reason given")
        raise JetStreamRefused(subject, code=400, err_code=0, description=f"{end.status} {words}")
    return [_stored(message) for message in messages], end


def _is_data(msg: Msg) -> bool:
    return "Nats-Stream" in msg.headers and "Nats-Subject" in msg.headers


def _is_end(msg: Msg) -> bool:
    return not _is_data(msg)


def _stored(msg: Msg) -> Stored:
    return Stored(int(msg.headers["Nats-Sequence"]), msg.headers["Nats-Subject"], msg.data, msg.headers)


def _headers(block: bytes) -> dict[str, str]:
    """Read a header block as it is stored."""
    found: dict[str, str] = {}
    for line in block.split(b"\r\n")[1:]:
        key, colon, value = line.partition(b":")
        if colon:
            found[key.strip().decode("utf-8", "replace")] = value.strip().decode("utf-8", "replace")
    return found
