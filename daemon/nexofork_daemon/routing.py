"""Put a run's tools together: built in, the parent's own, plug-ins, MCP servers, and the parent again for the rest.

What the parent lists as its own is not hidden by anything that happens to have the same name here, except by what is
built in. A memory folder is used where it is: here if the operator says that it is shared, else at the parent.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nexofork.engine.filters import build_filter, memory_folders, travelling
from nexofork.engine.filters.paths import by_words
from nexofork.engine.routes import NamedTools, RoutedTools
from nexofork.engine.sandbox.folders import SharedFolders
from nexofork.engine.sandbox.opening import shared_folders
from nexofork.engine.tool_names import BUILTIN_TOOLS
from nexofork.engine.tools.bubbled import BubbledTools, MemoryElsewhere, ParentsOwn
from nexofork.engine.tools.mcp import McpServers
from nexofork.engine.tools.plugins import load_plugins, plugged
from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from nexofork.engine.dispatch import ToolDispatcher
    from nexofork.engine.filters import ToolFilter
    from nexofork.engine.routes import Route
    from nexofork.engine.tools.mcp_config import ServerSpec
    from nexofork.engine.tools.place import Place
    from nexofork.engine.tools.plugins import Plugin
    from nexofork_daemon.settings import DaemonSettings
    from nexofork_daemon.workbench import RunOrder

__all__ = ["Routed", "Routing", "open_routing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """A run's tools, and the filter that goes with where they run."""

    tools: RoutedTools
    tool_filter: ToolFilter


@asynccontextmanager
async def open_routing(settings: DaemonSettings, servers: Sequence[ServerSpec] = ()) -> AsyncIterator[Routing]:
    """Give a daemon its plug-ins and MCP servers; the servers that were started end with it.

    Raises:
        ForkRefused: There are servers, and the package to talk to them is not installed.
    """
    async with McpServers(servers) as mcp:
        yield Routing(
            shared=shared_folders(settings.sandboxing),
            tool_deadline_s=settings.tool_deadline_s,
            plugins=load_plugins(),
            mcp=mcp,
        )


class Routing:
    """What one daemon has beside its built-in tools."""

    def __init__(
        self,
        *,
        shared: SharedFolders | None = None,
        tool_deadline_s: float = 300.0,
        plugins: Sequence[Plugin] = (),
        mcp: McpServers | None = None,
    ) -> None:
        self._shared = shared or SharedFolders()
        self._tool_deadline_s = tool_deadline_s
        self._plugins = plugins
        self._mcp = mcp

    async def routed(self, order: RunOrder, place: Place, builtin: ToolDispatcher) -> Routed:
        """Return a run's tools and filter.

        Raises:
            ForkRefused: A filter is not known here, or its memory folder is not to be had.
        """
        request = order.request
        elsewhere = self._elsewhere(order)
        tool_filter = build_filter(request.filters, elsewhere=elsewhere)
        self._refuse_moved(tool_filter, elsewhere)
        routes: list[Route] = [NamedTools(builtin, getattr(builtin, "names", BUILTIN_TOOLS))]
        bubbled = None
        if request.parent_tools is not None:
            bubbled = BubbledTools(
                request.parent_tools,
                partial(order.asking.tool, token=order.token),
                deadline_s=self._tool_deadline_s,
                their_names={ours: theirs for theirs, ours in request.tool_names.items()},
            )
            routes = [
                MemoryElsewhere(bubbled, elsewhere, cwd=place.shown_cwd),
                *routes,
                ParentsOwn(bubbled, asked=order.state.bubbled),
            ]
        routes += plugged(self._plugins, place)
        if self._mcp is not None:
            known = {name for route in routes for name in route.names()}
            wanted = [name for name in order.schema if request.tool_names.get(name, name) not in known]
            routes.append(await self._mcp.tools(wanted))
        if bubbled is not None:
            routes.append(bubbled)
        return Routed(tools=RoutedTools(routes), tool_filter=tool_filter)

    def _elsewhere(self, order: RunOrder) -> list[str]:
        """Return the memory folders that are at the parent.

        Raises:
            ForkRefused: One is neither here nor there.
        """
        request = order.request
        folders = [folder for folder in memory_folders(request.filters) if not self._is_shared(folder)]
        if folders and not (request.parent_tools and request.parent_tools.files):
            shared = ", ".join(map(str, self._shared.roots)) or "none"
            raise ForkRefused(
                f"The memory folder {folders[0]!r} is not a folder on this host that is shared (--shared-dir; shared "
                f"are: {shared}), and the parent does not serve it. Fork with `connect`, which does, or share it."
            )
        return folders

    def _refuse_moved(self, tool_filter: ToolFilter, elsewhere: Sequence[str]) -> None:
        """Refuse a filter for a folder that became a link to another one since it was looked at."""
        there = set(map(by_words, elsewhere))
        for folder in memory_folders(travelling(tool_filter)):
            if folder not in there and not self._is_shared(folder):
                raise ForkRefused(f"The memory folder {folder!r} is not in a folder that is shared (--shared-dir).")

    def _is_shared(self, folder: str) -> bool:
        try:
            with self._shared.opened(folder):
                return True
        except (ForkRefused, FileNotFoundError):
            return False
