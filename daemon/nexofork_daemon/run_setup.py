"""Set up a claimed run from its request and from what earlier daemons wrote down.

A thousand children of one parent name the same snapshot. It is fetched, checked and parsed once, and they share it.
Most children of a fan-out find their snapshot here and their prefix warm, so the first call can follow the claim at
once. One message for both saves each of them a write.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections import OrderedDict
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from nexofork.bus.failures import CorruptBlob, MissingBlob
from nexofork.errors import BusError, NeedsUnknown
from nexofork.policy.filters import build_filter, memory_folders
from nexofork.policy.gate import Gate
from nexofork.run.abort import AbortToken
from nexofork.run.mailbox import NoMail
from nexofork.run.params import answers_of, file_state_of, fork_of, prepare, refuse_groupless, snapshot_of
from nexofork.run.prefix_gate import plan_fan_out, prefix_key
from nexofork.run.run import ForkRun
from nexofork.tools.dispatch import NoTools
from nexofork.tools.tool_names import declared_tools
from nexofork.wire.messages import FirstCall
from nexofork.wire.needs import unknown_needs
from nexofork.wire.workspace import GitSpec
from nexofork_daemon.inbox import NoticeFirst
from nexofork_daemon.parent_questions import LogAsker, ParentQuestions
from nexofork_daemon.run_environment import RunNeeds
from nexofork_daemon.run_writer import SideEffectsOnly, TextFeed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from contextlib import AsyncExitStack

    from nexofork.bus.pickup import Delivery
    from nexofork.core.snapshot import CacheSafeParams
    from nexofork.policy.filters import ToolFilter
    from nexofork.providers.provider import Provider
    from nexofork.run.events import ForkEvent
    from nexofork.run.params import ForkParams
    from nexofork.tools.dispatch import ToolDispatcher
    from nexofork.wire.messages import Payload, Requested
    from nexofork_daemon.budgets import RunBudget
    from nexofork_daemon.host import Host
    from nexofork_daemon.inbox import InboxMail
    from nexofork_daemon.ledger import RunLedger
    from nexofork_daemon.run_environment import RunEnvironment
    from nexofork_daemon.run_state import RunState
    from nexofork_daemon.run_writer import RunWriter

    Resolve = Callable[[Payload], Awaitable[bytes]]

__all__ = ["RunSetup", "Snapshots", "first_call", "fork_params"]

log = logging.getLogger(__name__)

_KEPT = 4
"""Snapshots kept for the next request although no fork uses them; those in use are kept by their forks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """A claimed run that has not begun."""

    host: Host
    delivery: Delivery
    request: Requested
    state: RunState
    journal: RunWriter
    token: AbortToken
    budget: RunBudget
    ledger: RunLedger | None
    mail: InboxMail | None

    async def set_up(self, at_end: AsyncExitStack) -> tuple[ForkRun, RunEnvironment]:
        """Fetch what the run needs, and return it ready to run.

        Args:
            at_end: Takes what has to be undone when the run is over.

        Raises:
            NexoforkError: The run cannot be begun; one of its kinds says why.
        """
        host, request, run_id = self.host, self.request, self.delivery.run_id
        if unknown := unknown_needs(request):
            raise NeedsUnknown(unknown, pool=host.settings.pool)
        feed = TextFeed(host.bus, run_id, pool=host.settings.pool)
        params, environment = await self._params(feed, at_end)
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
            mailbox=NoticeFirst(self.mail or NoMail(), environment.workspace.letter),
            ledger=self.ledger,
            history=self.state.history,
            purse=self.budget.purse(params),
            bench=environment,
            gate=self._gate(params, environment),
        )
        return run, environment

    def _gate(self, params: ForkParams, environment: RunEnvironment) -> Gate:
        known = self.state.permissions
        questions = ParentQuestions(self.delivery.run_id, journal=self.journal, host=self.host)
        asker = LogAsker(self.host, questions=questions, journal=self.journal, asked_at=known.asked_at)
        return Gate(
            params.permissions, tools=environment.tools, asker=asker, cwd=environment.cwd, decided=known.decided
        )

    async def _params(self, feed: TextFeed, at_end: AsyncExitStack) -> tuple[ForkParams, RunEnvironment]:
        host, request = self.host, self.request
        questions = ParentQuestions(self.delivery.run_id, journal=self.journal, host=host)
        resolve = self._resolver(questions)
        snapshot = await host.snapshots.get(request, resolve, sent_at=self._sent_at())
        file_state = await file_state_of(request, resolve)
        needs = RunNeeds(
            run_id=self.delivery.run_id,
            request=request,
            state=self.state,
            journal=self.journal,
            questions=questions,
            resolve=resolve,
            blobs=host.blobs,
            token=self.token,
            schema=declared_tools(snapshot.tools),
            mounts=isinstance(request.workspace, GitSpec) and await self._all_read_mounted(),
        )
        environment = await at_end.enter_async_context(host.environments.open(needs))
        # What the model was told once stays what it was told, whichever host goes on.
        notes = environment.notes if self.state.notes is None else self.state.notes
        self.journal.notes = notes
        params = fork_params(
            request,
            snapshot,
            llm=host.provider,
            tools=environment.tools,
            tool_filter=environment.tool_filter,
            token=self.token,
            on_message=feed.show,
            file_state=environment.workspace.translated(file_state),
            notes=notes,
            answers=await answers_of(request, resolve),
        )
        return params, environment

    async def _all_read_mounted(self) -> bool:
        try:
            return await self.host.peers.all_read_mounted()
        except BusError:
            return False  # the notice that every daemon can go on with

    def _resolver(self, questions: ParentQuestions) -> Resolve:
        """Fetch content that is stored outside the log; the parent is asked for what is gone."""

        async def resolve(payload: Payload) -> bytes:
            try:
                return await self.host.blobs.resolve(payload)
            except (MissingBlob, CorruptBlob) as exc:
                return await questions.content(payload, problem=exc)

        return resolve

    def _sent_at(self) -> float | None:
        """Return when the parent's call was sent by our own clock, whatever the parent's clock says."""
        request = self.request
        if request.sent_at is None or not request.at:
            return request.sent_at
        return self.host.clock.ours(self.delivery.stored_at) - (request.at - request.sent_at)


