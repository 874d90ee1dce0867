"""What goes on beside a parent for one of its runs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeAlias

from nexofork.errors import BusError, ForkRefused, NexoforkError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from nexofork.client.remote_run import RemoteRun
    from nexofork.engine.abort import AbortToken
    from nexofork.wire.messages import Requested

    Start = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None] | None]

__all__ = ["Problem", "UnderWay", "abort_with", "put_request"]

log = logging.getLogger(__name__)

Problem: TypeAlias = BusError | ForkRefused


class UnderWay:
    """Something that was begun; awaiting it raises what it met, and not awaiting it does no harm."""

    def __init__(self, task: asyncio.Task[Problem | None]) -> None:
        self._task = task

    def __await__(self) -> Generator[Any, None, None]:
        problem = yield from asyncio.shield(self._task)
        if problem is not None:
            raise problem


async def abort_with(token: AbortToken, run: RemoteRun) -> None:
    """Abort a run with the caller's token, as long as the run goes on."""
    async with asyncio.TaskGroup() as racers:
        thrown = racers.create_task(token.wait())
        over = racers.create_task(run.over())
        over.add_done_callback(lambda _: thrown.cancel())
        thrown.add_done_callback(lambda _: over.cancel())
    if not thrown.cancelled():
        await run.abort(thrown.result().note)


async def put_request(run: RemoteRun, request: Requested, start: Start) -> int:
    """Put a run's request on its log and return its sequence.

    A caller that is cancelled meanwhile has no handle to abort the run by, and cannot know whether it was stored. So it
    is stored beside the caller, and taken back when nobody waits for it any more.

    Raises:
        NexoforkError: As `RunLog.request` does; or the connection was closed.
    """
    waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    if start(_stored(run, request, waiting)) is None:
        raise ForkRefused("The connection to the fleet was closed; open one with `connect` and fork again.")
    try:
        return await waiting
    except asyncio.CancelledError:
        # It may have come at the same moment.
        if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
            start(_taken_back(run))
        raise


async def _stored(run: RemoteRun, request: Requested, waiting: asyncio.Future[int]) -> None:
    try:
        seq = await run.log.request(request)
    except NexoforkError as exc:
        if not waiting.done():
            waiting.set_exception(exc)
        return
    if waiting.done():
        await _taken_back(run)
    else:
        waiting.set_result(seq)


async def _taken_back(run: RemoteRun) -> None:
    try:
        await run.abort("its caller gave up while it was being asked for")
    except BusError as exc:
        log.warning("run %s goes on although nobody waits for it: %s", run.record.run_id, exc)
