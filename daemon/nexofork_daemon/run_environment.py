"""Give each run what it works with: tools, a workspace, and an end that keeps what was made.

Tools are built in, the parent's own, from plug-ins or from MCP servers; the parent is asked for the rest. A tool that
the parent lists as its own is hidden only by a built-in one of the same name. A memory folder is used where it is: here
if the operator shares it, else at the parent.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from nexofork.errors import ForkRefused
from nexofork.policy.filters import AllowAllFilter, build_filter, memory_folders, travelling
from nexofork.policy.paths import by_words
from nexofork.run.audit import begin_audit
from nexofork.run.run import Bench
from nexofork.sandbox.run_folder import SharedFolders
from nexofork.sandbox.sandbox import NoSandbox, shared_folders
from nexofork.tools.dispatch import NamedTools, RoutedTools
from nexofork.tools.mcp import McpServers
from nexofork.tools.parent_tools import BubbledTools, MemoryElsewhere, ParentsOwn
from nexofork.tools.place import Place
from nexofork.tools.plugins import load_plugins, plugged
from nexofork.tools.tool_names import BUILTIN_TOOLS
from nexofork_daemon.workspaces import NoWorkspace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from nexofork.bus.blobs import BlobStore
    from nexofork.policy.filters import ToolFilter
    from nexofork.run.abort import AbortToken
    from nexofork.run.audit import Audit
    from nexofork.run.result import ForkResult
    from nexofork.sandbox.sandbox import Sandbox
    from nexofork.tools.dispatch import Route, ToolDispatcher
    from nexofork.tools.mcp_config import ServerSpec
    from nexofork.tools.plugins import Plugin
    from nexofork.wire.messages import Requested
    from nexofork_daemon.parent_questions import ParentQuestions
    from nexofork_daemon.run_setup import Resolve
    from nexofork_daemon.run_state import RunState
    from nexofork_daemon.run_writer import RunWriter
    from nexofork_daemon.settings import DaemonSettings
    from nexofork_daemon.workspaces import Unfit, Workspaces

__all__ = ["Environments", "RunEnvironment", "RunNeeds", "RunTools", "ToolSources", "open_tool_sources"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNeeds:
    """What is known of a run when it is given its tools."""

    run_id: str
    request: Requested
    state: RunState
    """What earlier daemons did on it."""
    journal: RunWriter
    questions: ParentQuestions
    resolve: Resolve
    blobs: BlobStore
    token: AbortToken
    """Thrown when the run is aborted, handed over or lost."""
    schema: tuple[str, ...] = ()
    """What the parent's schema calls its tools."""
    mounts: bool = False
    """Whether the child may be told that its checkout is at the parent's paths: every daemon could go on with that."""


@dataclass(slots=True, kw_only=True)
class RunEnvironment(Bench):
    """What one run works with, from before its first turn to after its last."""

    tools: ToolDispatcher
    cwd: Path | None = None
    """Where its relative paths start, as permissions read them; None is where the daemon runs."""
    tool_filter: ToolFilter = field(default_factory=AllowAllFilter)
    """The request's filters, for what is here and what is elsewhere."""
    audit: Audit | None = None
    """Looks at what the run changed, where its filter limits that."""
    notes: tuple[str, ...] = ()
    """Text for this child alone, after its directive."""
    workspace: NoWorkspace = field(default_factory=NoWorkspace)

    async def worked(self, turn: int) -> None:
        """Keep what the workspace has become."""
        await self.workspace.worked(turn)

    async def closed(self, result: ForkResult) -> ForkResult:
        """Return the result with what became of the workspace; called once, however the run ended."""
        if self.audit is not None:
            result = await self.audit.added(result)
        return await self.workspace.closed(result)


