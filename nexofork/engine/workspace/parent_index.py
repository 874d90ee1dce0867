"""Copy a parent's index, and make the copy say all that the parent's files are.

An index may leave out whole folders (a sparse index), and tell git not to look at files (``--assume-unchanged``,
``--skip-worktree``). Taken as it is, the first would count as removed and the others as they were once committed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nexofork.engine.workspace.git import Git

__all__ = ["copy_index", "expand_index", "look_at_all"]

_SPARSE_MARK = b"sdir"
"""The extension by which an index says that some of its entries are folders."""
_FOLDER = b"040000"
_AS_SPARSE = ("-c", "core.sparseCheckout=true", "-c", "core.sparseCheckoutCone=true", "-c", "index.sparse=true")


def copy_index(source: Path, target: Path) -> None:
    """Copy the index of a repository, and what it refers to."""
    if (source / "index").exists():
        # With its time: by that git tells which files may have changed since.
        shutil.copy2(source / "index", target / "index")
    for shared in source.glob("sharedindex.*"):
        shutil.copy2(shared, target)
    if (patterns := source / "info/sparse-checkout").is_file():
        shutil.copyfile(patterns, target / "info/sparse-checkout")


async def expand_index(git: Git, objects: Path) -> None:
    """Replace the folders of a sparse index by the files in them.

    Their trees are packed first, into the repository of the copy: with the parent's own objects in sight git would
    mark those as just used.

    Raises:
        GitFailed: A folder's tree is not there.
        ForkRefused: This git cannot do it.
    """
    if not await asyncio.to_thread(_is_sparse, git):
        return
    printed = await replace(git, settings=_AS_SPARSE).run("ls-files", "-z", "--stage", "--sparse")
    folders = [line.split(b" ")[1] for line in printed.split(b"\0") if line.startswith(_FOLDER)]
    if folders:
        borrowing = {**git.environment, "GIT_ALTERNATE_OBJECT_DIRECTORIES": os.fspath(objects)}
        trees = await replace(git, environment=borrowing).run(
            *("pack-objects", "--revs", "--stdout", "-q", "--filter=blob:none"), stdin=b"\n".join(folders) + b"\n"
        )
        await git.run("index-pack", "--stdin", stdin=trees)
    await git.run("update-index", "--force-write-index")
    if await asyncio.to_thread(_is_sparse, git):
        raise ForkRefused(
            "The repository's index is sparse; run `git sparse-checkout reapply --no-sparse-index` first."
        )


def _is_sparse(git: Git) -> bool:
    index = git.environment["GIT_INDEX_FILE"]
    if not os.path.exists(index):
        return False
    with open(index, "rb") as file:
        return _SPARSE_MARK in file.read()


async def look_at_all(git: Git) -> None:
    """Have git look at every file that is there, whatever the index was told.

    Raises:
        GitFailed: Git cannot read it.
    """
    printed = await git.run("ls-files", "-z", "-v", "--cached")
    lines = [(line[:1], line[2:]) for line in printed.split(b"\0") if line]
    await _forget(git, "--no-assume-unchanged", [path for tag, path in lines if tag.islower()])
    skipped = [path for tag, path in lines if tag.upper() == b"S"]
    await _forget(git, "--no-skip-worktree", await asyncio.to_thread(_there, git, skipped))


def _there(git: Git, paths: Sequence[bytes]) -> list[bytes]:
    root = os.fsencode(git.cwd)
    return [path for path in paths if os.path.lexists(os.path.join(root, path))]


async def _forget(git: Git, what: str, paths: Sequence[bytes]) -> None:
    if paths:
        await git.run("update-index", what, "-z", "--stdin", stdin=b"".join(path + b"\0" for path in paths))
