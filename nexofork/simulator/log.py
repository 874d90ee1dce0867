"""The log: one record per request to the Messages endpoint, and a way to wait for what it will say.

Tests and other processes read it to learn what each request read, wrote and cost. API keys are never kept, only a
fingerprint of them. Invariant: records are in order of arrival, and a record's index is its place.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["RequestLog", "RequestRecord", "key_fingerprint"]

KEPT_HEADERS = frozenset(
    [
        "content-type",
        "user-agent",
        "traceparent",
        "tracestate",
        "x-stainless-retry-count",
        "x-stainless-timeout",
        "idempotency-key",
    ]
)


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request; filled in as it is handled. Times are those of the simulator's clock."""

    index: int
    method: str
    path: str
    received_at: float
    body_sha256: str
    body_bytes: int
    headers: dict[str, str]
    """The ones that matter: `anthropic-*`, trace context, retry count."""
    request_id: str = ""
    key_fingerprint: str | None = None
    organization: str | None = None
    workspace: str | None = None
    model: str | None = None
    stream: bool = False
    status: int | None = None
    """None while nothing has been sent."""
    error_type: str | None = None
    error_message: str | None = None
    message_id: str | None = None
    read: int = 0
    write_5m: int = 0
    write_1h: int = 0
    fresh: int = 0
    """Input tokens neither read from nor written to the cache."""
    output: int = 0
    price_usd: float = 0.0
    hit_position: int | None = None
    """Index of the block whose entry was read, counted from zero over tools, system and messages."""
    breakpoints: list[int] = field(default_factory=list)
    prewarm: bool = False
    stop_reason: str | None = None
    fault: str | None = None
    closed_early: bool = False
    """Whether the client left before the response was complete."""
    first_byte_at: float | None = None
    finished_at: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The record as a JSON value."""
        return asdict(self)

    @property
    def prompt_tokens(self) -> int:
        """The whole prompt."""
        return self.read + self.write_5m + self.write_1h + self.fresh


class RequestLog:
    """All records so far, with as many request bodies as the limit allows."""

    def __init__(self, *, kept_body_bytes: int, on_finish: Callable[[RequestRecord], None]) -> None:
        self.records: list[RequestRecord] = []
        self._kept_body_bytes = kept_body_bytes
        self._on_finish = on_finish
        self._bodies: dict[int, bytes] = {}
        self._body_bytes = 0
        self._changed = asyncio.Event()

    def open(self, *, method: str, path: str, body: bytes, headers: Mapping[str, str], now: float) -> RequestRecord:
        """Add a record for a request that has just arrived in full."""
        record = RequestRecord(
            index=len(self.records),
            method=method,
            path=path,
            received_at=now,
            body_sha256=hashlib.sha256(body).hexdigest(),
            body_bytes=len(body),
            headers={name: value for name, value in headers.items() if _matters(name)},
        )
        self.records.append(record)
        self._keep(record.index, body)
        self._notify()
        return record

    def finish(self, record: RequestRecord, *, now: float) -> None:
        """Close a record."""
        record.finished_at = now
        self._notify()
        self._on_finish(record)

    def begun(self) -> None:
        """Tell waiters that a response has begun."""
        self._notify()

    def body(self, index: int) -> bytes | None:
        """The bytes of a request; None when there is no such request or its body was dropped."""
        return self._bodies.get(index)

    def clear(self) -> None:
        """Forget every record."""
        self.records.clear()
        self._bodies.clear()
        self._body_bytes = 0
        self._notify()

    async def wait_for(self, count: int, holds: Callable[[RequestRecord], bool]) -> None:
        """Return when at least so many records fulfil the condition; the caller sets the deadline."""
        while sum(map(holds, self.records)) < count:
            await self._changed.wait()

    def _keep(self, index: int, body: bytes) -> None:
        self._bodies[index] = body
        self._body_bytes += len(body)
        while self._body_bytes > self._kept_body_bytes and len(self._bodies) > 1:
            self._body_bytes -= len(self._bodies.pop(next(iter(self._bodies))))

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def key_fingerprint(key: str) -> str:
    """A short name for a key that does not give it away."""
    return hashlib.sha256(key.encode()).hexdigest()[:12]


def _matters(name: str) -> bool:
    return name.startswith("anthropic-") or name in KEPT_HEADERS
