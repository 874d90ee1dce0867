"""What a parent's git has been told that matters for a capture: how files are read, and which are not to be shown.

Those of the repository alone say how files are read, so that who captures it does not matter. What the user ignores
everywhere is respected too: it is what must not leave the host.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.engine.settings import default_ignore_file
from nexofork.engine.workspace.git import Git

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ParentSettings", "parent_settings"]

_SHARED = ("autocrlf", "eol", "filemode", "safecrlf", "precomposeunicode")
_YES = ("true", "yes", "on", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentSettings:
    """What a parent's git has been told."""

    options: tuple[str, ...]
    """For the git that captures."""
    crlf: bool
    """Whether files have other ends of lines in the parent's checkout than in its commits."""
    partial: bool
    """Whether it is a partial clone, which lacks some of its own objects."""


async def parent_settings(git_dir: Path, common_dir: Path) -> ParentSettings:
    """Read the settings of a repository and of whoever uses it; nothing that they name is run.

    Raises:
        GitFailed: They cannot be read.
    """
    users = Git(users=True, settings=(f"--git-dir={os.fspath(git_dir)}",))
    ignoring = os.fsdecode(await users.run("config", "-z", "--type=path", "--get", "core.excludesFile", also=(1,)))
    lines = _values(await users.run("config", "-z", "--get-regexp", r"^core\.(autocrlf|eol)$", also=(1,)))
    file = os.fspath(common_dir / "config")
    own = _values(await Git().run("config", "--file", file, "--no-includes", "--list", "-z", also=(1, 128)))
    shared = {f"core.{name}": own[f"core.{name}"] for name in _SHARED if f"core.{name}" in own}
    # An empty one was printed too: its user ignores nothing.
    chosen = {**shared, "core.excludesFile": ignoring.rstrip("\0") if ignoring else os.fspath(default_ignore_file())}
    return ParentSettings(
        options=tuple(word for name, value in chosen.items() for word in ("-c", f"{name}={value}")),
        crlf=lines.get("core.autocrlf", "").lower() in _YES or lines.get("core.eol") == "crlf",
        partial=any(name == "extensions.partialclone" or name.endswith(".promisor") for name in own),
    )


def _values(printed: bytes) -> dict[str, str]:
    """Return the last value of every setting; one without a value is on."""
    lines = (line.partition("\n") for line in os.fsdecode(printed).split("\0") if line)
    return {name: value if separator else "true" for name, separator, value in lines}
