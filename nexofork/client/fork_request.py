"""A fork's request: build it, upload what it refers to once, and put it on the run's log.

A repository's history is uploaded once, then only what each fork has beyond it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from nexofork.client.parent_tools import offered
from nexofork.core.replacement import ContentReplacementState
from nexofork.errors import BusError, ForkRefused, NexoforkError
from nexofork.policy.filters import travelling
from nexofork.policy.permissions import travelling_permissions
from nexofork.run.params import encode_file_state
from nexofork.wire.messages import Parent, Payload, Requested
from nexofork.wire.needs import stating_needs
from nexofork.wire.workspace import GitSpec, PathSpec
from nexofork.workspace import GitWorkspace, PathWorkspace, ShippedWorkspace
from nexofork.workspace.capture import capture_git
from nexofork.workspace.git import GitFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Mapping
    from pathlib import Path

    from nexofork.bus.blobs import BlobStore
    from nexofork.client.remote_run import RemoteRun
    from nexofork.core.snapshot import CacheSafeParams
    from nexofork.run.abort import AbortToken
    from nexofork.run.params import ForkParams
    from nexofork.wire.messages import BlobRef
    from nexofork.workspace import Workspace
    from nexofork.workspace.capture import Captured

    Start = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None] | None]

__all__ = ["ForkRequests", "PendingAction", "Problem", "WorkspaceUploads", "abort_with", "put_request"]

log = logging.getLogger(__name__)

_KEPT = 8
_INLINE_BYTES = 256
_KEPT_BASES = 16
_KEPT_THIN = 64
_KEPT_THIN_BYTES = 64 << 20
_FRESH_S = 24 * 3600.0
_SMALL_BYTES = 1 << 20
Problem: TypeAlias = BusError | ForkRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shipped:
    source: CacheSafeParams
    """Held so that its id cannot come to mean another snapshot."""
    snapshot: Payload
    reply: Payload | None


class ForkRequests:
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
        self.workspaces = WorkspaceUploads(blobs)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    commit: str
    ref: BlobRef
    shallow: tuple[str, ...]
    root: Path
    at: float


class WorkspaceUploads:
    """One parent's workspaces."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._bases: OrderedDict[Path, _Base] = OrderedDict()
        """By repository: the base that was shipped last."""
        self._sent: OrderedDict[str, _Base] = OrderedDict()
        """By digest: every base that a run may still ask for."""
        self._thin: OrderedDict[str, bytes] = OrderedDict()
        self._one_at_a_time = asyncio.Lock()

    async def ship(self, workspace: Workspace | None) -> ShippedWorkspace | None:
        """Return a workspace as it travels, with everything it refers to uploaded.

        Raises:
            ForkRefused: It cannot be captured.
            BusError: An upload failed.
        """
        match workspace:
            case None | ShippedWorkspace():
                return workspace
            case PathWorkspace(path):
                return ShippedWorkspace(spec=PathSpec(kind="path", path=os.fspath(path)))
            case GitWorkspace():
                # Two at a time would ship the same base twice.
                async with self._one_at_a_time, capture_git(workspace) as captured:
                    return ShippedWorkspace(spec=await self._git(workspace, captured))

    async def again(self, payload: Payload) -> Payload | None:
        """Upload a bundle once more that a daemon could not get; None if it is not ours, or not to be had again."""
        if payload.blob is None:
            return None
        digest = payload.blob.sha256
        if (thin := self._thin.get(digest)) is not None:
            return Payload(blob=await self._blobs.put(thin, again=True))
        if (base := self._sent.get(digest)) is None:
            return None
        try:
            async with capture_git(GitWorkspace(base.root)) as captured:
                return Payload(blob=await self._blobs.put(await captured.base_bundle(base.commit), again=True))
        except (ForkRefused, GitFailed):
            return None

    async def _git(self, workspace: GitWorkspace, captured: Captured) -> GitSpec:
        repository = captured.repository
        base, thin = await self._on_base(captured)
        root = _root(workspace, repository.folder)
        real = os.fspath(repository.top)
        return GitSpec(
            kind="git",
            root=root,
            real_root=real if real != root else "",
            folder=repository.folder,
            base=base.commit,
            bundle=base.ref,
            shallow=list(base.shallow),
            head=repository.head,
            commit=captured.commit,
            thin=await self._ship_thin(thin) if thin else None,
            branch=repository.branch,
            ignored=workspace.include_ignored,
            notes=list(captured.notes),
        )

    async def _on_base(self, captured: Captured) -> tuple[_Base, bytes | None]:
        """Return the base to build on, and what there is beyond it; a base that has become too old is replaced."""
        repository = captured.repository
        base = self._bases.get(repository.common_dir)
        if base and time.monotonic() - base.at < _FRESH_S and base.shallow == repository.shallow:
            try:
                thin = await captured.thin_bundle(base.commit)
            except GitFailed:
                thin = None  # the commit is not in the repository any more
            else:
                if thin is None or len(thin) <= max(_SMALL_BYTES, base.ref.size // 2):
                    return base, thin
        data = await captured.base_bundle()
        base = _Base(
            commit=repository.head,
            ref=await self._blobs.put(data),
            shallow=repository.shallow,
            root=repository.top,
            at=time.monotonic(),
        )
        for kept, key in ((self._bases, repository.common_dir), (self._sent, base.ref.sha256)):
            kept[key] = base  # type: ignore[index]
            while len(kept) > _KEPT_BASES:
                kept.popitem(last=False)
        return base, await captured.thin_bundle(base.commit)

    async def _ship_thin(self, data: bytes) -> BlobRef:
        ref = await self._blobs.put(data)
        self._thin[ref.sha256] = data
        self._thin.move_to_end(ref.sha256)
        while len(self._thin) > _KEPT_THIN or sum(map(len, self._thin.values())) > _KEPT_THIN_BYTES:
            self._thin.popitem(last=False)
        return ref


def _root(workspace: GitWorkspace, folder: str) -> str:
    """Return the repository's root as the caller spells it: so the conversation will have spelt it."""
    given = os.path.abspath(workspace.root)
    return given.removesuffix(f"/{folder}") if folder else given


class PendingAction:
    """Something that was begun; awaiting it raises what it met, and not awaiting it does no harm."""

    def __init__(self, task: asyncio.Task[Problem | None]) -> None:
        self._task = task

    def __await__(self) -> Generator[Any, None, None]:
        problem = yield from asyncio.shield(self._task)
        if problem is not None:
            raise problem


async def abort_with(token: AbortToken, run: RemoteRun) -> None:
    """Abort a run with the caller's token, as long as the run goes on."""
    async with asyncio.TaskGroup() as racers:
        thrown = racers.create_task(token.wait())
        over = racers.create_task(run.over())
        over.add_done_callback(lambda _: thrown.cancel())
        thrown.add_done_callback(lambda _: over.cancel())
    if not thrown.cancelled():
        await run.abort(thrown.result().note)


async def put_request(run: RemoteRun, request: Requested, start: Start) -> int:
    """Put a run's request on its log and return its sequence.

    A caller that is cancelled meanwhile has no handle to abort the run by, and cannot know whether it was stored. So it
    is stored beside the caller, and taken back when nobody waits for it any more.

    Raises:
        NexoforkError: As `RunLog.request` does; or the connection was closed.
    """
    waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    if start(_stored(run, request, waiting)) is None:
        raise ForkRefused("The connection to the fleet was closed; open one with `connect` and fork again.")
    try:
        return await waiting
    except asyncio.CancelledError:
        # It may have come at the same moment.
        if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
            start(_taken_back(run))
        raise


async def _stored(run: RemoteRun, request: Requested, waiting: asyncio.Future[int]) -> None:
    try:
        seq = await run.log.request(request)
    except NexoforkError as exc:
        if not waiting.done():
            waiting.set_exception(exc)
        return
    if waiting.done():
        await _taken_back(run)
    else:
        waiting.set_result(seq)


async def _taken_back(run: RemoteRun) -> None:
    try:
        await run.abort("its caller gave up while it was being asked for")
    except BusError as exc:
        log.warning("run %s goes on although nobody waits for it: %s", run.record.run_id, exc)
