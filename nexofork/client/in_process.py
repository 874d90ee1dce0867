"""Fork in this process: children are tasks beside the parent's own, on the parent's event loop."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Self

from nexofork.client.handle import ForkHandle, ForkRecord
from nexofork.client.waiting import Foreground
from nexofork.engine.abort import AbortReason, AbortToken
from nexofork.engine.budget import LocalTill, RunPurse, cost_of
from nexofork.engine.mailbox import LocalMailbox
from nexofork.engine.params import DelegateMode, prepare, refuse_groupless
from nexofork.engine.run import ForkRun
from nexofork.engine.warmth import Warmth
from nexofork.errors import ForkRefused
from nexofork.wire.budget import Account
from nexofork.wire.messages import BudgetLimit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence
    from types import TracebackType

    from nexofork.core.prompt import ChildPrompt, ForkBase
    from nexofork.engine.budget import Purse
    from nexofork.engine.params import ForkParams

__all__ = ["DefaultForkSubagent"]


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
            run_id=str(uuid.uuid4()),
            label=params.fork_label,
            skip_transcript=params.skip_transcript,
            observer=params.on_message,
        )
        mailbox = LocalMailbox()
        run = ForkRun(
            params,
            run_id=record.run_id,
            base=base,
            prompt=prompt,
            token=token,
            warmth=self._warmth,
            emit=record.add,
            mailbox=mailbox,
            purse=self._purse(params, record.run_id, group),
        )
        self._running.add(token)
        tasks.create_task(self._run(run, token), name=f"fork-{record.run_id}")
        return ForkHandle(record, _Control(self, record.run_id, token, mailbox))

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
            await run.run()
        finally:
            self._running.discard(token)


class _Control:
    """What a handle can do about a fork in this process."""

    def __init__(self, owner: DefaultForkSubagent, run_id: str, token: AbortToken, mailbox: LocalMailbox) -> None:
        self._owner = owner
        self._run_id = run_id
        self._token = token
        self._mailbox = mailbox

    def abort(self, note: str) -> Awaitable[None]:
        """Throw the fork's own token; that is all there is to wait for."""
        self._token.abort(AbortReason.PARENT, note)
        return _done()

    def message(self, text: str) -> Awaitable[None]:
        """Leave it where the run looks between its turns."""
        self._mailbox.post(text)
        return _done()

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
