"""Fork in this process: children are tasks on the parent's event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from nexofork.client.handle import Foreground, ForkHandle, ForkRecord, HandleGroups
from nexofork.errors import CannotWake, ForkRefused
from nexofork.policy.gate import Gate
from nexofork.policy.permissions import PermissionAnswer, answer_of
from nexofork.run.abort import AbortReason, AbortToken
from nexofork.run.budget import LocalTill, RunPurse, cost_of
from nexofork.run.call_records import CallOwner, MemoryLedger
from nexofork.run.events import ForkAsked, ForkEvent, ForkPermitted
from nexofork.run.mailbox import LocalMailbox
from nexofork.run.params import DelegateMode, prepare, refuse_groupless
from nexofork.run.prefix_gate import Warmth
from nexofork.run.run import ForkRun
from nexofork.run.turns import MemoryJournal
from nexofork.run.wake import check_changes, check_end, continued
from nexofork.telemetry import metrics
from nexofork.wire.budget import Account
from nexofork.wire.messages import BudgetLimit, new_run_id

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from types import TracebackType

    from nexofork.core.prompt import ChildPrompt, ForkBase
    from nexofork.policy.permissions import Decision, OnPermission, PermissionAnswer, PermissionAsk
    from nexofork.run.budget import Purse
    from nexofork.run.params import ForkParams
    from nexofork.run.result import ForkResult
    from nexofork.workspace.fetch import Fetched

__all__ = ["DefaultForkSubagent", "LocalAsker"]


class DefaultForkSubagent:
    """Starts forks and owns their tasks.

    An async context: no fork outlives it. Leaving it aborts what is still running and waits until that has ended; what
    a child does or meets never raises into it.
    """

    def __init__(self, *, leader_wait_s: float = 30.0, auto_background_s: float | None = None) -> None:
        """Make a factory.

        Args:
            leader_wait_s: The longest a child waits for the sibling that writes their common prefix.
            auto_background_s: After how long a synchronous wait moves to the background by itself.
        """
        self._foreground = Foreground(auto_background_s=auto_background_s)
        self._warmth = Warmth(wait_s=leader_wait_s)
        self._tasks: asyncio.TaskGroup | None = None
        self._tills: dict[str, LocalTill] = {}
        """By group: the budget its forks share; the first to name one sets it."""
        self._running: set[AbortToken] = set()
        self._groups = HandleGroups()
        self._past: WeakKeyDictionary[ForkHandle, _Past] = WeakKeyDictionary()
        """What is known of forks that may be woken, for as long as somebody holds their handles."""
        self.ledger = MemoryLedger()
        """Every model call its forks made; `nexofork.economics.ledger` sums it."""

    async def __aenter__(self) -> Self:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tasks, self._tasks = self._tasks, None
        assert tasks is not None
        for token in list(self._running):
            token.abort(AbortReason.SHUTDOWN, "the parent left")
        # The group is not told what the caller raised: it would cancel forks that are ending in order, and wrap it.
        await tasks.__aexit__(None, None, None)

    async def fork(self, params: ForkParams, *, group: str | None = None) -> ForkHandle:
        """Start a fork; with `DelegateMode.SYNC` return only when it is over.

        Cancelling a synchronous wait aborts the child and waits for it, then the cancellation goes on.

        Raises:
            ForkRefused: Something is wrong with the call; nothing was sent.
        """
        (handle,) = await self._start_all([params], group)
        return handle

    async def fork_each(
        self, params: ForkParams, directives: Iterable[str], *, group: str | None = None
    ) -> list[ForkHandle]:
        """Start one fork per directive, side by side; either all are accepted or none is started.

        Forks of one group share its `group_budget`, also across calls.

        Raises:
            ForkRefused: As `fork` does, for whichever directive it is.
        """
        return await self._start_all(params.each(directives), group)

    async def wake(self, handle: ForkHandle, follow_up: str, *, group: str | None = None, **changes: Any) -> ForkHandle:
        """Continue a fork of this factory's that has ended: the same child goes on.

        Args:
            handle: The fork that ended.
            follow_up: What the child is told now.
            group: The new fork's group; None is that of the fork.
            changes: Fields of `ForkParams` that shall be other than they were.

        Raises:
            CannotWake: It still runs, kept no transcript, is none of this factory's, or left nothing to go on from.
            ForkRefused: As `fork` does.
        """
        run_id, past = handle.run_id, self._past.get(handle)
        check_changes(run_id, changes)
        if past is None:
            raise CannotWake(run_id, "it is none of this factory's forks", fix="Wake it where it was started.")
        if not handle.status.over:
            raise CannotWake(run_id, "it is not over", fix="Say it with `message`: the child reads it between turns.")
        result = await handle.result()
        if past.journal is None:
            raise CannotWake(run_id, "it kept no transcript (skip_transcript)", fix="Fork a new child.")
        check_end(run_id, status=result.status, end=result.end)
        params = continued(
            past.params,
            past.journal.turns,
            run_id=run_id,
            follow_up=follow_up,
            sent_at=past.journal.last_sent_at,
            decision=result.decision,
        )
        return await self.fork(replace(params, **changes), group=past.group if group is None else group)

    def group(self, name: str) -> list[ForkHandle]:
        """Return the handles of a group's forks that are still held, oldest first."""
        return self._groups.of(name)

    def background(self, run_id: str | None = None) -> int:
        """Move one synchronous wait, or all, to the background; the forks go on and nothing is lost.

        Returns:
            How many waits were moved.
        """
        return self._foreground.background(run_id)

    async def _start_all(self, each: Sequence[ForkParams], group: str | None) -> list[ForkHandle]:
        if self._tasks is None:
            raise ForkRefused("Forks need an owner: use `async with DefaultForkSubagent() as forks`.")
        for one in each:
            refuse_groupless(one, group)
            if one.workspace is not None:
                raise ForkRefused("A fork in this process works where the process does; workspaces need a fleet.")
        prepared = [(one, *prepare(one)) for one in each]
        handles = [self._start(self._tasks, *one, group=group) for one in prepared]
        waited_for = [handle for one, handle in zip(each, handles, strict=True) if one.mode is DelegateMode.SYNC]
        await self._foreground.wait(waited_for)
        return handles

    def _start(
        self, tasks: asyncio.TaskGroup, params: ForkParams, base: ForkBase, prompt: ChildPrompt, *, group: str | None
    ) -> ForkHandle:
        token = params.external_abort.child() if params.external_abort else AbortToken()
        record = ForkRecord(
            run_id=new_run_id(),
            label=params.fork_label,
            skip_transcript=params.skip_transcript,
            observer=params.on_message,
        )
        mailbox = LocalMailbox()
        asker = LocalAsker(emit=record.add, callback=params.on_permission)
        journal = None if params.skip_transcript else MemoryJournal()
        run = ForkRun(
            params,
            run_id=record.run_id,
            base=base,
            prompt=prompt,
            token=token,
            warmth=self._warmth,
            emit=record.add,
            mailbox=mailbox,
            gate=Gate(params.permissions, tools=params.tool_dispatcher, asker=asker),
            journal=journal,
            purse=self._purse(params, record.run_id, group),
            ledger=self.ledger.of_run(CallOwner(run_id=record.run_id, label=record.label, group=group)),
        )
        self._running.add(token)
        tasks.create_task(self._run(run, token), name=f"fork-{record.run_id}")
        handle = ForkHandle(record, _Control(self, record.run_id, token, mailbox, asker))
        self._past[handle] = _Past(params=params, group=group, journal=journal)
        return self._groups.add(group, handle)

    def _purse(self, params: ForkParams, run_id: str, group: str | None) -> Purse | None:
        if params.budget is None and params.group_budget is None:
            return None
        shared = None
        if group is not None and params.group_budget is not None:
            account = Account(name=group, limit=params.group_budget.limit)
            shared = self._tills.setdefault(group, LocalTill(account))
        own = LocalTill(Account(limit=params.budget.limit if params.budget else BudgetLimit()))
        return RunPurse(own, name=run_id, cost=cost_of(params.model), group=shared)

    async def _run(self, run: ForkRun, token: AbortToken) -> None:
        try:
            metrics.run_ended((await run.run()).status.value)
        finally:
            self._running.discard(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past:
    """What a fork was and did."""

    params: ForkParams
    group: str | None
    journal: MemoryJournal | None


class _Control:
    """What a handle can do about a fork in this process."""

    def __init__(
        self, owner: DefaultForkSubagent, run_id: str, token: AbortToken, mailbox: LocalMailbox, asker: LocalAsker
    ) -> None:
        self._owner = owner
        self._run_id = run_id
        self._token = token
        self._mailbox = mailbox
        self._asker = asker

    async def fetch(self, result: ForkResult, root: str | os.PathLike[str] | None) -> Fetched:
        """Refuse: what a fork in this process changes is here already."""
        raise ForkRefused(f"Fork {result.run_id} ran in this process and had no workspace; there is nothing to fetch.")

    def abort(self, note: str) -> Awaitable[None]:
        """Throw the fork's own token; that is all there is to wait for."""
        self._token.abort(AbortReason.PARENT, note)
        return _done()

    def message(self, text: str) -> Awaitable[None]:
        """Leave it where the run looks between its turns."""
        self._mailbox.post(text)
        return _done()

    async def answer(self, ask_id: str, answer: PermissionAnswer) -> None:
        """Give it to the asker where the run waits for it."""
        self._asker.give(ask_id, answer)

    def background(self) -> int:
        """Let go of the wait."""
        return self._owner.background(self._run_id)

    def detached(self) -> None:
        """Change nothing: the fork still ends with the factory that owns it."""

    def dropped(self) -> None:
        """Abort, so that nobody pays for a result nobody wants."""
        self._token.abort(AbortReason.PARENT, "its handle was dropped unused")


def _done() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


@dataclass(slots=True, kw_only=True)
class LocalAsker:
    """Asks in this process."""

    emit: Callable[[ForkEvent], None]
    callback: OnPermission | None = None
    _open: dict[str, asyncio.Future[PermissionAnswer]] = field(default_factory=dict)
    _closed: set[str] = field(default_factory=set)

    async def answer(self, ask: PermissionAsk) -> PermissionAnswer | None:
        """Show the question, and wait for the callback or for whoever answers by its id."""
        given: asyncio.Future[PermissionAnswer] = asyncio.get_running_loop().create_future()
        self._open[ask.ask_id] = given
        self.emit(asked_event(ask))
        try:
            async with asyncio.timeout(ask.deadline_s), asyncio.TaskGroup() as tasks:
                calling = tasks.create_task(self._call(ask, given)) if self.callback else None
                answer = await given
                if calling is not None:
                    calling.cancel()
        except TimeoutError:
            return None
        finally:
            del self._open[ask.ask_id]
            self._closed.add(ask.ask_id)
        return answer

    async def decided(self, ask: PermissionAsk, decision: Decision) -> None:
        """Show what it came to."""
        self.emit(
            ForkPermitted(
                run_id=ask.run_id,
                ask_id=ask.ask_id,
                call_id=ask.call_id,
                name=ask.name,
                allowed=decision.allowed,
                how=decision.how,
                note=decision.note,
                rules=decision.rules,
                by=decision.by,
            )
        )

    def give(self, ask_id: str, answer: PermissionAnswer) -> None:
        """Answer a question.

        Raises:
            ForkRefused: It was decided before, or never asked.
        """
        given = self._open.get(ask_id)
        if given is None or given.done():
            was = given is not None or ask_id in self._closed
            raise ForkRefused(
                f"Ask {ask_id} was decided before; the first answer stands."
                if was
                else f"There is no open ask {ask_id!r}; open are: {', '.join(self._open) or 'none'}."
            )
        given.set_result(answer)

    async def _call(self, ask: PermissionAsk, given: asyncio.Future[PermissionAnswer]) -> None:
        assert self.callback is not None
        answer = await answer_of(self.callback, ask)
        if not given.done():
            given.set_result(answer)


def asked_event(ask: PermissionAsk) -> ForkAsked:
    """Return the event that shows a question."""
    return ForkAsked(
        run_id=ask.run_id,
        ask_id=ask.ask_id,
        what="permission",
        turn=ask.turn,
        call_id=ask.call_id,
        name=ask.name,
        arguments=ask.arguments,
        deadline_s=ask.deadline_s,
        rules=ask.rules,
    )
