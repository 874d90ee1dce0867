"""The built-in tools in a folder, called as a fork would."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from nexofork import ParentContext
from nexofork.tools.builtin import BuiltinTools
from nexofork.tools.dispatch import ToolCall
from nexofork.tools.place import Place

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nexofork.sandbox.run_sandbox import Enclosure
    from nexofork.tools.dispatch import ToolOutcome
    from nexofork.tools.search import SearchTools

__all__ = ["Hands", "deep_folder"]


class Hands:
    """One fork's tools and what it has seen."""

    def __init__(self, folder: Path, *, search: SearchTools | None = None, **context: Any) -> None:
        self.folder = folder
        self.sandbox: Enclosure | None = None
        self.context = ParentContext(**context)
        self.tools = BuiltinTools(Place(cwd=folder), search=search)

    @classmethod
    def at(cls, place: Place, **context: Any) -> Hands:
        """The tools at a place that somebody made."""
        assert place.cwd is not None
        hands = cls(place.cwd, **context)
        hands.tools = BuiltinTools(place)
        hands.sandbox = place.sandbox
        return hands

    def call(self, name: str, arguments: dict[str, Any], **more: Any) -> ToolCall:
        """A call as the model would make it."""
        return ToolCall(run_id="r", id="c", name=name, input=arguments, context=self.context, **more)

    async def outcome(self, name: str, **arguments: Any) -> ToolOutcome:
        """Whatever comes of a call."""
        return await self.tools.dispatch(self.call(name, arguments))

    async def good(self, name: str, **arguments: Any) -> str:
        """The text of a call that works."""
        outcome = await self.outcome(name, **arguments)
        assert isinstance(outcome.content, str)
        assert not outcome.is_error, outcome.content
        return outcome.content

    async def bad(self, name: str, **arguments: Any) -> str:
        """The text of a call that does not."""
        outcome = await self.outcome(name, **arguments)
        assert isinstance(outcome.content, str)
        assert outcome.is_error, outcome.content
        return outcome.content

    async def judged(
        self, name: str, deny: Callable[[str, dict[str, Any]], str | None], **arguments: Any
    ) -> ToolOutcome:
        """Whatever comes of a call that a filter is asked about."""
        return await self.tools.dispatch(self.call(name, arguments, deny=deny))


def deep_folder(top: Path, *, depth: int, name: str = "d") -> None:
    """Make a folder in a folder in a folder, with a file at the end that no path need reach."""
    top.mkdir(parents=True)
    folder = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=folder)
        below = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    os.close(folder)
