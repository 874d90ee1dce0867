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

from nexofork.client.serving import offered
from nexofork.client.workspaces import WorkspaceShipping
from nexofork.core.replacement import ContentReplacementState
from nexofork.engine.file_state import encode_file_state
from nexofork.engine.filters import travelling
from nexofork.engine.permissions import travelling_permissions
from nexofork.wire.messages import Parent, Payload, Requested
from nexofork.wire.needs import stating_needs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexofork.bus.blobs import BlobStore
    from nexofork.core.snapshot import CacheSafeParams
    from nexofork.engine.params import ForkParams

__all__ = ["Shipping"]

_KEPT = 8
_INLINE_BYTES = 256


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
        serve_files: bool = True,
    ) -> None:
        self._blobs = blobs
        self._parent_id = parent_id
        self._heartbeat_s = heartbeat_s
        self._on_parent_gone = on_parent_gone
        self._serve_files = serve_files
        self._shipped: OrderedDict[int, _Shipped] = OrderedDict()
        self._file_states: OrderedDict[str, bytes] = OrderedDict()
        """By digest: those that were shipped last."""
        self.workspaces = WorkspaceShipping(blobs)

    async def request(self, params: ForkParams, *, group: str | None) -> Requested:
        """Return the request for a fork, with everything it refers to uploaded.

        Raises:
            BusError: An upload failed.
            ForkRefused: The filter cannot travel, or the workspace cannot be captured.
        """
        filters = travelling(params.tool_filter)
        workspace = await self.workspaces.ship(params.workspace)
        shipped = await self._ship(params.cache_safe)
        snapshot, overrides = params.cache_safe, params.overrides
        request = Requested(
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
            filters=filters,
            tool_names=dict(params.tool_names),
            file_state=await self._file_state(params.parent_ctx.file_state),
            permissions=travelling_permissions(params.permissions),
            parent_tools=offered(params, files=self._serve_files),
            continues=params.continues,
            answers=await self._answers(params.answers),
            compaction=params.compaction,
            workspace=workspace.spec if workspace else None,
        )
        return stating_needs(request)

    async def again(self, payload: Payload) -> Payload | None:
        """Upload a content once more that a daemon could not get; None if it is not ours."""
        for shipped in self._shipped.values():
            if payload == shipped.snapshot:
                return Payload(blob=await self._blobs.put(shipped.source.body, again=True))
            if payload == shipped.reply and shipped.source.reply is not None:
                return Payload(blob=await self._blobs.put(shipped.source.reply.to_wire(), again=True))
        if payload.blob is not None and (state := self._file_states.get(payload.blob.sha256)):
            return Payload(blob=await self._blobs.put(state, again=True))
        return await self.workspaces.again(payload)

    async def _ship(self, snapshot: CacheSafeParams) -> _Shipped:
        known = self._shipped.get(id(snapshot))
        if known is None:
            reply = await self._beside(snapshot.reply.to_wire()) if snapshot.reply else None
            body = await self._blobs.put_next(snapshot.body)
            known = self._shipped[id(snapshot)] = _Shipped(source=snapshot, snapshot=body, reply=reply)
            while len(self._shipped) > _KEPT:
                self._shipped.popitem(last=False)
        return known

    async def _file_state(self, state: Mapping[str, str]) -> Payload | None:
        if not state:
            return None
        payload = await self._beside(data := encode_file_state(state))
        if payload.blob is not None:
            self._file_states[payload.blob.sha256] = data
            self._file_states.move_to_end(payload.blob.sha256)
            while len(self._file_states) > _KEPT:
                self._file_states.popitem(last=False)
        return payload

    async def _answers(self, answers: Mapping[str, bytes]) -> Payload | None:
        return await self._beside(b"[" + b",".join(answers.values()) + b"]") if answers else None

    async def _beside(self, data: bytes) -> Payload:
        # Every child's request repeats what is inlined here, so only what is very short is.
        return await self._blobs.pack(data) if len(data) <= _INLINE_BYTES else Payload(blob=await self._blobs.put(data))


def _travelling(snapshot: CacheSafeParams) -> dict[str, object] | None:
    """Return the replacement state, unless it is as fresh as the one a daemon would make."""
    state = snapshot.replacements
    return None if state == ContentReplacementState() else state.to_wire()
