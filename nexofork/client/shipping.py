"""Say a fork in wire terms, and ship what it refers to once.

A fan-out of a thousand children names one snapshot: it is uploaded with the first and referred to by all. A later turn
of the same conversation ships as what it added.
"""

from __future__ import annotations

import socket
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nexofork.core.replacement import ContentReplacementState
from nexofork.wire.messages import Parent, Payload, Requested

if TYPE_CHECKING:
    from nexofork.bus.blobs import BlobStore
    from nexofork.core.reply import Reply
    from nexofork.core.snapshot import CacheSafeParams
    from nexofork.engine.params import ForkParams

__all__ = ["Shipping"]

_KEPT = 8
_INLINE_REPLY_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shipped:
    source: CacheSafeParams
    """Held so that its id cannot come to mean another snapshot."""
    snapshot: Payload
    reply: Payload | None


class Shipping:
    """One parent's uploads."""

    def __init__(
        self,
        blobs: BlobStore,
        *,
        parent_id: str,
        heartbeat_s: float | None,
        on_parent_gone: Literal["continue", "abort"],
    ) -> None:
        self._blobs = blobs
        self._parent_id = parent_id
        self._heartbeat_s = heartbeat_s
        self._on_parent_gone = on_parent_gone
        self._shipped: OrderedDict[int, _Shipped] = OrderedDict()

    async def request(self, params: ForkParams, *, group: str | None) -> Requested:
        """Return the request for a fork, with everything it refers to uploaded.

        Raises:
            BusError: An upload failed.
        """
        shipped = await self._ship(params.cache_safe)
        snapshot, overrides = params.cache_safe, params.overrides
        return Requested(
            at=time.time(),
            snapshot=shipped.snapshot,
            reply=shipped.reply,
            directive=params.directive,
            notes=list(params.notes),
            headers=dict(snapshot.headers),
            query=list(snapshot.query),
            exact=snapshot.exact,
            sent_at=snapshot.sent_at,
            workspace_id=snapshot.workspace_id,
            label=params.fork_label,
            query_source=str(params.query_source),
            parent=Parent(
                id=self._parent_id,
                host=socket.gethostname(),
                agent=params.parent_ctx.agent_id,
                heartbeat_s=self._heartbeat_s if self._on_parent_gone == "abort" else None,
            ),
            group=group,
            boilerplate=params.boilerplate,
            overrides=dict(overrides.request),
            agent_id=overrides.agent_id,
            reminder=overrides.critical_system_reminder,
            allow_cache_break=params.allow_cache_break,
            max_turns=params.max_turns,
            timeout_s=params.timeout,
            on_parent_gone=self._on_parent_gone,
            skip_transcript=params.skip_transcript,
            replacements=_travelling(snapshot),
            siblings=params.siblings,
            warm_up=params.warm_up,
            budget=params.budget.limit if params.budget else None,
            group_budget=params.group_budget.limit if params.group_budget else None,
        )

    async def again(self, payload: Payload) -> Payload | None:
        """Upload a content once more that a daemon could not get; None if it is not ours."""
        for shipped in self._shipped.values():
            if payload == shipped.snapshot:
                return Payload(blob=await self._blobs.put(shipped.source.body, again=True))
            if payload == shipped.reply and shipped.source.reply is not None:
                return Payload(blob=await self._blobs.put(shipped.source.reply.to_wire(), again=True))
        return None

    async def _ship(self, snapshot: CacheSafeParams) -> _Shipped:
        known = self._shipped.get(id(snapshot))
        if known is None:
            reply = await self._reply(snapshot.reply) if snapshot.reply else None
            body = await self._blobs.put_next(snapshot.body)
            known = self._shipped[id(snapshot)] = _Shipped(source=snapshot, snapshot=body, reply=reply)
            while len(self._shipped) > _KEPT:
                self._shipped.popitem(last=False)
        return known

    async def _reply(self, reply: Reply) -> Payload:
        # Every child's request repeats what is inlined here, so only a very short reply is.
        wire = reply.to_wire()
        return (
            await self._blobs.pack(wire)
            if len(wire) <= _INLINE_REPLY_BYTES
            else Payload(blob=await self._blobs.put(wire))
        )


def _travelling(snapshot: CacheSafeParams) -> dict[str, object] | None:
    """Return the replacement state, unless it is as fresh as the one a daemon would make."""
    state = snapshot.replacements
    return None if state == ContentReplacementState() else state.to_wire()
