"""Tools that the parent runs: how a call and its outcome travel, and when a file tool is one of them.

The parent runs a question once, however often it is asked: the question's id is made from the call, so a daemon that
takes the run over asks the same one and gets the same answer.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Protocol

from nexofork.errors import BadMessage
from nexofork.policy.filters import REPL
from nexofork.policy.paths import by_words
from nexofork.tools.dispatch import ToolOutcome
from nexofork.tools.tool_names import AGENT_TOOL, BUILTIN_TOOLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from nexofork.tools.dispatch import ToolCall
    from nexofork.wire.parent_tools import ParentTools

__all__ = [
    "FILE_TOOLS",
    "BubbledTools",
    "MemoryElsewhere",
    "ParentsOwn",
    "decode_arguments",
    "decode_outcome",
    "encode_arguments",
    "encode_outcome",
    "named_path",
]

FILE_TOOLS = ("FileRead", "FileWrite", "FileEdit", "Glob", "Grep")
_CHANGING = ("FileWrite", "FileEdit")
_MAGIC = frozenset("*?[{\\")


class AskParent(Protocol):
    """Whoever can ask the parent."""

    async def __call__(self, call: ToolCall, *, name: str, deadline_s: float) -> bytes | None:
        """Return the outcome as it travels, or None where the parent gave none in time."""


class BubbledTools:
    """The tools the parent has; a route for every call that nobody before it took."""

    def __init__(
        self, offered: ParentTools, ask: AskParent, *, deadline_s: float, their_names: Mapping[str, str]
    ) -> None:
        """Make the route.

        Args:
            offered: What the request says of the parent's tools.
            ask: Asks the parent.
            deadline_s: The longest this host waits; the request may shorten it.
            their_names: What the parent's schema calls our tools, where that differs.
        """
        self._offered = offered
        self._ask = ask
        self._deadline_s = min(deadline_s, offered.deadline_s or deadline_s)
        self._their_names = their_names

    def names(self) -> Sequence[str]:
        """Return what the parent lists."""
        return self._offered.names or ()

    def has(self, name: str) -> bool:
        """Whether the parent has, or may have, a tool."""
        if name == AGENT_TOOL or name in BUILTIN_TOOLS:
            return False
        return self._offered.names is None or name in self._offered.names

    def takes(self, call: ToolCall) -> bool:
        """Whether the parent has, or may have, the tool."""
        return self.has(call.name)

    def gates_inside(self, name: str) -> bool | None:
        """As the parent says."""
        return name in self._offered.gates_inside if self.has(name) else None

    def bubbles(self, call: ToolCall) -> bool:
        """The parent runs it."""
        return True

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Ask the parent, and wait no longer than the deadline."""
        name = self._their_names.get(call.name, call.name)
        data = await self._ask(call, name=name, deadline_s=self._deadline_s)
        if data is None:
            said = (
                f"{call.name} runs at this fork's parent, which gave no answer within {self._deadline_s:g} s; it may "
                "have run in part or in full. Look before you repeat it, or go on without it."
            )
            return ToolOutcome(content=said, is_error=True)
        try:
            return decode_outcome(data)
        except BadMessage as exc:
            said = f"{call.name} ran at this fork's parent, but its answer cannot be used: {exc}"
            return ToolOutcome(content=said, is_error=True)

    def parallel(self, call: ToolCall) -> bool:
        """As the parent says."""
        return call.name in self._offered.parallel

    def read_only(self, call: ToolCall) -> bool:
        """As the parent says."""
        return call.name in self._offered.read_only


class _AtParent:
    """Calls that go to the parent before anybody here is asked."""

    def __init__(self, bubbled: BubbledTools) -> None:
        self._bubbled = bubbled

    def bubbles(self, call: ToolCall) -> bool:
        """The parent runs it."""
        return True

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Ask the parent."""
        return await self._bubbled.dispatch(call)


class ParentsOwn(_AtParent):
    """What the parent lists as its own, a REPL, and what it was already asked: no plug-in or server here hides it."""

    def __init__(self, bubbled: BubbledTools, *, asked: frozenset[str] = frozenset()) -> None:
        super().__init__(bubbled)
        self._asked = asked

    def names(self) -> Sequence[str]:
        """Return what the parent lists."""
        return self._bubbled.names()

    def takes(self, call: ToolCall) -> bool:
        """Whether the tool is the parent's own, or the call was its to run before this host had the run."""
        return call.id in self._asked or self._owns(call.name)

    def gates_inside(self, name: str) -> bool | None:
        """As the parent says."""
        return self._bubbled.gates_inside(name) if self._owns(name) else None

    def parallel(self, call: ToolCall) -> bool:
        """As the parent says."""
        return self._bubbled.parallel(call)

    def read_only(self, call: ToolCall) -> bool:
        """As the parent says."""
        return self._bubbled.read_only(call)

    def _owns(self, name: str) -> bool:
        return self._bubbled.has(name) and (name in self._bubbled.names() or name == REPL)


