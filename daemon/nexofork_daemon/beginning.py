"""Build a claimed run from its request and what earlier daemons wrote down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.bus.failures import CorruptBlob, MissingBlob
from nexofork.engine.mailbox import NoMail
from nexofork.engine.params import prepare, refuse_groupless
from nexofork.engine.permissions import Gate
from nexofork.engine.requested import answers_of, file_state_of
from nexofork.engine.run import ForkRun
from nexofork.engine.tool_names import declared_tools
from nexofork.errors import BusError, NeedsUnknown
from nexofork.wire.needs import unknown_needs
from nexofork.wire.workspace import GitSpec
from nexofork_daemon.asking import Asking
from nexofork_daemon.deltas import DeltaFeed
from nexofork_daemon.inboxes import NewsFirst
from nexofork_daemon.journal import SideEffectsOnly
from nexofork_daemon.permitting import LogDesk
from nexofork_daemon.request import fork_params
from nexofork_daemon.workbench import RunOrder

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from nexofork.bus.pickup import Delivery
    from nexofork.engine.abort import AbortToken
    from nexofork.engine.params import ForkParams
    from nexofork.wire.messages import Payload, Requested
    from nexofork_daemon.host import Host
    from nexofork_daemon.inboxes import InboxMail
    from nexofork_daemon.journal import LogJournal
    from nexofork_daemon.ledger import RunLedger
    from nexofork_daemon.purses import RunBudget
    from nexofork_daemon.rebuilding import Rebuilt
    from nexofork_daemon.request import Resolve
    from nexofork_daemon.workbench import RunBench

__all__ = ["Beginning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """A claimed run that has not begun."""

    host: Host
    delivery: Delivery
    request: Requested
    state: Rebuilt
    journal: LogJournal
    token: AbortToken
    budget: RunBudget
    ledger: RunLedger | None
    mail: InboxMail | None

    async def begin(self, at_end: AsyncExitStack) -> tuple[ForkRun, RunBench]:
        """Fetch what the run needs, and return it ready to run.

        Args:
            at_end: Takes what has to be undone when the run is over.

        Raises:
            NexoforkError: The run cannot be begun; one of its kinds says why.
        """
        host, request, run_id = self.host, self.request, self.delivery.run_id
        if unknown := unknown_needs(request):
            raise NeedsUnknown(unknown, pool=host.settings.pool)
        feed = DeltaFeed(host.bus, run_id, pool=host.settings.pool)
        params, bench = await self._params(feed, at_end)
        refuse_groupless(params, request.group)
        base, prompt = prepare(params)
        await at_end.enter_async_context(feed)
        run = ForkRun(
            params,
            run_id=run_id,
            base=base,
            prompt=prompt,
            token=self.token.child(),
            warmth=host.warmth,
            emit=feed.show,
            journal=SideEffectsOnly(self.journal) if request.skip_transcript else self.journal,
            mailbox=NewsFirst(self.mail or NoMail(), bench.workspace.letter),
            ledger=self.ledger,
            history=self.state.history,
            purse=self.budget.purse(params),
            bench=bench,
            gate=self._gate(params, bench),
        )
        return run, bench

    def _gate(self, params: ForkParams, bench: RunBench) -> Gate:
        known = self.state.permissions
        asking = Asking(self.delivery.run_id, journal=self.journal, host=self.host)
        desk = LogDesk(self.host, asking=asking, journal=self.journal, asked_at=known.asked_at)
        return Gate(params.permissions, tools=bench.tools, asker=desk, cwd=bench.cwd, decided=known.decided)

    async def _params(self, feed: DeltaFeed, at_end: AsyncExitStack) -> tuple[ForkParams, RunBench]:
        host, request = self.host, self.request
        asking = Asking(self.delivery.run_id, journal=self.journal, host=host)
        resolve = self._resolver(asking)
        snapshot = await host.shelf.get(request, resolve, sent_at=self._sent_at())
        file_state = await file_state_of(request, resolve)
        order = RunOrder(
            run_id=self.delivery.run_id,
            request=request,
            state=self.state,
            journal=self.journal,
            asking=asking,
            resolve=resolve,
            blobs=host.blobs,
            token=self.token,
            schema=declared_tools(snapshot.tools),
            mounts=isinstance(request.workspace, GitSpec) and await self._all_read_mounted(),
        )
        bench = await at_end.enter_async_context(host.workbench.open(order))
        # What the model was told once stays what it was told, whichever host goes on.
        notes = bench.notes if self.state.notes is None else self.state.notes
        self.journal.notes = notes
        params = fork_params(
            request,
            snapshot,
            llm=host.provider,
            tools=bench.tools,
            tool_filter=bench.tool_filter,
            token=self.token,
            on_message=feed.show,
            file_state=bench.workspace.translated(file_state),
            notes=notes,
            answers=await answers_of(request, resolve),
        )
        return params, bench

    async def _all_read_mounted(self) -> bool:
        try:
            return await self.host.peers.all_read_mounted()
        except BusError:
            return False  # the notice that every daemon can go on with

    def _resolver(self, asking: Asking) -> Resolve:
        """Fetch what travels beside the log; what is gone is asked for."""

        async def resolve(payload: Payload) -> bytes:
            try:
                return await self.host.blobs.resolve(payload)
            except (MissingBlob, CorruptBlob) as exc:
                return await asking.content(payload, problem=exc)

        return resolve

    def _sent_at(self) -> float | None:
        """Return when the parent's call was sent by our own clock, whatever the parent's clock says."""
        request = self.request
        if request.sent_at is None or not request.at:
            return request.sent_at
        return self.host.clock.ours(self.delivery.stored_at) - (request.at - request.sent_at)
