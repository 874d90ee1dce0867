"""Repositories for tests: made with the real git, looked at byte by byte."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nexofork.workspace import ShippedWorkspace

if TYPE_CHECKING:
    from nexofork import ForkParams
    from nexofork.client.fleet import NatsForkSubagent

__all__ = ["ELSEWHERE", "Repo", "fingerprint", "from_elsewhere", "tree_of"]

ELSEWHERE = "/elsewhere/repo"
"""Where a parent on another host has its repository; there is no such folder here."""

_WHO = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "init.defaultBranch=main")


class Repo:
    """A repository with one commit, unless told otherwise."""

    def __init__(self, path: Path, files: dict[str, str] | None = None, *, commit: bool = True) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q")
        for name, content in (files or {"a.txt": "one\n", "src/b.txt": "two\n"}).items():
            self.write(name, content)
        if commit:
            self.commit("First")

    @classmethod
    def at(cls, path: Path) -> Repo:
        """A repository that is there already."""
        repo = cls.__new__(cls)
        repo.path = path
        return repo

    def git(self, *arguments: str, code: int | None = 0) -> str:
        """What git prints; fails unless it ends as expected."""
        done = subprocess.run(
            ["git", *_WHO, *arguments],
            cwd=self.path,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
            env={"PATH": os.defpath, "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"},
        )
        assert code is None or done.returncode == code, done.stderr
        return done.stdout.strip()

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file, and the folders it is in."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def commit(self, subject: str) -> str:
        """Commit everything."""
        self.git("add", "-A")
        self.git("commit", "-q", "-m", subject)
        return self.head

    @property
    def head(self) -> str:
        """The commit of HEAD."""
        return self.git("rev-parse", "HEAD")

    def show(self, revision: str, path: str) -> str:
        """A file as it is in a commit."""
        return self.git("show", f"{revision}:{path}")


async def from_elsewhere(forks: NatsForkSubagent, params: ForkParams, **spec: str) -> ForkParams:
    """The same fork as a parent on another host would ask for it, with its repository at `ELSEWHERE`."""
    _check_elsewhere()
    shipped = await forks.shipped(params)
    assert isinstance(shipped.workspace, ShippedWorkspace)
    moved = shipped.workspace.spec.model_copy(update={"root": ELSEWHERE, "real_root": "", **spec})
    return replace(shipped, workspace=ShippedWorkspace(spec=moved))


def _check_elsewhere() -> None:
    assert not os.path.lexists(ELSEWHERE), f"remove {ELSEWHERE}: a test that failed has left it on this host"


def fingerprint(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Every file below a folder: its digest, its time, its rights."""
    found = {}
    for path in sorted(folder.rglob("*")):
        seen = path.lstat()
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(folder))] = (hashlib.sha256(data).hexdigest(), seen.st_mtime_ns, seen.st_mode)
    return found


def tree_of(folder: Path) -> dict[bytes, tuple[str, bytes]]:
    """Every file of a work tree: what it is, and what it holds; ``.git`` apart."""
    root, found = os.fsencode(folder), {}
    for where, folders, names in os.walk(root):
        if where == root and b".git" in folders:
            folders.remove(b".git")
        for name in (*names, *(name for name in folders if os.path.islink(os.path.join(where, name)))):
            path = os.path.join(where, name)
            key = os.path.relpath(path, root)
            if os.path.islink(path):
                found[key] = ("link", os.readlink(path))
            else:
                found[key] = (
                    "x" if os.access(path, os.X_OK) and os.stat(path).st_mode & 0o100 else "-",
                    Path(os.fsdecode(path)).read_bytes(),
                )
    return found
