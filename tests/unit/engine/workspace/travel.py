"""Send a repository as a parent would, and check it out as a daemon would, without NATS between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexofork import GitWorkspace
from nexofork.wire.messages import BlobRef
from nexofork.wire.workspace import GitSpec
from nexofork.workspace.bundle import decode_bundle
from nexofork.workspace.capture import capture_git
from nexofork.workspace.git import git_in, make_repository, take_pack
from nexofork.workspace.worktree import Worktree

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_out", "checked_out", "sent"]

_NOWHERE = BlobRef(owner="parent", name="x", sha256="0" * 64, size=1, chunks=1)


async def sent(root: Path, *, ignored: bool = False) -> tuple[GitSpec, bytes, bytes | None]:
    """What a parent sends: the description, the base and the thin bundle."""
    async with capture_git(GitWorkspace(root, include_ignored=ignored)) as captured:
        found = captured.repository
        spec = GitSpec(
            kind="git",
            root=str(root),
            base=found.head,
            bundle=_NOWHERE,
            head=found.head,
            commit=captured.commit,
            shallow=list(found.shallow),
            branch=found.branch,
            ignored=ignored,
            notes=list(captured.notes),
            folder=found.folder,
        )
        return spec, await captured.base_bundle(), await captured.thin_bundle(found.head)


async def check_out(folder: Path, spec: GitSpec, base: bytes, thin: bytes | None) -> Worktree:
    """A checkout of what was sent."""
    make_repository(folder / "base", head=spec.base, shallow=spec.shallow)
    await take_pack(git_in(folder / "base"), decode_bundle(base).pack)
    worktree = Worktree(folder, spec)
    await worktree.set_up(folder / "base/objects", [thin] if thin else [], None)
    return worktree


async def checked_out(root: Path, folder: Path, *, ignored: bool = False) -> Worktree:
    """A checkout of a repository as it is now."""
    return await check_out(folder, *await sent(root, ignored=ignored))
