"""Read definitions from Markdown files: front matter for what an agent is, the text behind it for its prompt."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Any

from nexofork.agents.definition import AgentDefinition, check_definition
from nexofork.agents.front_matter import Entry, read_front_matter
from nexofork.errors import BadAgentDefinition

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["read_definition", "read_folder"]

_MOST_BYTES = 1_000_000
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")


def read_folder(folder: Path) -> tuple[list[AgentDefinition], list[BadAgentDefinition]]:
    """Return the definitions of a folder's ``*.md`` files, and what is wrong with the others; none where it is not."""
    found: list[AgentDefinition] = []
    problems: list[BadAgentDefinition] = []
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".md")
    except FileNotFoundError:
        return found, problems
    except OSError as exc:
        unread = BadAgentDefinition(
            f"cannot be listed: {exc.strerror}", fix="Make it a folder you may read.", where=str(folder)
        )
        return found, [unread]
    for path in paths:
        try:
            found.append(read_definition(path))
        except BadAgentDefinition as exc:
            problems.append(exc)
    return found, problems


def read_definition(path: Path) -> AgentDefinition:
    """Read one file; its name is the agent's unless it says another.

    Raises:
        BadAgentDefinition: It cannot be used; names file, line, key and value.
    """
    front = read_front_matter(_text(path), where=str(path))
    values: dict[str, Any] = {"name": path.stem, "description": ""}
    lines: dict[str, int] = {}
    for written, entry in front.entries.items():
        key = _HUMP.sub("_", written).lower().replace("-", "_")
        read = _READERS.get(key)
        if read is None or key in lines:
            problem = "is no key of an agent" if read is None else f"says the same as the key in line {lines[key]}"
            fix = f"Keys: {', '.join(_READERS)}." if read is None else "Keep one of the two."
            raise BadAgentDefinition(problem, fix=fix, where=str(path), line=entry.line, key=written)
        try:
            values[key] = read(entry)
        except ValueError as exc:
            raise BadAgentDefinition(
                f"{_shown(entry)} is not {exc}", fix=f"Write {exc}.", where=str(path), line=entry.line, key=written
            ) from exc
        lines[key] = entry.line
    definition = AgentDefinition(**values, prompt=front.body, source=str(path))
    try:
        check_definition(definition)
    except BadAgentDefinition as exc:
        line = lines.get(exc.key or "")
        raise BadAgentDefinition(exc.problem, fix=exc.fix, where=str(path), line=line, key=exc.key) from exc
    return definition


def _text(path: Path) -> str:
    def bad(problem: str, fix: str) -> BadAgentDefinition:
        return BadAgentDefinition(problem, fix=fix, where=str(path))

    try:
        found = _read(path)
    except OSError as exc:
        raise bad(f"cannot be read: {exc.strerror}", "Make it a file you may read.") from exc
    if found is None:
        raise bad("is no regular file", "Write the definition to a file.")
    data, size = found
    if size > _MOST_BYTES:
        raise bad(f"has {size:,} bytes", f"An agent's prompt has at most {_MOST_BYTES:,}.")
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as exc:
        raise bad(f"is not UTF-8 at byte {exc.start}", "Save it as UTF-8.") from exc


def _read(path: Path) -> tuple[bytes, int] | None:
    """Return a file's beginning, longer than a definition may be, and its size; None where it is no regular file."""
    # Opening a FIFO would wait for a writer, and a device may never end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            return None
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(_MOST_BYTES + 1)
        return data, max(len(data), info.st_size)
    finally:
        os.close(descriptor)


def _one_text(entry: Entry) -> str:
    if not isinstance(entry.value, str) or not entry.value.strip():
        raise ValueError("one text")
    return entry.value


def _names(entry: Entry) -> tuple[str, ...]:
    listed = entry.value.split(",") if isinstance(entry.value, str) else entry.value
    names = tuple(name.strip() for name in listed)
    if not all(names):
        raise ValueError("a list of names")
    return names


def _number(entry: Entry) -> int:
    if not isinstance(entry.value, str) or not re.fullmatch(r"-?[0-9]{1,9}", entry.value):
        raise ValueError("a whole number")
    return int(entry.value)


def _yes_or_no(entry: Entry) -> bool:
    if entry.value not in ("true", "false"):
        raise ValueError("true or false")
    return entry.value == "true"


_READERS: dict[str, Callable[[Entry], Any]] = {
    "name": _one_text,
    "description": _one_text,
    "tools": _names,
    "disallowed_tools": _names,
    "model": _one_text,
    "max_turns": _number,
    "permission_mode": _one_text,
    "omit_project_conventions": _yes_or_no,
    "omit_git_status": _yes_or_no,
    "tool_filter": _one_text,
}


def _shown(entry: Entry) -> str:
    return repr(entry.value if isinstance(entry.value, str) else list(entry.value))[:80]
