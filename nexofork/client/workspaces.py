"""Ship workspaces: a repository's history once, then what each fork has beyond it.

The base bundle is named by its commit and remembered for a day; a later HEAD travels as what it added to that base. A
base is made again from the repository when a daemon asks for one that is gone; thin bundles are kept, because what
they hold was never in the parent's repository.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.engine.workspace import GitWorkspace, PathWorkspace, ShippedWorkspace
from nexofork.engine.workspace.capture import capture_git
from nexofork.engine.workspace.git import GitFailed
from nexofork.errors import ForkRefused
from nexofork.wire.messages import Payload
from nexofork.wire.workspace import GitSpec, PathSpec

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork.bus.blobs import BlobStore
    from nexofork.engine.workspace import Workspace
    from nexofork.engine.workspace.capture import Captured
    from nexofork.wire.messages import BlobRef

__all__ = ["WorkspaceShipping"]

_KEPT_BASES = 16
_KEPT_THIN = 64
_KEPT_THIN_BYTES = 64 << 20
_FRESH_S = 24 * 3600.0
_SMALL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    commit: str
    ref: BlobRef
    shallow: tuple[str, ...]
    root: Path
    at: float


class WorkspaceShipping:
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
