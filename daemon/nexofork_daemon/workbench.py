"""Give each run what it works with: tools, a workspace, and an end that keeps what was made."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nexofork.engine.bench import Bench
from nexofork.engine.filters import AllowAllFilter
from nexofork.engine.filters.audit import begin_audit
from nexofork.engine.sandbox.opening import NoSandbox
from nexofork.engine.tools.place import Place
from nexofork_daemon.routing import Routing
from nexofork_daemon.workspaces import NoWorkspace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from nexofork.bus.blobs import BlobStore
    from nexofork.engine.abort import AbortToken
    from nexofork.engine.dispatch import ToolDispatcher
    from nexofork.engine.filters import ToolFilter
    from nexofork.engine.filters.audit import Audit
    from nexofork.engine.result import ForkResult
    from nexofork.engine.sandbox.opening import Sandbox
    from nexofork.wire.messages import Requested
    from nexofork_daemon.asking import Asking
    from nexofork_daemon.journal import LogJournal
    from nexofork_daemon.rebuilding import Rebuilt
    from nexofork_daemon.request import Resolve
    from nexofork_daemon.workspaces import Unfit, Workspaces

__all__ = ["RunBench", "RunOrder", "Workbench"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """What is known of a run when it is given its tools."""

    run_id: str
    request: Requested
    state: Rebuilt
    """What earlier daemons did on it."""
    journal: LogJournal
    asking: Asking
    resolve: Resolve
    blobs: BlobStore
    token: AbortToken
    """Thrown when the run is aborted, handed over or lost."""
    schema: tuple[str, ...] = ()
    """What the parent's schema calls its tools."""
    mounts: bool = False
    """Whether the child may be told that its checkout is at the parent's paths: every daemon could go on with that."""


@dataclass(slots=True, kw_only=True)
class RunBench(Bench):
    """What one run works with, from before its first turn to after its last."""

    tools: ToolDispatcher
    cwd: Path | None = None
    """Where its relative paths start, as permissions read them; None is where the daemon runs."""
    tool_filter: ToolFilter = field(default_factory=AllowAllFilter)
    """The request's filters, for what is here and what is elsewhere."""
    audit: Audit | None = None
    """Looks at what the run changed, where its filter limits that."""
    notes: tuple[str, ...] = ()
    """Text for this child alone, behind its directive."""
    workspace: NoWorkspace = field(default_factory=NoWorkspace)

    async def worked(self, turn: int) -> None:
        """Keep what the workspace has become."""
        await self.workspace.worked(turn)

    async def closed(self, result: ForkResult) -> ForkResult:
        """Return the result with what became of the workspace; called once, however the run ended."""
        if self.audit is not None:
            result = await self.audit.added(result)
        return await self.workspace.closed(result)


class Workbench:
    """One daemon's tools and workspaces."""

    def __init__(
        self,
        builtin: Callable[[Place], ToolDispatcher],
        routing: Routing | None = None,
        *,
        workspaces: Workspaces,
        sandbox: Sandbox | None = None,
    ) -> None:
        self._builtin = builtin
        self._routing = routing or Routing()
        self._workspaces = workspaces
        self.sandbox = sandbox or NoSandbox()
        """What commands run in."""

    async def start(self) -> None:
        """Get ready to give runs what they need."""
        await self._workspaces.start()

    async def tend(self) -> None:
        """Keep things tidy as long as the daemon serves; ends with its task."""
        await self._workspaces.tend()

    def unfit(self, run_id: str, request: Requested, state: Rebuilt) -> Unfit | None:
        """Return why a run cannot work on this host, or None; looks at files."""
        return self._workspaces.unfit(run_id, request.workspace, state, self.sandbox)

    @asynccontextmanager
    async def open(self, order: RunOrder) -> AsyncIterator[RunBench]:
        """Give a run its tools; all that was set up is taken down at the end.

        Raises:
            ForkRefused: What the run asks for is not to be had on this host.
            BusError: Something it needs could not be fetched.
        """
        async with AsyncExitStack() as at_end:
            workspace = await at_end.enter_async_context(self._workspaces.open(order, self.sandbox))
            wanted = Place(
                cwd=workspace.cwd,
                named=workspace.opened is not None,
                opened=workspace.opened,
                writable=workspace.writable,
                protected=workspace.protected,
                checkout=workspace.checkout,
                shared=self._workspaces.shared.roots,
            )
            place = await at_end.enter_async_context(self.sandbox.open(wanted, name=order.run_id))
            routed = await self._routing.routed(order, place, self._builtin(place))
            audit = await begin_audit(order.run_id, routed.tool_filter, [place.cwd] if place.cwd else [])
            yield RunBench(
                tools=routed.tools,
                cwd=place.shown_cwd,
                tool_filter=routed.tool_filter,
                audit=audit,
                notes=workspace.notes,
                workspace=workspace,
            )
