"""The dispatcher of the built-in tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexofork.engine.dispatch import ToolOutcome
from nexofork.engine.tools.bash import BashTool

if TYPE_CHECKING:
    from nexofork.engine.dispatch import ToolCall

__all__ = ["BuiltinTools"]


class BuiltinTools:
    """Runs ``Bash``; whatever else the parent's tool list names is answered as not available here."""

    def __init__(self, *, bash: BashTool | None = None) -> None:
        self._bash = bash or BashTool()

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Run a call."""
        if call.name == "Bash":
            return await self._bash.run(call.input)
        return ToolOutcome(content=f"There is no tool {call.name!r} on this host. Tools: Bash.", is_error=True)

    def parallel(self, call: ToolCall) -> bool:
        """Commands may depend on each other, so they run one after the other."""
        return call.name != "Bash"

    def read_only(self, call: ToolCall) -> bool:
        """A command may change anything."""
        return call.name != "Bash"