class MemoryElsewhere(_AtParent):
    """The file tools, for paths in a memory folder that only the parent has."""

    def __init__(self, bubbled: BubbledTools, folders: Iterable[str], *, cwd: Path | None) -> None:
        super().__init__(bubbled)
        self._folders = tuple(by_words(folder) for folder in folders)
        self._cwd = str(cwd) if cwd else os.getcwd()

    def names(self) -> Sequence[str]:
        """Name nothing that is not known already."""
        return ()

    def takes(self, call: ToolCall) -> bool:
        """Whether a file tool is called for a path in the folder, by the words of the call."""
        if call.name not in FILE_TOOLS:
            return False
        path = named_path(call.name, call.input, cwd=self._cwd)
        return path is not None and any(path == folder or path.startswith(folder + "/") for folder in self._folders)

    def gates_inside(self, name: str) -> bool | None:
        """A file tool calls nothing inside."""
        return None

    def parallel(self, call: ToolCall) -> bool:
        """Whether nothing is changed."""
        return call.name not in _CHANGING

    def read_only(self, call: ToolCall) -> bool:
        """Whether nothing is changed."""
        return call.name not in _CHANGING


def named_path(name: str, arguments: Mapping[str, Any], *, cwd: str) -> str | None:
    """Return where a call of a file tool works, made absolute by its words alone; None where they name no path."""
    if name.startswith("File"):
        given = arguments.get("file_path")
        return by_words(os.path.join(cwd, given)) if isinstance(given, str) and given else None
    path, pattern = arguments.get("path") or "", arguments.get("pattern")
    if not isinstance(path, str):
        return None
    start = ""
    if name == "Glob" and isinstance(pattern, str):
        # The folders before the first wildcard are where the search begins.
        folders = pattern.split("/")[:-1]
        plain = next((at for at, part in enumerate(folders) if _MAGIC & set(part)), len(folders))
        start = "/".join(folders[:plain]) or ("/" if plain else "")
    return by_words(os.path.join(cwd, path, start))


def encode_arguments(call: ToolCall) -> bytes:
    """Return a call's arguments as they travel."""
    return json.dumps(call.input, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def decode_arguments(data: bytes) -> dict[str, Any]:
    """Read arguments that travelled.

    Raises:
        BadMessage: They are no JSON object.
    """
    try:
        arguments = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise BadMessage("is a tool call whose arguments are not JSON", fix="Update the daemon.") from exc
    if not isinstance(arguments, dict):
        raise BadMessage("is a tool call whose arguments are no JSON object", fix="Update the daemon.")
    return arguments


def encode_outcome(outcome: ToolOutcome) -> bytes:
    """Return an outcome as it travels; one that is no JSON is an error the model can read."""
    try:
        return _dumps(outcome)
    except (TypeError, ValueError, RecursionError) as exc:
        return _dumps(ToolOutcome(content=f"The tool's result cannot be sent: {exc}", is_error=True))


def decode_outcome(data: bytes) -> ToolOutcome:
    """Read an outcome that travelled.

    Raises:
        BadMessage: It is none.
    """
    try:
        plain = json.loads(data)
        content, is_error = plain["content"], plain.get("is_error", False)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise BadMessage(f"is no tool's outcome ({type(exc).__name__})", fix=_FIX) from exc
    blocks = isinstance(content, list) and all(
        isinstance(block, dict) and isinstance(block.get("type"), str) for block in content
    )
    if not isinstance(content, str) and not blocks:
        raise BadMessage("is a tool's outcome whose content is neither text nor blocks", fix=_FIX)
    return ToolOutcome(content=content, is_error=bool(is_error))


_FIX = "Answer with an object of `content` and `is_error`; see docs/protocol.md."


def _dumps(outcome: ToolOutcome) -> bytes:
    plain = {"content": outcome.content} | ({"is_error": True} if outcome.is_error else {})
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
        "utf-8", "backslashreplace"
    )
