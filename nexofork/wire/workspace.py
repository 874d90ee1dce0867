"""How workspaces travel: what a fork is given, what is kept of it on the way, and what came of it.

A git workspace is two packs in bundle form. The base holds a commit with its history, is uploaded once and kept by
daemons; the thin one holds what a fork has beyond it. Paths are text; bytes that are no UTF-8 travel as surrogates.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field

from nexofork.wire.contents import BlobRef, WireModel
from nexofork.wire.ref_names import is_ref_name, is_relative_folder

__all__ = ["ChangedFile", "ChildCommit", "GitSpec", "PathSpec", "TreeState", "WorkspaceSpec", "WorkspaceWork"]

_OID = r"^[0-9a-f]{40}$"
Oid: TypeAlias = Annotated[str, Field(pattern=_OID)]


def _branch(name: str) -> str:
    if name and not is_ref_name(f"refs/heads/{name}"):
        raise ValueError("is no name of a branch")
    return name


def _reference(name: str) -> str:
    if not is_ref_name(name):
        raise ValueError("is no name of a reference")
    return name


def _folder(path: str) -> str:
    if not is_relative_folder(path):
        raise ValueError("is no folder below the root")
    return path


Branch: TypeAlias = Annotated[str, AfterValidator(_branch)]
Reference: TypeAlias = Annotated[str, AfterValidator(_reference)]
Folder: TypeAlias = Annotated[str, AfterValidator(_folder)]


class PathSpec(WireModel):
    """A folder that the daemon has too; the child works in it in place."""

    kind: Literal["path"]
    """Which of the two it is."""
    path: str = Field(pattern=r"^/[^\x00]*$", max_length=4096)
    """Where it is, on the daemon as on the parent."""


class GitSpec(WireModel):
    """A repository as the parent had it when it forked."""

    kind: Literal["git"]
    """Which of the two it is."""
    root: str
    """The parent's root, in the parent's spelling: the paths of the conversation begin with it."""
    real_root: str = ""
    """The same without links, where that differs."""
    folder: Folder = ""
    """Where the child works below the root."""
    base: Oid
    """The commit that the base bundle holds with its history."""
    bundle: BlobRef
    """The base bundle."""
    shallow: list[Oid] = Field(default_factory=list)
    """Commits whose parents nobody has, where the parent's own clone ends there."""
    head: Oid
    """The parent's HEAD."""
    commit: Oid
    """What the child starts from: HEAD, a commit on top of it with what was not committed, or its own earlier work."""
    thin: BlobRef | None = None
    """What the child's commit needs beyond the base; None where it is the base."""
    work: BlobRef | None = None
    """Where the child goes on from an earlier run: what that one made on top of the parent's HEAD."""
    branch: Branch = Field(default="", max_length=1024)
    """The branch of the parent's HEAD; empty where it was detached."""
    ignored: bool = False
    """Whether ignored files count too."""
    notes: list[str] = Field(default_factory=list)
    """What the child has to know about what could not be captured."""


WorkspaceSpec: TypeAlias = Annotated[PathSpec | GitSpec, Field(discriminator="kind")]


class TreeState(WireModel):
    """A child's repository at one moment: enough to set it up again as it was."""

    head: Oid
    """The commit that HEAD leads to."""
    branch: Branch = ""
    """The branch HEAD is on; empty where it is detached."""
    refs: dict[Reference, Oid] = Field(default_factory=dict)
    """Every branch and tag."""
    index: Oid
    """The tree of what is staged."""
    tree: Oid
    """The tree of all files as they are, untracked ones included."""


class ChildCommit(WireModel):
    """One commit of a child's."""

    id: Oid
    """Its hash."""
    subject: str = ""
    """The first line of its message."""


class ChangedFile(WireModel):
    """One file that a child changed; no counts for a binary one."""

    path: str
    """Below the root."""
    added: int | None = None
    """Lines."""
    deleted: int | None = None
    """Lines."""


class WorkspaceWork(WireModel):
    """What became of a git workspace."""

    root: str = ""
    """The parent's root."""
    base: Oid
    """The parent's HEAD at the fork; a repository needs it to take the work in."""
    start: Oid
    """The commit the child started from: the base, or one on top of it with what the parent had not committed."""
    head: Oid
    """The child's last commit."""
    commits: list[ChildCommit] = Field(default_factory=list)
    """The child's commits, newest first; at most 100."""
    files: list[ChangedFile] = Field(default_factory=list)
    """What differs from where it started; at most 1,000."""
    files_changed: int = 0
    """How many there are."""
    insertions: int = 0
    """Lines."""
    deletions: int = 0
    """Lines."""
    uncommitted: bool = False
    """Whether the last commit was made for the child, of what it had left uncommitted."""
    bundle: BlobRef | None = None
    """The commits beyond the base; None where there are none."""
    problem: str = ""
    """Why the work, or the end of it, could not be kept."""