class Environments:
    """One daemon's tools and workspaces."""

    def __init__(
        self,
        builtin: Callable[[Place], ToolDispatcher],
        tool_sources: ToolSources | None = None,
        *,
        workspaces: Workspaces,
        sandbox: Sandbox | None = None,
    ) -> None:
        self._builtin = builtin
        self._tool_sources = tool_sources or ToolSources()
        self._workspaces = workspaces
        self.sandbox = sandbox or NoSandbox()
        """What commands run in."""

    async def start(self) -> None:
        """Get ready to give runs what they need."""
        await self._workspaces.start()

    async def tend(self) -> None:
        """Keep things tidy as long as the daemon serves; ends with its task."""
        await self._workspaces.tend()

    def unfit(self, run_id: str, request: Requested, state: RunState) -> Unfit | None:
        """Return why a run cannot work on this host, or None; looks at files."""
        return self._workspaces.unfit(run_id, request.workspace, state, self.sandbox)

    @asynccontextmanager
    async def open(self, needs: RunNeeds) -> AsyncIterator[RunEnvironment]:
        """Give a run its tools; all that was set up is taken down at the end.

        Raises:
            ForkRefused: This host does not have what the run asks for.
            BusError: Something it needs could not be fetched.
        """
        async with AsyncExitStack() as at_end:
            workspace = await at_end.enter_async_context(self._workspaces.open(needs, self.sandbox))
            wanted = Place(
                cwd=workspace.cwd,
                named=workspace.opened is not None,
                opened=workspace.opened,
                writable=workspace.writable,
                protected=workspace.protected,
                checkout=workspace.checkout,
                shared=self._workspaces.shared.roots,
            )
            place = await at_end.enter_async_context(self.sandbox.open(wanted, name=needs.run_id))
            run_tools = await self._tool_sources.run_tools(needs, place, self._builtin(place))
            audit = await begin_audit(needs.run_id, run_tools.tool_filter, [place.cwd] if place.cwd else [])
            yield RunEnvironment(
                tools=run_tools.tools,
                cwd=place.shown_cwd,
                tool_filter=run_tools.tool_filter,
                audit=audit,
                notes=workspace.notes,
                workspace=workspace,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTools:
    """A run's tools, and the filter that goes with where they run."""

    tools: RoutedTools
    tool_filter: ToolFilter


@asynccontextmanager
async def open_tool_sources(settings: DaemonSettings, servers: Sequence[ServerSpec] = ()) -> AsyncIterator[ToolSources]:
    """Give a daemon its plug-ins and MCP servers; the servers that were started end with it.

    Raises:
        ForkRefused: There are servers, and the package to talk to them is not installed.
    """
    async with McpServers(servers) as mcp:
        yield ToolSources(
            shared=shared_folders(settings.sandboxing),
            tool_deadline_s=settings.tool_deadline_s,
            plugins=load_plugins(),
            mcp=mcp,
        )


class ToolSources:
    """The tools of one daemon that are not built in: plug-ins and MCP servers."""

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

    async def run_tools(self, needs: RunNeeds, place: Place, builtin: ToolDispatcher) -> RunTools:
        """Return a run's tools and filter.

        Raises:
            ForkRefused: A filter is not known here, or its memory folder is not available.
        """
        request = needs.request
        elsewhere = self._elsewhere(needs)
        tool_filter = build_filter(request.filters, elsewhere=elsewhere)
        self._refuse_moved(tool_filter, elsewhere)
        routes: list[Route] = [NamedTools(builtin, getattr(builtin, "names", BUILTIN_TOOLS))]
        bubbled = None
        if request.parent_tools is not None:
            bubbled = BubbledTools(
                request.parent_tools,
                partial(needs.questions.tool, token=needs.token),
                deadline_s=self._tool_deadline_s,
                their_names={ours: theirs for theirs, ours in request.tool_names.items()},
            )
            routes = [
                MemoryElsewhere(bubbled, elsewhere, cwd=place.shown_cwd),
                *routes,
                ParentsOwn(bubbled, asked=needs.state.bubbled),
            ]
        routes += plugged(self._plugins, place)
        if self._mcp is not None:
            known = {name for route in routes for name in route.names()}
            wanted = [name for name in needs.schema if request.tool_names.get(name, name) not in known]
            routes.append(await self._mcp.tools(wanted))
        if bubbled is not None:
            routes.append(bubbled)
        return RunTools(tools=RoutedTools(routes), tool_filter=tool_filter)

    def _elsewhere(self, needs: RunNeeds) -> list[str]:
        """Return the memory folders that are at the parent.

        Raises:
            ForkRefused: One is neither here nor there.
        """
        request = needs.request
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
