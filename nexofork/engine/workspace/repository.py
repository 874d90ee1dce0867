"""Repositories made by hand: a few files are a repository, and no program has to run to write them.

Objects of others are borrowed (alternates), so nothing is copied and nothing that is borrowed is written to.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nexofork.engine.workspace.git import Git

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["alternates", "git_in", "make_repository", "take_pack"]

_PLAIN = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = {bare}\n\tlogallrefupdates = {logged}\n"
# Paths are what can do harm; what old commits say about their authors cannot.
_HISTORICAL = ",".join(
    f"{problem}=ignore"
    for problem in (
        *("badDate", "badDateOverflow", "badEmail", "badName", "badTimezone", "missingAuthor", "missingCommitter"),
        *("missingEmail", "missingNameBeforeEmail", "missingSpaceBeforeDate", "missingSpaceBeforeEmail"),
        *("multipleAuthors", "zeroPaddedDate", "zeroPaddedFilemode"),
    )
)


def make_repository(
    folder: Path,
    *,
    head: str,
    borrow: Sequence[Path] = (),
    shallow: Sequence[str] = (),
    bare: bool = True,
    config: str = "",
) -> None:
    """Write a repository without objects of its own.

    Args:
        folder: Where; it must not be there yet.
        head: What HEAD says: a commit, or ``ref: …``.
        borrow: Folders of objects it reads from.
        shallow: Commits whose parents are not to be had.
        bare: Whether it has no files.
        config: Further lines of its configuration.
    """
    for part in ("objects/info", "objects/pack", "refs/heads", "info"):
        (folder / part).mkdir(parents=True)
    plain = _PLAIN.format(bare=str(bare).lower(), logged=str(not bare).lower())
    (folder / "config").write_text(plain + config)
    (folder / "HEAD").write_text(f"{head}\n")
    if borrow:
        (folder / "objects/info/alternates").write_bytes(alternates(borrow))
    if shallow:
        (folder / "shallow").write_text("".join(f"{commit}\n" for commit in shallow))


def alternates(borrow: Sequence[Path]) -> bytes:
    """Return what a repository's ``objects/info/alternates`` says where it reads from other folders of objects."""
    return b"".join(os.fsencode(path) + b"\n" for path in borrow)


def git_in(folder: Path, *, files: Path | None = None, index: Path | None = None) -> Git:
    """Return git on a repository, wherever its files and its index are."""
    environment = {"GIT_DIR": os.fspath(folder)}
    if files is not None:
        environment["GIT_WORK_TREE"] = os.fspath(files)
    if index is not None:
        environment["GIT_INDEX_FILE"] = os.fspath(index)
    return Git(environment=environment, cwd=files or folder)


async def take_pack(git: Git, pack: bytes) -> None:
    """Store a pack that somebody sent; every object is checked, and everything it leads to must be there.

    Raises:
        GitFailed: It is damaged, leads nowhere, or holds something that no repository may, such as a path with ``..``.
    """
    await git.run("index-pack", "--stdin", "--fix-thin", f"--strict={_HISTORICAL}", stdin=pack)
