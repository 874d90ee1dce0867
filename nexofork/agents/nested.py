"""Let a named agent that has Agent among its tools start others, one level deep.

It has no loop that reads notifications, so it waits for what it starts and gets the answer as the call's result.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nexofork.errors import BusError, ForkRefused
from nexofork.tools.dispatch import AGENT_TOOL, ToolOutcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nexofork.agents.background import Running
    from nexofork.tools.dispatch import ToolCall, ToolDispatcher

__all__ = ["NestedAgents"]


class NestedAgents:
    """A named agent's tools, and Agent beside them."""

    def __init__(self, tools: ToolDispatcher, start: Callable[[ToolCall], Awaitable[Running]]) -> None:
        self._tools = tools
        self._start = start

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Run a call; one of Agent takes until the agent it starts has ended."""
        if call.name != AGENT_TOOL:
            return await self._tools.dispatch(call)
        try:
            handle = await self._start(call)
        except (ForkRefused, BusError) as exc:
            return ToolOutcome(content=str(exc), is_error=True)
        try:
            result = await handle.result()
        except asyncio.CancelledError:
            handle.abort("the agent that started it was aborted")
            raise
        return ToolOutcome(content=result.final_text or result.error or result.status.value, is_error=not result.ok)

    def parallel(self, call: ToolCall) -> bool:
        """Agents run side by side."""
        return call.name == AGENT_TOOL or self._tools.parallel(call)

    def read_only(self, call: ToolCall) -> bool:
        """What an agent does is not known."""
        return call.name != AGENT_TOOL and self._tools.read_only(call)

    def gates_inside(self, name: str) -> bool:
        """As the tools say, where they do."""
        says = getattr(self._tools, "gates_inside", None)
        return says is not None and bool(says(name))
