"""A folder to run commands in, and a look at everything that could change in it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from typing import TYPE_CHECKING

from nexofork.policy.shell import READ_ONLY_ENVIRONMENT

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["listing", "make", "run"]

_FILES = {
    "a.txt": "x: 1\na1 b\ny\nx\nlast\n",
    "b.txt": "a\nb\n",
    "a b.txt": "spaced\n",
    "ünï.txt": "u\n",
    "a.json": '{"a": {"b": 1}}\n',
    "src/one.py": "def one():\n    return 1\n",
    "-o": "a file with the name of a flag\n",
    "-delete": "another\n",
    "evil": "#!/bin/sh\ntouch executed\n",
}


def make(folder: Path) -> Path:
    """Fill a folder: files, some named like flags, in a repository with changes."""
    for name, text in _FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "evil").chmod(0o755)
    git = ("git", "-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "init.defaultBranch=main")
    for arguments in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "one"), ("tag", "v1")):
        subprocess.run([*git, *arguments], cwd=folder, check=True, env=_environment(folder))
    (folder / "a.txt").write_text(_FILES["a.txt"] + "changed\n")
    subprocess.run([*git, "commit", "-q", "-a", "-m", "two"], cwd=folder, check=True, env=_environment(folder))
    (folder / "b.txt").write_text("a\nb\ndirty\n")
    os.utime(folder / "a.json", (1, 1))  # so that git would like to refresh its index
    return folder


def run(command: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Run a command as a tool would, without input."""
    return subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=folder,
        env=_environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )


def listing(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Everything below a folder: digest, mode and time of last change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        info = path.lstat()
        found[str(path.relative_to(folder))] = (hashlib.sha256(content).hexdigest(), info.st_mode, info.st_mtime_ns)
    return found


def _environment(folder: Path) -> dict[str, str]:
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8", **READ_ONLY_ENVIRONMENT}