class Snapshots:
    """The snapshots this daemon holds."""

    def __init__(self) -> None:
        self._held: WeakValueDictionary[str, CacheSafeParams] = WeakValueDictionary()
        self._recent: OrderedDict[str, CacheSafeParams] = OrderedDict()
        self._busy: dict[str, asyncio.Lock] = {}

    def held(self, request: Requested) -> CacheSafeParams | None:
        """Return the request's snapshot if it is here already."""
        return self._held.get(_snapshot_key(request))

    async def get(self, request: Requested, resolve: Resolve, *, sent_at: float | None) -> CacheSafeParams:
        """Return the request's snapshot, building it if no other fork has.

        Args:
            request: Whose.
            resolve: Fetches what it refers to.
            sent_at: When the parent's own call was sent, by this host's clock.

        Raises:
            BusError: A blob is missing or corrupt.
            ForkRefused: The bytes are not a request, or the reply does not fit them.
        """
        key = _snapshot_key(request)
        async with self._one_at_a_time(key):
            snapshot = self._held.get(key)
            if snapshot is None:
                snapshot = await snapshot_of(request.model_copy(update={"sent_at": sent_at}), resolve)
                self._held[key] = snapshot
        self._recent[key] = snapshot
        self._recent.move_to_end(key)
        while len(self._recent) > _KEPT:
            self._recent.popitem(last=False)
        return snapshot

    @asynccontextmanager
    async def _one_at_a_time(self, key: str) -> AsyncIterator[None]:
        lock = self._busy.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._busy.pop(key, None)


def fork_params(
    request: Requested,
    snapshot: CacheSafeParams,
    *,
    llm: Provider,
    tools: ToolDispatcher,
    tool_filter: ToolFilter,
    token: AbortToken,
    on_message: Callable[[ForkEvent], object],
    file_state: dict[str, str] | None = None,
    notes: Sequence[str] = (),
    answers: Mapping[str, bytes] | None = None,
) -> ForkParams:
    """Return the fork a request asks for.

    Raises:
        ForkRefused: The request's permissions cannot be meant.
    """
    asked = fork_of(
        request, snapshot, tool_filter=tool_filter, answers=answers or {}, file_state=file_state, notes=notes
    )
    return replace(
        asked,
        llm=llm,
        tool_dispatcher=tools,
        on_message=on_message,
        timeout=None,  # the daemon counts it from the first claim
        external_abort=token,
    )


def _snapshot_key(request: Requested) -> str:
    """Name everything the snapshot is built from."""
    parts = {
        "snapshot": _name(request.snapshot),
        "reply": _name(request.reply) if request.reply else None,
        "headers": sorted(request.headers.items()),
        "query": request.query,
        "exact": request.exact,
        "sent_at": request.sent_at,
        "workspace": request.workspace_id,
        "replacements": request.replacements,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _name(payload: Payload) -> str:
    if payload.text is not None:
        return hashlib.sha256(payload.text.encode("utf-8", "surrogatepass")).hexdigest()
    if payload.blob is not None:
        return payload.blob.sha256
    assert payload.delta is not None
    return payload.delta.sha256


def first_call(request: Requested, host: Host) -> FirstCall | None:
    """Return the first call of a fresh run; None where it may have to wait, or something has to be fetched first."""
    try:
        return _planned(request, host)
    except Exception:
        # The run is not claimed yet; what is wrong with it is found again, and reported, once it is.
        log.debug("the first call of a run was not planned", exc_info=True)
        return None


def _planned(request: Requested, host: Host) -> FirstCall | None:
    snapshot = host.snapshots.held(request)
    extras = request.answers or request.workspace or memory_folders(request.filters) or unknown_needs(request)
    if snapshot is None or request.budget or request.group_budget or extras:
        return None
    params = fork_params(
        request,
        snapshot,
        llm=host.provider,
        tools=NoTools(),
        tool_filter=build_filter(request.filters),
        token=AbortToken(),
        on_message=_unseen,
    )
    base, _ = prepare(params)
    prefix = prefix_key(params, base)
    decision = plan_fan_out(
        params,
        base,
        times=host.warmth.times,
        is_warm=host.warmth.is_warm(prefix),
        wait_s=host.warmth.wait_s,
        now=time.time(),
    )
    if decision.plan != "all_at_once":
        return None
    return FirstCall(model=params.model, prefix=prefix, decision={**decision.to_json(), "role": "free"})


def _unseen(_: object) -> None:
    pass
