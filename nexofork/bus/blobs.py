"""Contents beside the log, named by their digest: stored once, fetched once per process, checked every time.

A name means one content for ever, because the stream takes one message per subject. Whoever stored something else under
it first is answered with a salted name; whoever reads checks the digest, so nothing wrong is ever used.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Literal
from weakref import WeakValueDictionary

from nexofork.bus.common_ends import common_ends
from nexofork.bus.failures import CorruptBlob, MissingBlob
from nexofork.bus.jetstream import retry
from nexofork.bus.reading import last_direct, read_subject, store_once
from nexofork.errors import BadMessage, BusError
from nexofork.wire import subjects
from nexofork.wire.messages import INLINE_BYTES, BlobRef, Delta, Payload
from nexofork.wire.streams import BLOBS

if TYPE_CHECKING:
    from nexofork.bus.connection import Bus

__all__ = ["BlobStore", "CorruptBlob", "MissingBlob"]

_WHOLE_BYTES = 900_000
_CHUNK_BYTES = 256 * 1024
_HEADROOM = 4096
_WINDOW = 16
_MAX_BYTES = 256 << 20
_KNOWN = 4096
_FRESH_S = 24 * 3600.0  # a third of how long the stream keeps a blob
_LAG_S = 0.6  # how long a replica that answers may not have it yet
_INLINE_MIDDLE = 2048  # every child's request carries it


class BlobStore:
    """Reads blobs of both roles and stores those of one."""

    def __init__(self, bus: Bus, owner: Literal["parent", "daemon"], *, cache_bytes: int = 256 << 20) -> None:
        self.fetched = 0
        """How many blobs were fetched over the network."""
        self.stored = 0
        """How many messages were stored."""
        self._bus = bus
        self._owner = owner
        self._cache = _Cache(cache_bytes)
        self._known: OrderedDict[str, tuple[BlobRef, float]] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._base: tuple[bytes, BlobRef, float] | None = None
        self._last: tuple[str, Payload] | None = None

    async def put(self, data: bytes, *, again: bool = False) -> BlobRef:
        """Store a content and return its reference; what this process stored lately is not sent again.

        Args:
            data: The content.
            again: Send it even so: a reader did not find it.

        Raises:
            StoreFull: There is no more room.
            BusError: NATS did not confirm it in time.
        """
        digest = hashlib.sha256(data).hexdigest()
        lock = self._locks.setdefault(digest, asyncio.Lock())
        async with lock:
            known = self._known.get(digest)
            if known is not None and not again and _now() - known[1] < _FRESH_S:
                return known[0]
            ref = await self._upload(digest, data)
            self._known[digest] = (ref, _now())
            while len(self._known) > _KNOWN:
                self._known.popitem(last=False)
            return ref

    async def put_next(self, data: bytes) -> Payload:
        """Store a content that grew out of the one given before; only what is new travels, if that is the lesser part.

        Raises:
            BusError: As ``put``.
        """
        digest = hashlib.sha256(data).hexdigest()
        if self._last is not None and self._last[0] == digest:
            return self._last[1]
        payload = await self._grown(digest, data)
        if payload is None:
            ref = await self.put(data)
            self._base = (data, ref, _now())
            payload = Payload(blob=ref)
        self._last = (digest, payload)
        return payload

    async def pack(self, data: bytes) -> Payload:
        """Return the content as text where it is short and UTF-8, else as a blob.

        Raises:
            BusError: As ``put``.
        """
        text = _as_text(data, INLINE_BYTES)
        return Payload(blob=await self.put(data)) if text is None else Payload(text=text)

    async def get(self, ref: BlobRef) -> bytes:
        """Return a blob's content, checked; many who ask at the same time cause one fetch.

        Raises:
            MissingBlob: It, or a part of it, is not stored.
            CorruptBlob: What is stored is something else.
            BusError: NATS did not answer.
        """
        lock = self._locks.setdefault(f"get {ref.owner} {ref.name}", asyncio.Lock())
        async with lock:
            data = self._cache.get(ref.sha256)
            if data is None:
                data = await self._fetch(ref)
                self._cache.add(ref.sha256, data)
        if len(data) != ref.size:
            raise CorruptBlob(ref, f"it has {len(data)} bytes and not {ref.size}")
        return data

    async def resolve(self, payload: Payload) -> bytes:
        """Return the bytes a payload stands for, checked.

        Raises:
            MissingBlob: A blob it needs is not stored.
            CorruptBlob: A blob it needs, or the whole, is something else.
            BadMessage: Its text is not Unicode.
            BusError: NATS did not answer.
        """
        if payload.text is not None:
            return _as_bytes(payload.text)
        if payload.blob is not None:
            return await self.get(payload.blob)
        assert payload.delta is not None, "a payload is given one way"
        return await self._join(payload.delta)

    async def _join(self, delta: Delta) -> bytes:
        cached = self._cache.get(delta.sha256)
        if cached is not None:
            return cached
        base = await self.get(delta.base)
        middle = _as_bytes(delta.middle) if isinstance(delta.middle, str) else await self.get(delta.middle)
        size = delta.prefix + len(middle) + delta.suffix
        if delta.prefix + delta.suffix > len(base) or size != delta.size:
            raise CorruptBlob(delta.base, "a delta does not fit it")
        data = base[: delta.prefix] + middle + base[len(base) - delta.suffix :]
        if hashlib.sha256(data).hexdigest() != delta.sha256:
            raise CorruptBlob(delta.base, "a delta to it does not have its digest")
        self._cache.add(delta.sha256, data)
        return data

    async def _grown(self, digest: str, data: bytes) -> Payload | None:
        """Return the content as a delta to the last whole one, where that is worth it."""
        if self._base is None or _now() - self._base[2] >= _FRESH_S:
            return None
        base, ref, _ = self._base
        prefix, suffix = common_ends(base, data)
        if 2 * (prefix + suffix) < len(data):
            return None
        added = data[prefix : len(data) - suffix]
        text = _as_text(added, _INLINE_MIDDLE)
        middle = await self.put(added) if text is None else text
        return Payload(
            delta=Delta(base=ref, prefix=prefix, suffix=suffix, middle=middle, sha256=digest, size=len(data))
        )

    async def _upload(self, digest: str, data: bytes) -> BlobRef:
        pieces = self._pieces(data)
        for name in (digest, *(f"{digest[:32]}-{secrets.token_hex(8)}" for _ in range(3))):
            if await self._store_all(name, pieces):
                return BlobRef(owner=self._owner, name=name, sha256=digest, size=len(data), chunks=len(pieces))
        raise BusError(f"Every name for the content {digest} is taken by something else.", retryable=False)

    def _pieces(self, data: bytes) -> list[bytes]:
        room = self._bus.max_payload - _HEADROOM
        if len(data) <= min(_WHOLE_BYTES, room):
            return [data]
        size = min(_CHUNK_BYTES, room)
        return [data[start : start + size] for start in range(0, len(data), size)]

    async def _store_all(self, name: str, pieces: list[bytes]) -> bool:
        """Store the pieces, a window at a time; False when one name holds something else."""
        for start in range(0, len(pieces), _WINDOW):
            async with asyncio.TaskGroup() as tasks:
                under_way = [
                    tasks.create_task(self._store_piece(subjects.blob(self._owner, name, start + n), piece))
                    for n, piece in enumerate(pieces[start : start + _WINDOW])
                ]
            outcomes = [task.result() for task in under_way]
            for outcome in outcomes:
                if isinstance(outcome, BusError):
                    raise outcome
            if not all(outcomes):
                return False
        return True

    async def _store_piece(self, subject: str, piece: bytes) -> bool | BusError:
        """Store one piece; an error is returned, so that the group of its siblings does not wrap it."""
        try:
            found = await store_once(self._bus, BLOBS, subject, piece)
        except BusError as exc:
            return exc
        if found is not None:
            return found.data == piece
        self.stored += 1
        return True

    async def _fetch(self, ref: BlobRef) -> bytes:
        if ref.size > _MAX_BYTES:
            raise CorruptBlob(ref, f"{ref.size} bytes are more than the {_MAX_BYTES} a blob may have")
        self.fetched += 1
        found = await retry(self._bus, lambda: self._pieces_of(ref), limit_s=_LAG_S)
        data = found[0] if ref.chunks == 1 else b"".join(found[n] for n in range(ref.chunks))
        if len(data) != ref.size:
            raise CorruptBlob(ref, f"{len(data)} bytes are stored and {ref.size} were expected")
        if hashlib.sha256(data).hexdigest() != ref.sha256:
            raise CorruptBlob(ref, "its digest does not match")
        return data

    async def _pieces_of(self, ref: BlobRef) -> dict[int, bytes]:
        found = await retry(self._bus, lambda: self._read_pieces(ref))
        if len(found) < ref.chunks:
            raise MissingBlob(ref, found=len(found))
        return found

    async def _read_pieces(self, ref: BlobRef) -> dict[int, bytes]:
        if ref.chunks == 1:
            whole = await last_direct(self._bus, BLOBS, subjects.blob(ref.owner, ref.name, 0))
            return {} if whole is None else {0: whole.data}
        prefix = subjects.blob(ref.owner, ref.name, 0).removesuffix("0")
        pieces = await read_subject(self._bus, BLOBS, f"{prefix}*")
        wanted = {f"{prefix}{n}": n for n in range(ref.chunks)}
        return {wanted[piece.subject]: piece.data for piece in pieces if piece.subject in wanted}


class _Cache:
    """The contents used last, up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._contents: OrderedDict[str, bytes] = OrderedDict()

    def get(self, digest: str) -> bytes | None:
        data = self._contents.get(digest)
        if data is not None:
            self._contents.move_to_end(digest)
        return data

    def add(self, digest: str, data: bytes) -> None:
        if len(data) > self._limit or digest in self._contents:
            return
        self._contents[digest] = data
        self._held += len(data)
        while self._held > self._limit:
            _, dropped = self._contents.popitem(last=False)
            self._held -= len(dropped)


def _as_text(data: bytes, limit: int) -> str | None:
    if len(data) > limit:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _as_bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise BadMessage("holds text that is not Unicode", fix="Send the bytes as a blob.") from exc


def _now() -> float:
    return asyncio.get_running_loop().time()
