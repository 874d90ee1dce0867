"""Fork onto other hosts: requests go out over NATS, daemons run the children, and results can be read by any process.

A finished child's git work is fetched from NATS into a repository on this host.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from nexofork.bus.blobs import BlobStore
from nexofork.bus.connection import BusSettings, open_bus
from nexofork.bus.jetstream import retry
from nexofork.bus.provisioning import provision
from nexofork.bus.reading import store_once
from nexofork.client.answers import Permitting
from nexofork.client.claim_wait import Queue
from nexofork.client.fleet_settings import FleetSettings
from nexofork.client.fork_request import ForkRequests, PendingAction, abort_with, put_request
from nexofork.client.handle import Foreground, ForkHandle, ForkRecord, HandleGroups
from nexofork.client.parent_tools import ParentToolServer
from nexofork.client.remote_run import RemoteRun
from nexofork.client.runs import list_runs
from nexofork.client.wake import awaken
from nexofork.errors import BusError, ForkRefused
from nexofork.policy.filters import memory_folders
from nexofork.run.audit import begin_audit
from nexofork.run.events import ForkStarted
from nexofork.run.params import DelegateMode, ForkParams, prepare, refuse_groupless
from nexofork.tools.dispatch import AGENT_TOOL, ParentContext
from nexofork.wire.messages import Answer, Requested, encode, new_run_id
from nexofork.wire.streams import inbox_stream
from nexofork.wire.subjects import check_run_id, inbox, parent_alive
from nexofork.workspace.fetch import fetch_bundle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
    from types import TracebackType

    from nexofork.bus.connection import Bus
    from nexofork.client.fork_request import Problem
    from nexofork.client.runs import RunRow
    from nexofork.core.reply import Reply
    from nexofork.core.snapshot import CacheSafeParams
    from nexofork.policy.permissions import PermissionAnswer, PermissionAsk
    from nexofork.run.result import ForkResult
    from nexofork.tools.dispatch import ToolDispatcher
    from nexofork.wire.messages import Asked
    from nexofork.workspace.fetch import Fetched

    OnPermission = Callable[[PermissionAsk], Awaitable[PermissionAnswer]]

__all__ = ["FleetSettings", "NatsForkSubagent", "connect", "fetch_work"]

log = logging.getLogger(__name__)

_LEAVING_S = 5.0


@asynccontextmanager
async def connect(
    url: str = "nats://127.0.0.1:4222",
    *,
    creds: Path | None = None,
    nkey_seed: Path | None = None,
    ca: Path | None = None,
    settings: FleetSettings | None = None,
) -> AsyncIterator[NatsForkSubagent]:
    """Open a connection to a fleet.

    Raises:
        BusError: NATS was not reached, did not let us in, or has no streams and none may be made.
    """
    urls = tuple(url.split(","))
    bus_settings = BusSettings(urls=urls, creds=creds, nkey_seed=nkey_seed, ca=ca, name="nexofork-parent")
    async with open_bus(bus_settings) as bus:
        chosen = settings or FleetSettings()
        await provision(bus, pool=chosen.pool, lease_s=None)
        async with NatsForkSubagent(bus, chosen) as forks:
            yield forks


@dataclass(slots=True, eq=False)
class _Own:
    """A run this process started or attached to."""

    run: RemoteRun
    group: str | None = None
    detached: bool = False
    tasks: set[asyncio.Task[Problem | None]] = field(default_factory=set)


class NatsForkSubagent:
    """Starts forks on a fleet; the same protocol as `DefaultForkSubagent`, and `attach` besides."""

    def __init__(self, bus: Bus, settings: FleetSettings | None = None) -> None:
        chosen = settings or FleetSettings()
        self._bus = bus
        self._settings = chosen
        self._parent_id = chosen.parent_id or f"p-{secrets.token_hex(8)}"
        self._blobs = BlobStore(bus, "parent")
        self._requests = ForkRequests(
            self._blobs,
            parent_id=self._parent_id,
            heartbeat_s=chosen.heartbeat_s,
            on_parent_gone=chosen.on_parent_gone,
            serve_files=chosen.serve_files,
        )
        self._queue = Queue(bus, chosen)
        self._foreground = Foreground(auto_background_s=chosen.auto_background_s)
        self._runs: set[_Own] = set()
        self._groups = HandleGroups()
        self._tasks: asyncio.TaskGroup | None = None
        self._heart: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        if self._settings.on_parent_gone == "abort":
            self._heart = self._tasks.create_task(self._beat())
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tasks, self._tasks = self._tasks, None
        assert tasks is not None
        try:
            async with asyncio.timeout(_LEAVING_S):
                await self._abort_all("the parent left")
        except (BusError, TimeoutError) as problem:
            log.warning("children could not be aborted: %s", problem)
        if self._heart is not None:
            self._heart.cancel()
        for own in self._runs:
            for task in own.tasks:
                task.cancel()
        # The group is not told what the caller raised: it would wrap it.
        await tasks.__aexit__(None, None, None)

    async def fork(self, params: ForkParams, *, run_id: str | None = None, group: str | None = None) -> ForkHandle:
        """Publish a fork; with `DelegateMode.SYNC` return only when it is over or moved to the background.

        Raises:
            ForkRefused: Something is wrong with the call; nothing was sent.
            BusError: NATS was not reached or refused the request.
        """
        refuse_groupless(params, group)
        prepare(params)
        handle = await self._publish(params, run_id=run_id, group=group)
        if params.mode is DelegateMode.SYNC:
            await self._foreground.wait([handle])
        return handle

    async def fork_each(
        self, params: ForkParams, directives: Iterable[str], *, group: str | None = None
    ) -> list[ForkHandle]:
        """Start one fork per directive, side by side; either all are accepted or none goes on.

        Raises:
            ForkRefused: As `fork` does, for whichever directive it is; nothing was sent.
            BusError: As `fork` does; what was already published is aborted.
        """
        return await self._fork_all(params.each(directives), group)

    async def fork_tool_uses(
        self,
        snapshot: CacheSafeParams,
        reply: Reply | None = None,
        *,
        params: ForkParams | None = None,
        group: str | None = None,
    ) -> list[ForkHandle]:
        """Start one fork for every Agent call of a reply that names no ``subagent_type``.

        Args:
            snapshot: The parent's request.
            reply: The reply with the calls; None takes the snapshot's own.
            params: Everything else about the forks; its snapshot and directive are replaced.
            group: Names the children together.

        Raises:
            ForkRefused: The reply has no such call, or `fork` refuses one.
            BusError: As `fork_each` does.
        """
        reply = reply or snapshot.reply
        uses = reply.tool_uses if reply else ()
        names = params.tool_names if params else {}
        calls = [
            use for use in uses if names.get(use.name, use.name) == AGENT_TOOL and not use.input.get("subagent_type")
        ]
        if not calls:
            raise ForkRefused(f"The reply has no {AGENT_TOOL} call without subagent_type: there is nothing to fork.")
        template = params or ForkParams(cache_safe=snapshot, prompt_messages="")
        template = replace(template, cache_safe=replace(snapshot, reply=reply))
        each = [
            replace(one, tool_use_id=call.id)
            for one, call in zip(template.each(str(call.input.get("prompt", "")) for call in calls), calls, strict=True)
        ]
        return await self._fork_all(each, group)

    async def _fork_all(self, each: Sequence[ForkParams], group: str | None) -> list[ForkHandle]:
        for one in each:
            refuse_groupless(one, group)
            prepare(one)

        async def publish(one: ForkParams) -> ForkHandle | BusError:
            try:
                return await self._publish(one, group=group)
            except BusError as exc:
                return exc  # raised inside, the group would cancel the others halfway

        if each:
            each = await self._with_workspaces(each)
            await self._requests.request(each[0], group=group)  # so that all find the snapshot shipped
        async with asyncio.TaskGroup() as tasks:
            publishing = [tasks.create_task(publish(one)) for one in each]
        outcomes = [task.result() for task in publishing]
        handles = [outcome for outcome in outcomes if isinstance(outcome, ForkHandle)]
        for outcome in outcomes:
            if isinstance(outcome, BusError):
                for handle in handles:
                    await handle.abort("its siblings could not be started")
                raise outcome
        await self._foreground.wait(
            [handle for one, handle in zip(each, handles, strict=True) if one.mode is DelegateMode.SYNC]
        )
        return handles

    async def shipped(self, params: ForkParams) -> ForkParams:
        """Return the same fork with its workspace captured and uploaded, for several forks of one state.

        Raises:
            ForkRefused: The workspace cannot be captured.
            BusError: An upload failed.
        """
        return replace(params, workspace=await self._requests.workspaces.ship(params.workspace))

    async def _with_workspaces(self, each: Sequence[ForkParams]) -> list[ForkParams]:
        """Capture every workspace once, so that all children of a fan-out begin with the same files."""
        captured: dict[int, ForkParams] = {}
        for one in each:
            if id(one.workspace) not in captured:
                captured[id(one.workspace)] = await self.shipped(one)
        return [replace(one, workspace=captured[id(one.workspace)].workspace) for one in each]

    async def _publish(self, params: ForkParams, *, run_id: str | None = None, group: str | None) -> ForkHandle:
        if self._tasks is None:
            raise ForkRefused("Forks need an owner: use `async with connect(…) as forks`.")
        record = ForkRecord(
            run_id=check_run_id(run_id) if run_id else new_run_id(),
            label=params.fork_label,
            skip_transcript=params.skip_transcript,
            observer=params.on_message,
        )
        run = self._remote(record, params.on_permission)
        request = await self._requests.request(params, group=group)
        if request.parent_tools is not None and request.parent_tools.files:
            folders = [Path(folder) for folder in memory_folders(request.filters)]
            run.audit = await begin_audit(record.run_id, params.tool_filter, folders)
        own = _Own(run=run, group=group)
        if request.parent_tools is not None:
            context = params.parent_ctx.for_child(params.overrides.agent_id, params.query_source)
            self._serve(own, request, params.tool_dispatcher, context, files=request.parent_tools.files)
        await self._queue.enter(request)
        try:
            await run.listen(deltas=params.on_message is not None)
            seq = await put_request(run, request, self._start)
        except BaseException:
            self._queue.leave()
            await run.close()
            raise
        record.add(
            ForkStarted(
                run_id=record.run_id,
                label=params.fork_label,
                directive=params.directive,
                cache_key_hash=params.cache_safe.cache_key_hash,
            )
        )
        self._runs.add(own)
        self._beside(own, self._follow(own, after=seq, known=True))
        self._beside(own, self._queue.until_claimed(run, params))
        if params.external_abort is not None:
            self._beside(own, abort_with(params.external_abort, run))
        return self._groups.add(group, ForkHandle(record, _Control(self, own)))

    async def wake(
        self, run_id: str, follow_up: str, *, new_run_id: str | None = None, group: str | None = None, **changes: Any
    ) -> ForkHandle:
        """Continue a run that has ended, whoever started it: the same child goes on in a new run.

        Its first call reads from the cache what the run's last one left there. Label, filters, limits and group are
        the run's own, unless they are given.

        Args:
            run_id: The run that ended.
            follow_up: What the child is told now.
            new_run_id: The new run's id; None makes one up.
            group: The new run's group; None is that of the run.
            changes: Fields of `ForkParams` that shall be other than they were, such as ``max_turns=20``.

        Raises:
            CannotWake: There is no such run, it still goes on, or nothing is left of it to go on from.
            ForkRefused: As `fork` does; nothing was sent.
            BusError: As `fork` does.
        """
        woken = await awaken(self._bus, self._blobs, run_id, follow_up, pool=self._settings.pool, changes=changes)
        return await self.fork(woken.params, run_id=new_run_id, group=woken.group if group is None else group)

    async def children(self, *, group: str | None = None) -> list[RunRow]:
        """Return all runs of this parent, newest first, also those of earlier connections under the same `parent_id`.

        Args:
            group: Only those of this group.

        Raises:
            BusError: NATS was not reached.
        """
        pool, parent = self._settings.pool, self._parent_id
        return await retry(self._bus, lambda: list_runs(self._bus, pool, parent=parent, group=group))

    def group(self, name: str) -> list[ForkHandle]:
        """Return the handles of a group's forks that were started here and are still held, oldest first."""
        return self._groups.of(name)

    async def attach(
        self,
        run_id: str,
        *,
        on_permission: OnPermission | None = None,
        tool_dispatcher: ToolDispatcher | None = None,
    ) -> ForkHandle:
        """Take hold of a run by its id, from any process; dropping this handle does not abort it.

        Args:
            run_id: Which.
            on_permission: Answers what the run asks for and has no answer to yet, as `ForkParams.on_permission` does.
            tool_dispatcher: Runs the tools that the run's request offered, in the place of the process that started
                it. Each call is run by one of all who follow the run.

        Raises:
            ForkRefused: There is no such run, or nothing that it could be asked to run.
            BusError: NATS was not reached.
        """
        record = ForkRecord(run_id=check_run_id(run_id), label="", skip_transcript=False)
        run = self._remote(record, on_permission)
        if await retry(self._bus, run.log.tip) is None:
            raise ForkRefused(f"There is no run {run_id!r} in pool {self._settings.pool!r}; it may have expired.")
        own = _Own(run=run, detached=True)
        if tool_dispatcher is not None:
            # A memory folder of the same name may be another one here.
            self._serve(own, await self._offering(run), tool_dispatcher, ParentContext(), files=False)
        await run.listen()
        self._runs.add(own)
        self._beside(own, self._follow(own, after=0, known=False))
        handle = ForkHandle(record, _Control(self, own))
        handle.detach()
        return handle

    async def abort_group(self, group: str, note: str = "") -> int:
        """Abort every unfinished run this parent started in a group.

        Returns:
            How many were aborted.
        """
        members = [own.run for own in self._runs if own.group == group and own.run.record.result is None]
        for run in members:
            await run.abort(note)
        return len(members)

    def background(self, run_id: str | None = None) -> int:
        """Move one synchronous wait, or all, to the background; the forks go on and nothing is lost.

        Returns:
            How many waits were moved.
        """
        return self._foreground.background(run_id)

    async def _offering(self, run: RemoteRun) -> Requested:
        """Return the request of a run whose parent runs tools."""
        entries = await retry(self._bus, run.log.entries)
        requests = [entry.message for entry in entries if isinstance(entry.message, Requested)]
        if not requests or requests[0].parent_tools is None:
            raise ForkRefused(
                f"Run {run.record.run_id!r} was started without tools of its parent's, so nobody is asked to run any; "
                "give the fork a tool_dispatcher."
            )
        return requests[0]

    def _serve(
        self, own: _Own, request: Requested, dispatcher: ToolDispatcher, context: ParentContext, *, files: bool
    ) -> None:
        own.run.tool_server = ParentToolServer(
            run_id=own.run.record.run_id,
            request=request,
            dispatcher=dispatcher,
            context=context,
            files=files,
            bus=self._bus,
            blobs=self._blobs,
            pool=self._settings.pool,
            beside=partial(self._beside, own),
        )

    def _remote(self, record: ForkRecord, on_permission: OnPermission | None) -> RemoteRun:
        return RemoteRun(
            self._bus,
            self._blobs,
            record,
            pool=self._settings.pool,
            parent_id=self._parent_id,
            on_asked=self._answer,
            permitting=Permitting(
                self._bus,
                pool=self._settings.pool,
                by=self._parent_id,
                callback=on_permission,
                start=self._start,
            ),
        )

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """Run something that never raises; not any more once the connection is closed."""
        if self._tasks is None:
            work.close()
            return None
        return self._tasks.create_task(work)

    def _beside(self, own: _Own, work: Coroutine[Any, Any, None]) -> asyncio.Task[Problem | None]:
        """Run something for a run; what it meets does not reach the others, and is the task's result."""
        if self._tasks is None:
            work.close()
            raise ForkRefused("The connection to the fleet was closed; open one with `connect` and attach by run id.")
        task = self._tasks.create_task(self._guarded(own, work))
        own.tasks.add(task)
        task.add_done_callback(own.tasks.discard)
        task.add_done_callback(lambda _: work.close())  # it may have been cancelled before it began
        return task

    async def _guarded(self, own: _Own, work: Coroutine[Any, Any, None]) -> Problem | None:
        try:
            await work
        except (BusError, ForkRefused) as exc:
            log.warning("run %s: %s", own.run.record.run_id, exc)
            return exc
        return None

    async def _follow(self, own: _Own, *, after: int, known: bool) -> None:
        try:
            await own.run.follow(after=after, known=known)
        finally:
            if own.run.record.result is not None:
                self._runs.discard(own)

    async def _answer(self, run: RemoteRun, asked: Asked) -> None:
        """Give a daemon the content it could not get; not having it is left to the daemon's deadline."""
        if asked.what != "blob":
            return
        try:
            payload = await self._requests.again(asked.payload)
            if payload is None:
                return
            answer = Answer(kind="answer", at=time.time(), data={"payload": payload.model_dump(exclude_none=True)})
            pool = self._settings.pool
            subject = inbox(run.record.run_id, asked.ask_id, pool)
            await store_once(self._bus, inbox_stream(pool), subject, encode(answer))
        except BusError as exc:
            log.warning("run %s: what it asked for was not given: %s", run.record.run_id, exc)

    async def _beat(self) -> None:
        subject = parent_alive(self._parent_id, self._settings.pool)
        while True:
            await self._bus.publish(subject, encode(Answer(kind="alive", at=time.time())))
            await asyncio.sleep(self._settings.heartbeat_s)

    async def _abort_all(self, note: str) -> None:
        async with asyncio.TaskGroup() as aborting:
            for own in self._runs:
                if not own.detached and own.run.record.result is None:
                    aborting.create_task(self._guarded(own, own.run.abort(note)))


