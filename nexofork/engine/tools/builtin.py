"""The dispatcher of the built-in tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexofork.engine.dispatch import ToolOutcome
from nexofork.engine.tool_names import BUILTIN_TOOLS
from nexofork.engine.tools.arguments import Unable
from nexofork.engine.tools.bash import BashTool
from nexofork.engine.tools.files import FileTools
from nexofork.engine.tools.place import Place
from nexofork.engine.tools.search import SearchTools

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nexofork.engine.dispatch import ToolCall

__all__ = ["BuiltinTools"]

_CHANGING = frozenset({"Bash", "FileWrite", "FileEdit"})


class BuiltinTools:
    """Runs the built-in tools, all of them in one place; whatever else is called is answered as not available here."""

    def __init__(self, place: Place | None = None, *, search: SearchTools | None = None) -> None:
        place = place or Place()
        self.cwd = place.shown_cwd
        """Where relative paths start; None is where this process runs."""
        self._bash = BashTool(cwd=place.cwd, home=place.home, limits=place.limits, sandbox=place.sandbox)
        files = FileTools.at(place)
        search = search or SearchTools(cwd=place.cwd, sandbox=place.sandbox, view=place.view)
        self._tools: dict[str, Callable[[ToolCall], Awaitable[ToolOutcome]]] = {
            "Bash": self._run_bash,
            "FileRead": files.read,
            "FileWrite": files.write,
            "FileEdit": files.edit,
            "Glob": search.glob,
            "Grep": search.grep,
        }
        assert tuple(self._tools) == BUILTIN_TOOLS

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Run a call."""
        tool = self._tools.get(call.name)
        if tool is None:
            said = f"There is no tool {call.name!r} on this host. Tools: {', '.join(self._tools)}."
            return ToolOutcome(content=said, is_error=True)
        try:
            return await tool(call)
        except Unable as exc:
            return ToolOutcome(content=str(exc), is_error=True)

    def parallel(self, call: ToolCall) -> bool:
        """Whether nothing is changed: commands and changes may depend on each other, so they run in order."""
        return call.name not in _CHANGING

    def read_only(self, call: ToolCall) -> bool:
        """Whether the tool only looks; a command may change anything."""
        return call.name not in _CHANGING

    async def _run_bash(self, call: ToolCall) -> ToolOutcome:
        return await self._bash.within(call.environment).run(call.input)
