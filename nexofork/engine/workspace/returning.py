"""Say what became of a checkout, and pack it for the way back.

Commits come back as they are. What the child left uncommitted is not lost: one more commit, by nexofork, holds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexofork.engine.workspace.bundles import Bundle, encode_bundle
from nexofork.engine.workspace.worktree import RESULT_REF
from nexofork.wire.workspace import ChangedFile, ChildCommit, WorkspaceWork

if TYPE_CHECKING:
    from nexofork.engine.workspace.git import Git
    from nexofork.engine.workspace.worktree import Worktree
    from nexofork.wire.workspace import GitSpec, TreeState

__all__ = ["changed_files", "child_commits", "work_of"]

_MAX_COMMITS = 100
_MAX_FILES = 1_000


async def work_of(
    worktree: Worktree, spec: GitSpec, state: TreeState, *, run_id: str
) -> tuple[WorkspaceWork, bytes | None]:
    """Return what a child did, and the bundle that brings it to a repository with the parent's HEAD.

    Raises:
        GitFailed: It cannot be read, or is too large to travel.
    """
    git = worktree.git
    head_tree = (await git.run("rev-parse", "--verify", f"{state.head}^{{tree}}")).decode().strip()
    head, uncommitted = state.head, state.tree != head_tree
    if uncommitted:
        message = f"Uncommitted work of fork {run_id}"
        head = (await git.run("commit-tree", state.tree, "-p", state.head, "-m", message)).decode().strip()
    work = WorkspaceWork(root=spec.root, base=spec.head, start=spec.commit, head=head, uncommitted=uncommitted)
    if head == spec.commit:
        return work, None
    files = await changed_files(git, spec.commit, head)
    work = work.model_copy(
        update={
            "commits": await child_commits(git, spec.commit, head),
            "files": files[:_MAX_FILES],
            "files_changed": len(files),
            "insertions": sum(file.added or 0 for file in files),
            "deletions": sum(file.deleted or 0 for file in files),
        }
    )
    pack = await worktree.pack({head}, {spec.head})
    return work, encode_bundle(Bundle(pack=pack, refs={RESULT_REF: head}, needs=(spec.head,)))


async def child_commits(git: Git, start: str, head: str) -> list[ChildCommit]:
    """Return the commits from one to another, newest first."""
    printed = await git.run("log", f"--max-count={_MAX_COMMITS}", "--format=%H%x20%s", head, f"^{start}")
    lines = [line.decode("utf-8", "replace").partition(" ") for line in printed.splitlines()]
    return [ChildCommit(id=oid, subject=subject[:500]) for oid, _, subject in lines]


async def changed_files(git: Git, start: str, head: str) -> list[ChangedFile]:
    """Return the files in which two commits differ."""
    printed = await git.run("diff-tree", "-r", "--numstat", "-z", "--no-renames", "--no-ext-diff", start, head)
    found = []
    for line in printed.split(b"\0"):
        if not line:
            continue
        added, deleted, path = line.split(b"\t", 2)
        found.append(
            ChangedFile(
                path=path.decode("utf-8", "surrogateescape"),
                added=None if added == b"-" else int(added),
                deleted=None if deleted == b"-" else int(deleted),
            )
        )
    return found
