"""Keep the notes of a session in a file: a sidecar says what they should be, and this process writes them.

The child needs no tools for that, so one call does it, on any host. The file is replaced as a whole or not at all.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nexofork.agents.sidecars.launch import Sidecar
from nexofork.agents.sidecars.speech import said_nothing
from nexofork.agents.sidecars.words import notes_prompt
from nexofork.core.query_source import QuerySource
from nexofork.errors import ForkRefused
from nexofork.policy.filters import OnlyToolsFilter

if TYPE_CHECKING:
    from nexofork.agents.sidecars.launch import SidecarHost
    from nexofork.run.result import ForkResult

__all__ = ["NotesResult", "replace_file", "session_memory"]

_MOST_BYTES = 200_000
_TURNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NotesResult:
    """What became of a session's notes."""

    changed: bool
    """Whether the file was written."""
    reason: str
    """Why it was not; empty where it was."""
    notes: str
    """The notes as they are now."""
    result: ForkResult

    @property
    def ok(self) -> bool:
        """Whether the notes are up to date."""
        return self.result.ok


async def session_memory(host: SidecarHost, file: str | Path, *, timeout_s: float = 120.0) -> NotesResult:
    """Bring the notes of a session up to date, in a file that is made where there is none.

    Args:
        host: Starts it.
        file: The notes.
        timeout_s: When it is given up; the file is then as it was.

    Raises:
        EmptySlot: The session has not made a request yet.
        ForkRefused: The file cannot be read or written, or the run cannot be started as it is.
        BusError: NATS was not reached.
    """
    path = Path(file)
    snapshot = host.source.snapshot()
    current = await asyncio.to_thread(_read, path)
    result = await host.run(
        Sidecar(
            label="session_memory",
            query_source=QuerySource.SESSION_MEMORY,
            prompt=(notes_prompt(current),),
            tool_filter=OnlyToolsFilter(()),
            max_turns=_TURNS,
            timeout_s=timeout_s,
            looks=False,
        ),
        snapshot=snapshot,
    )
    notes = result.final_text.strip() + "\n"
    reason = _why_not(result, notes, current)
    if reason:
        return NotesResult(changed=False, reason=reason, notes=current, result=result)
    await asyncio.to_thread(replace_file, path, notes.encode("utf-8", "backslashreplace"))
    return NotesResult(changed=True, reason="", notes=notes, result=result)


def _why_not(result: ForkResult, notes: str, current: str) -> str:
    if not result.ok:
        return f"the run ended as {result.status}: {result.error or result.end}"
    if not notes.strip():
        return "the model said nothing"
    if said_nothing(notes) or notes == current:
        return "the notes say it all already"
    return ""


def _read(path: Path) -> str:
    if not path.parent.is_dir():
        raise ForkRefused(f"The notes cannot be kept in {path}: {path.parent} is not a folder. Create it.")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ""
    except OSError as exc:
        raise ForkRefused(f"The notes {path} cannot be read: {exc.strerror}. Name another file.") from exc
    if len(data) > _MOST_BYTES:
        raise ForkRefused(
            f"The notes {path} have {len(data):,} bytes; a model is shown at most {_MOST_BYTES:,}. Shorten them."
        )
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise ForkRefused(f"{path} is no text in UTF-8, so these are no notes. Name another file.") from exc


def replace_file(path: Path, data: bytes) -> None:
    """Write a file as a whole: whoever reads it sees the old or the new one.

    Raises:
        ForkRefused: It cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(name, (path.stat().st_mode & 0o777) if path.exists() else 0o644)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as exc:
        raise ForkRefused(f"{path} cannot be written: {exc.strerror}. Nothing was changed.") from exc
