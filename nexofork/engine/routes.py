"""Send each tool call to whoever has the tool: this host's own tools, a plug-in, an MCP server, the parent.

The first route that takes a call runs it. The schema the model sees is the parent's and is never changed by what there
is here, so a call may be for a tool nobody has: the answer then names those there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nexofork.engine.dispatch import ToolDispatcher, ToolOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nexofork.engine.dispatch import ToolCall

__all__ = ["NamedTools", "Route", "RoutedTools"]

_SHOWN = 60


class Route(ToolDispatcher, Protocol):
    """A dispatcher that knows which calls are for it."""

    def names(self) -> Sequence[str]:
        """Return the tools it is known to have."""

    def takes(self, call: ToolCall) -> bool:
        """Whether it runs this call."""

    def gates_inside(self, name: str) -> bool | None:
        """Whether a tool of its own asks ``ToolCall.deny`` about what it calls inside; None if it is not its own."""

    def bubbles(self, call: ToolCall) -> bool:
        """Whether the parent runs the call, so that asking for it twice runs it once."""


class NamedTools:
    """A dispatcher's tools of some names, as a route."""

    def __init__(self, dispatcher: ToolDispatcher, names: Iterable[str]) -> None:
        self._dispatcher = dispatcher
        self._names = tuple(names)

    def names(self) -> Sequence[str]:
        """Return the names it was given."""
        return self._names

    def takes(self, call: ToolCall) -> bool:
        """Whether the tool is one of them."""
        return call.name in self._names

    def gates_inside(self, name: str) -> bool | None:
        """As the dispatcher says; one that says nothing does not."""
        if name not in self._names:
            return None
        says = getattr(self._dispatcher, "gates_inside", None)
        return says is not None and bool(says(name))

    def bubbles(self, call: ToolCall) -> bool:
        """It runs here."""
        return False

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Run the call."""
        return await self._dispatcher.dispatch(call)

    def parallel(self, call: ToolCall) -> bool:
        """As the dispatcher says."""
        return self._dispatcher.parallel(call)

    def read_only(self, call: ToolCall) -> bool:
        """As the dispatcher says."""
        return self._dispatcher.read_only(call)


class RoutedTools:
    """The tools of one run, each where it is to be had."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = tuple(routes)

    def names(self) -> list[str]:
        """Return every tool that is known to be had, once, in the order of the routes."""
        return list(dict.fromkeys(name for route in self._routes for name in route.names()))

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Run a call where its tool is."""
        route = self._route(call)
        return self._unknown(call) if route is None else await route.dispatch(call)

    def parallel(self, call: ToolCall) -> bool:
        """As the route says; what nobody has is answered beside anything."""
        route = self._route(call)
        return route is None or route.parallel(call)

    def read_only(self, call: ToolCall) -> bool:
        """As the route says; what nobody has changes nothing."""
        route = self._route(call)
        return route is None or route.read_only(call)

    def gates_inside(self, name: str) -> bool:
        """Whether whoever has the tool passes what it calls inside through the filter again."""
        said = (route.gates_inside(name) for route in self._routes)
        return next((gates for gates in said if gates is not None), False)

    def bubbles(self, call: ToolCall) -> bool:
        """Whether the parent runs the call."""
        route = self._route(call)
        return route is not None and route.bubbles(call)

    def _route(self, call: ToolCall) -> Route | None:
        return next((route for route in self._routes if route.takes(call)), None)

    def _unknown(self, call: ToolCall) -> ToolOutcome:
        known = self.names()
        more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
        tools = f"Tools: {', '.join(known[:_SHOWN])}{more}." if known else "There are no tools."
        said = f"There is no tool {call.name!r} for this fork, here or at its parent. {tools}"
        return ToolOutcome(content=said, is_error=True)
