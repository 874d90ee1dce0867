"""Fork in this process: children are tasks beside the parent's own, on the parent's event loop."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import TYPE_CHECKING, Self

from nexofork.client.handle import ForkHandle, ForkRecord
from nexofork.engine.abort import AbortReason, AbortToken
from nexofork.engine.params import DelegateMode, prepare
from nexofork.engine.run import ForkRun
from nexofork.engine.warmth import LocalWarmth
from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from nexofork.engine.events import ForkEvent
    from nexofork.engine.params import ForkParams

__all__ = ["DefaultForkSubagent"]

log = logging.getLogger(__name__)


class DefaultForkSubagent:
    """Starts forks and owns their tasks.

    An async context: no fork outlives it. Leaving it aborts what is still running and waits until that has ended; what
    a child does or meets never raises into it.
    """

    def __init__(self, *, leader_wait_s: float = 30.0) -> None:
        """Make a factory.

        Args:
            leader_wait_s: The longest a child waits for the sibling that writes their common prefix.
        """
        self._warmth = LocalWarmth(now=time.monotonic, wait_s=leader_wait_s)
        self._tasks: asyncio.TaskGroup | None = None
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
        await tasks.__aexit__(exc_type, exc, traceback)

    async def fork(self, params: ForkParams) -> ForkHandle:
        """Start a fork; with `DelegateMode.SYNC` return only when it is over.

        Cancelling a synchronous wait aborts the child and waits for it, then the cancellation goes on.

        Raises:
            ForkRefused: Something is wrong with the call; nothing was sent.
        """
        if self._tasks is None:
            raise ForkRefused("Forks need an owner: use `async with DefaultForkSubagent() as forks`.")
        base, prompt = prepare(params)
        token = params.external_abort.child() if params.external_abort else AbortToken()
        record = ForkRecord(
            run_id=str(uuid.uuid4()), label=params.fork_label, token=token, skip_transcript=params.skip_transcript
        )
        run = ForkRun(
            params,
            run_id=record.run_id,
            base=base,
            prompt=prompt,
            token=token,
            warmth=self._warmth,
            emit=_publisher(record, params.on_message),
        )
        self._tasks.create_task(self._run(run, token), name=f"fork-{record.run_id}")
        handle = ForkHandle(record)
        if params.mode is DelegateMode.SYNC:
            await self._finished(handle)
        return handle

    async def fork_each(self, params: ForkParams, directives: Iterable[str]) -> list[ForkHandle]:
        """Start one fork per directive; either all are accepted or none is started.

        Raises:
            ForkRefused: As `fork` does, for whichever directive it is.
        """
        each = [params.with_directive(directive) for directive in directives]
        for one in each:
            prepare(one)
        return [await self.fork(one) for one in each]

    async def _run(self, run: ForkRun, token: AbortToken) -> None:
        self._running.add(token)
        try:
            await run.run()
        finally:
            self._running.discard(token)

    async def _finished(self, handle: ForkHandle) -> None:
        try:
            await handle.result()
        except asyncio.CancelledError:
            handle.abort("the caller stopped waiting")
            await handle.result()
            raise


def _publisher(record: ForkRecord, observer: Callable[[ForkEvent], object] | None) -> Callable[[ForkEvent], None]:
    def emit(event: ForkEvent) -> None:
        record.add(event)
        if observer is None:
            return
        try:
            observer(event)
        except Exception:
            # An observer only watches: what it raises is its own trouble, not the fork's.
            log.exception("an observer of fork %s raised", record.run_id)

    return emit
