"""What a caller says about a child's workspace."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    from nexofork.wire.workspace import GitSpec, PathSpec

__all__ = ["GitWorkspace", "PathWorkspace", "ShippedWorkspace", "Workspace", "check_workspace"]


@dataclass(frozen=True, slots=True)
class PathWorkspace:
    """A folder that parent and daemon share, such as a network file system; the child works in it in place."""

    path: str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class GitWorkspace:
    """A repository: the child gets a checkout of its own, as the parent's files are now, committed or not."""

    root: str | os.PathLike[str]
    """Any folder of the repository; below its root, it is where the child works."""
    include_ignored: bool = False
    """Whether ignored files go along, and come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedWorkspace:
    """A workspace that was captured and uploaded, for as many children as share it."""

    spec: PathSpec | GitSpec


Workspace: TypeAlias = PathWorkspace | GitWorkspace | ShippedWorkspace


def check_workspace(workspace: object) -> None:
    """Refuse what cannot be a workspace, as far as that can be told without looking into it.

    Raises:
        ForkRefused: It is none, or its path is not absolute or no text.
    """
    if workspace is None or isinstance(workspace, ShippedWorkspace):
        return
    if not isinstance(workspace, (PathWorkspace, GitWorkspace)):
        kinds = "GitWorkspace(root), PathWorkspace(path) or None"
        raise ForkRefused(f"{workspace!r} is no workspace; give {kinds}.")
    path = workspace.path if isinstance(workspace, PathWorkspace) else workspace.root
    if isinstance(workspace, PathWorkspace) and not Path(path).is_absolute():
        raise ForkRefused(f"The workspace {os.fspath(path)!r} is not absolute; daemons run elsewhere.")
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError as exc:
        raise ForkRefused(
            f"The workspace's path {os.fspath(path)!r} is not UTF-8, so no child can be told of it; rename the folder."
        ) from exc
