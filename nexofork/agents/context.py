"""What a named agent may be told about the project it works in; gathered once per session, so that it never changes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["AgentContext", "read_context"]

_CONVENTIONS = ("AGENTS.md", "CLAUDE.md")
_MOST_CONVENTIONS = 200_000
_MOST_STATUS = 20_000
_GIT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """The texts; an empty one is left out."""

    project_conventions: str = ""
    git_status: str = ""


async def read_context(folder: Path) -> AgentContext:
    """Return the conventions in a project's ``AGENTS.md`` or ``CLAUDE.md``, and its state in git; empty without."""
    files = (folder / name for name in _CONVENTIONS)
    conventions = await asyncio.to_thread(lambda: next(filter(None, map(_read, files)), ""))
    return AgentContext(project_conventions=conventions, git_status=await _git_status(folder))


def _read(path: Path) -> str:
    try:
        return _shortened(path.read_text(errors="replace").strip(), _MOST_CONVENTIONS)
    except OSError:
        return ""


async def _git_status(folder: Path) -> str:
    command = ("git", "-C", str(folder), "--no-optional-locks", "status", "--short", "--branch")
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=nothing, stdout=pipe, stderr=nothing)
    except OSError:
        return ""
    try:
        async with asyncio.timeout(_GIT_S):
            said, _ = await process.communicate()
    except TimeoutError:
        return ""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return "" if process.returncode else _shortened(said.decode(errors="replace").strip(), _MOST_STATUS)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}\n[{len(text) - most} characters left out]"
