"""Turn a request from the wire into a fork the engine can run.

A thousand children of one parent name the same snapshot. It is fetched, checked and mapped once, and all of them share
the one object.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from nexofork.engine.requested import fork_of, snapshot_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from nexofork.core.snapshot import CacheSafeParams
    from nexofork.engine.abort import AbortToken
    from nexofork.engine.dispatch import ToolDispatcher
    from nexofork.engine.events import ForkEvent
    from nexofork.engine.filters import ToolFilter
    from nexofork.engine.params import ForkParams
    from nexofork.providers.provider import Provider
    from nexofork.wire.messages import Payload, Requested

    Resolve = Callable[[Payload], Awaitable[bytes]]

__all__ = ["SnapshotShelf", "fork_params"]

_KEPT = 4
"""Snapshots kept for the next request although no fork uses them; those in use are kept by their forks."""


class SnapshotShelf:
    """The snapshots this daemon holds."""

    def __init__(self) -> None:
        self._held: WeakValueDictionary[str, CacheSafeParams] = WeakValueDictionary()
        self._recent: OrderedDict[str, CacheSafeParams] = OrderedDict()
        self._busy: dict[str, asyncio.Lock] = {}

    def held(self, request: Requested) -> CacheSafeParams | None:
        """Return the request's snapshot if it is here already."""
        return self._held.get(_key(request))

    async def get(self, request: Requested, resolve: Resolve, *, sent_at: float | None) -> CacheSafeParams:
        """Return the request's snapshot, building it if no other fork has.

        Args:
            request: Whose.
            resolve: Fetches what it refers to.
            sent_at: When the parent's own call was sent, by this host's clock.

        Raises:
            BusError: A blob is missing or corrupt.
            ForkRefused: The bytes are not a request, or the reply does not fit them.
        """
        key = _key(request)
        async with self._one_at_a_time(key):
            snapshot = self._held.get(key)
            if snapshot is None:
                snapshot = await snapshot_of(request.model_copy(update={"sent_at": sent_at}), resolve)
                self._held[key] = snapshot
        self._recent[key] = snapshot
        self._recent.move_to_end(key)
        while len(self._recent) > _KEPT:
            self._recent.popitem(last=False)
        return snapshot

    @asynccontextmanager
    async def _one_at_a_time(self, key: str) -> AsyncIterator[None]:
        lock = self._busy.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._busy.pop(key, None)


def fork_params(
    request: Requested,
    snapshot: CacheSafeParams,
    *,
    llm: Provider,
    tools: ToolDispatcher,
    tool_filter: ToolFilter,
    token: AbortToken,
    on_message: Callable[[ForkEvent], object],
    file_state: dict[str, str] | None = None,
    notes: Sequence[str] = (),
    answers: Mapping[str, bytes] | None = None,
) -> ForkParams:
    """Return the fork a request asks for.

    Raises:
        ForkRefused: The request's permissions cannot be meant.
    """
    asked = fork_of(
        request, snapshot, tool_filter=tool_filter, answers=answers or {}, file_state=file_state, notes=notes
    )
    return replace(
        asked,
        llm=llm,
        tool_dispatcher=tools,
        on_message=on_message,
        timeout=None,  # the daemon counts it from the first claim
        external_abort=token,
    )


def _key(request: Requested) -> str:
    """Name everything the snapshot is built from."""
    parts = {
        "snapshot": _name(request.snapshot),
        "reply": _name(request.reply) if request.reply else None,
        "headers": sorted(request.headers.items()),
        "query": request.query,
        "exact": request.exact,
        "sent_at": request.sent_at,
        "workspace": request.workspace_id,
        "replacements": request.replacements,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _name(payload: Payload) -> str:
    if payload.text is not None:
        return hashlib.sha256(payload.text.encode("utf-8", "surrogatepass")).hexdigest()
    if payload.blob is not None:
        return payload.blob.sha256
    assert payload.delta is not None
    return payload.delta.sha256