class _Control:
    """What a handle can do about a run on the fleet."""

    def __init__(self, owner: NatsForkSubagent, own: _Own) -> None:
        self._owner = owner
        self._own = own

    def abort(self, note: str) -> Awaitable[None]:
        """Put an abort on the run's log; awaited, it is there."""
        return PendingAction(self._owner._beside(self._own, self._own.run.abort(note)))

    def message(self, text: str) -> Awaitable[None]:
        """Put a message into the run's inbox; awaited, it is there."""
        return PendingAction(self._owner._beside(self._own, self._own.run.message(text)))

    async def answer(self, ask_id: str, answer: PermissionAnswer) -> None:
        """Put an answer into the run's inbox."""
        await self._own.run.answer(ask_id, answer)

    async def fetch(self, result: ForkResult, root: str | os.PathLike[str] | None) -> Fetched:
        """Take the work of a finished run into a repository."""
        return await fetch_work(result, self._owner._blobs, root=root)

    def background(self) -> int:
        """Let go of the wait."""
        return self._owner.background(self._own.run.record.run_id)

    def detached(self) -> None:
        """Leave the run alone from now on, also when the parent leaves."""
        self._own.detached = True

    def dropped(self) -> None:
        """Abort, so that nobody pays for a result nobody wants."""
        if self._owner._tasks is not None:
            self._owner._beside(self._own, self._own.run.abort("its handle was dropped unused"))


async def fetch_work(result: ForkResult, blobs: BlobStore, *, root: str | os.PathLike[str] | None = None) -> Fetched:
    """Take the work of a finished run into ``refs/forks/<run_id>`` of a repository.

    Args:
        result: The run's.
        blobs: Where the bundle is.
        root: The repository; where the run was forked from unless said.

    Raises:
        MissingBase: The repository lacks the commit the fork began with.
        ForkRefused: There is nothing to fetch, or what came back is not what it should be.
        BusError: The bundle could not be fetched.
    """
    work = result.workspace
    if work is None:
        raise ForkRefused(f"Run {result.run_id} ({result.status}) had no git workspace; there is nothing to fetch.")
    if work.bundle is None:
        if work.problem:
            raise ForkRefused(f"Nothing of the work of run {result.run_id} can be fetched: {work.problem}")
        raise ForkRefused(f"Run {result.run_id} changed nothing; there is nothing to fetch.")
    target = os.fspath(root) if root is not None else work.root
    if root is None and not await asyncio.to_thread(os.path.isdir, target):
        raise ForkRefused(f"The repository {target} of run {result.run_id} is not on this host; name a clone of it.")
    return await fetch_bundle(target, result.run_id, work, await blobs.get(work.bundle))
