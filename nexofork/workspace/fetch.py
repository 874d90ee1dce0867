"""Pack a child's work for the way back, and take it into a repository: checked first, and never merged.

Commits come back as they are. What the child left uncommitted is not lost: one more commit, by nexofork, holds it. The
pack is received into a folder next to the repository's objects and moved there only when all of it was found good. No
hook runs, nothing but ``refs/forks/<run_id>`` changes, and doing it twice changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nexofork.errors import ForkRefused
from nexofork.wire.workspace import ChangedFile, ChildCommit, WorkspaceWork
from nexofork.workspace.bundle import BadBundle, Bundle, decode_bundle, encode_bundle
from nexofork.workspace.capture import locate
from nexofork.workspace.git import Git, GitFailed, take_pack
from nexofork.workspace.worktree import RESULT_REF

if TYPE_CHECKING:
    from nexofork.wire.workspace import GitSpec, TreeState
    from nexofork.workspace.capture import Repository
    from nexofork.workspace.worktree import Worktree

__all__ = ["Fetched", "MissingBase", "changed_files", "child_commits", "fetch_bundle", "work_of"]

_MAX_COMMITS = 100
_MAX_FILES = 1_000


class MissingBase(ForkRefused):
    """The repository lacks the commit that the work builds on."""

    def __init__(self, root: str, base: str) -> None:
        self.root = root
        self.base = base
        super().__init__(
            f"The repository {root} does not have the commit {base} that the fork began with; "
            "name the repository it was forked from, or fetch that commit first."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A child's work, in a repository."""

    run_id: str
    root: str
    ref: str
    """Where it is: ``git merge`` or ``git log`` takes this name."""
    head: str
    commits: tuple[ChildCommit, ...]
    files: tuple[ChangedFile, ...]
    merges: bool
    """Whether it would merge into HEAD without conflicts."""
    conflicts: tuple[str, ...]
    """The files that would not."""
    in_the_way: tuple[str, ...]
    """Files it holds otherwise than HEAD that are not committed here: git does not merge over those."""
    problem: str = ""
    """What of the work could not be kept."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "run_id": self.run_id,
            "root": self.root,
            "ref": self.ref,
            "head": self.head,
            "commits": [commit.model_dump() for commit in self.commits],
            "files": [file.model_dump() for file in self.files],
            "merges": self.merges,
            "conflicts": list(self.conflicts),
            "in_the_way": list(self.in_the_way),
            "problem": self.problem,
        }


async def fetch_bundle(root: str | os.PathLike[str], run_id: str, work: WorkspaceWork, bundle: bytes) -> Fetched:
    """Take the work of a run into ``refs/forks/<run_id>`` of a repository.

    Raises:
        MissingBase: The repository lacks what the work builds on.
        ForkRefused: It is no repository, or the bundle is damaged, hostile, or not the run's.
    """
    repository = await locate(root)
    git = Git(environment={"GIT_DIR": os.fspath(repository.git_dir)}, cwd=repository.top)
    if (await git.run("cat-file", "-t", work.base, also=(1, 128))).strip() != b"commit":
        raise MissingBase(os.fspath(repository.top), work.base)
    try:
        taken = decode_bundle(bundle)
    except BadBundle as exc:
        raise ForkRefused(f"What came back from run {run_id} was not taken in. {exc}") from exc
    if taken.refs.get(RESULT_REF) != work.head:
        raise ForkRefused(f"What came back from run {run_id} is not the work it reports; nothing was taken in.")
    scratch = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="nexofork-fetch-"))
    try:
        return await _taken(repository, git, scratch, run_id=run_id, work=work, pack=taken.pack)
    except GitFailed as exc:
        raise ForkRefused(
            f"What came back from run {run_id} was not taken into {repository.top}, which is as it was: {exc}"
        ) from exc
    finally:
        await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)


async def _taken(
    repository: Repository, git: Git, scratch: Path, *, run_id: str, work: WorkspaceWork, pack: bytes
) -> Fetched:
    (scratch / "pack").mkdir()
    apart = Git(
        environment={
            **git.environment,
            "GIT_OBJECT_DIRECTORY": os.fspath(scratch),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": os.fspath(repository.objects),
        },
        cwd=git.cwd,
    )
    await take_pack(apart, pack)
    # That all of it is there, and not only what the pack itself leads to.
    await apart.run("rev-list", "--objects", "--quiet", work.head, f"^{work.base}")
    files = await changed_files(apart, work.start, work.head)
    conflicts = await _conflicts(apart, work.head)
    fetched = Fetched(
        run_id=run_id,
        root=os.fspath(repository.top),
        ref=f"refs/forks/{run_id}",
        head=work.head,
        commits=tuple(await child_commits(apart, work.start, work.head)),
        files=tuple(files),
        merges=conflicts == (),
        conflicts=conflicts or (),
        # What the parent had not committed is a commit of the work too, and its files lie here as they were.
        in_the_way=await _in_the_way(git, {file.path for file in await changed_files(apart, work.base, work.head)}),
        problem=work.problem,
    )
    await asyncio.to_thread(_move_packs, scratch / "pack", repository.objects / "pack")
    await git.run("update-ref", "-m", f"nexofork fetch {run_id}", fetched.ref, work.head)
    return fetched


async def _conflicts(git: Git, head: str) -> tuple[str, ...] | None:
    """Return the files that would not merge into HEAD; None where git does not merge the two at all."""
    options = ("--write-tree", "--name-only", "--no-messages", "-z")
    try:
        merged = await git.run("merge-tree", *options, "HEAD", head, also=(1,))
    except GitFailed:
        return None  # no common history is left: the parent rewrote its own
    return tuple(dict.fromkeys(os.fsdecode(name) for name in merged.split(b"\0")[1:] if name))


def _move_packs(source: Path, target: Path) -> None:
    """Move what was received; the index comes last, because by it git finds the pack."""
    target.mkdir(exist_ok=True)
    for path in sorted(source.iterdir(), key=lambda path: path.suffix == ".idx"):
        if not (target / path.name).exists():
            staged = target / f"tmp_{path.name}"
            shutil.copyfile(path, staged)
            staged.chmod(0o444)
            staged.rename(target / path.name)


async def _in_the_way(git: Git, paths: set[str]) -> tuple[str, ...]:
    if not paths:
        return ()
    quiet = ("--no-renames", "--ignore-submodules=all", "--untracked-files=all")
    printed = await git.run("status", "--porcelain", "-z", *quiet)
    dirty = {os.fsdecode(line[3:]) for line in printed.split(b"\0") if line}
    return tuple(sorted(dirty & paths))


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
