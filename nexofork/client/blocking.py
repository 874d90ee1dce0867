"""Everything a parent needs, for parents without an event loop.

A loop runs in a thread of its own; each call hands its work over and waits. Capture needs none of this: it works on
the synchronous ``Anthropic`` client as it is.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from nexofork.client.handle import ForkHandle, as_completed
from nexofork.client.local import DefaultForkSubagent
from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Coroutine, Iterable, Iterator
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from nexofork.client.runs import RunRow
    from nexofork.run.call_records import MemoryLedger
    from nexofork.run.events import ForkEvent
    from nexofork.run.params import ForkParams
    from nexofork.run.result import ForkResult, ForkStatus
    from nexofork.tools.dispatch import ToolDispatcher
    from nexofork.workspace.fetch import Fetched

__all__ = ["BlockingForkHandle", "BlockingForkSubagent"]

T = TypeVar("T")


class BlockingForkHandle:
    """One fork, seen from a synchronous parent."""

    def __init__(self, handle: ForkHandle, owner: BlockingForkSubagent) -> None:
        self._handle = handle
        self._owner = owner

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._handle.run_id

    @property
    def status(self) -> ForkStatus:
        """Where the run is now."""
        return self._handle.status

    def result(self, timeout: float | None = None) -> ForkResult:
        """Wait for the end and return the result.

        Raises:
            TimeoutError: It did not end within `timeout` seconds; the fork goes on.
        """
        return self._owner._call(self._handle.result(), timeout)

    def events(self) -> Iterator[ForkEvent]:
        """Yield everything that happened and happens, to the end of the run."""
        events = aiter(self._handle.events())
        while True:
            try:
                yield self._owner._call(_next(events))
            except StopAsyncIteration:
                return

    def abort(self, note: str = "") -> None:
        """End the fork; a no-op once it is over."""
        self._owner._call(_abort(self._handle, note))

    def message(self, text: str) -> None:
        """Say something to the running child; raises like `ForkHandle.message`."""
        self._owner._call(_message(self._handle, text))

    def answer(self, ask_id: str, allow: bool, *, note: str = "", remember: bool = False, rule: str = "") -> None:
        """Answer what the fork asked permission for; raises like `ForkHandle.answer`."""
        self._owner._call(self._handle.answer(ask_id, allow, note=note, remember=remember, rule=rule))

    def fetch(self, root: str | os.PathLike[str] | None = None) -> Fetched:
        """Take the child's commits into a repository; raises like `ForkHandle.fetch`."""
        return self._owner._call(self._handle.fetch(root))

    def detach(self) -> None:
        """Let the fork go on without anybody waiting for it."""
        self._handle.detach()


class BlockingForkSubagent:
    """Forks for synchronous code, here or on a fleet; a context that ends its forks when it is left."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Any]] = DefaultForkSubagent) -> None:
        """Prepare the façade.

        Args:
            make: Builds the factory inside the loop's thread; ``lambda: connect(url)`` forks onto a fleet.
        """
        self._make = make
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._living: Future[None] | None = None
        self._open: _Open | None = None

    @property
    def ledger(self) -> MemoryLedger:
        """Every model call of forks in this process; a fleet keeps its own, which ``nexofork cost`` reads."""
        forks = self._opened().forks
        if not isinstance(forks, DefaultForkSubagent):
            raise ForkRefused("A fleet keeps its ledger in NATS: read it with `nexofork cost`.")
        return forks.ledger

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nexofork", daemon=True)
        self._thread.start()
        opened: Future[_Open] = Future()
        self._living = asyncio.run_coroutine_threadsafe(_live(self._make, opened), self._loop)
        try:
            self._open = opened.result()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._loop is not None
        assert self._open is not None
        assert self._living is not None
        self._loop.call_soon_threadsafe(self._open.leave.set)
        self._open = None
        try:
            self._living.result()
        finally:
            self._end()

    def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        """Open something in the forks' own loop, such as their provider; it is closed when the forks have ended."""
        return self._call(self._opened().contexts.enter_async_context(context))

    def fork(self, params: ForkParams, *, group: str | None = None) -> BlockingForkHandle:
        """Start a fork; raises like the factory's `fork`."""
        return BlockingForkHandle(self._call(self._opened().forks.fork(params, group=group)), self)

    def fork_each(
        self, params: ForkParams, directives: Iterable[str], *, group: str | None = None
    ) -> list[BlockingForkHandle]:
        """Start one fork per directive; raises like the factory's `fork_each`."""
        handles = self._call(self._opened().forks.fork_each(params, directives, group=group))
        return [BlockingForkHandle(handle, self) for handle in handles]

    def wake(self, run: str | BlockingForkHandle, follow_up: str, **changes: Any) -> BlockingForkHandle:
        """Continue a fork that has ended: by its id on a fleet, by its handle in process; raises as theirs do."""
        forks = self._opened().forks
        which = run._handle if isinstance(run, BlockingForkHandle) else run
        if isinstance(which, ForkHandle) and not isinstance(forks, DefaultForkSubagent):
            which = which.run_id
        return BlockingForkHandle(self._call(forks.wake(which, follow_up, **changes)), self)

    def children(self, *, group: str | None = None) -> list[RunRow]:
        """Return this parent's runs on the fleet; raises like `NatsForkSubagent.children`."""
        rows: list[RunRow] = self._call(self._opened().forks.children(group=group))
        return rows

    def as_completed(self, handles: Iterable[BlockingForkHandle]) -> Iterator[ForkResult]:
        """Yield each fork's result as soon as it is over; see `nexofork.as_completed`."""
        results = aiter(as_completed([handle._handle for handle in handles]))
        while True:
            try:
                yield self._call(_next(results))
            except StopAsyncIteration:
                return

    def attach(self, run_id: str, *, tool_dispatcher: ToolDispatcher | None = None) -> BlockingForkHandle:
        """Take hold of a run on the fleet by its id; raises like `NatsForkSubagent.attach`."""
        handle = self._call(self._opened().forks.attach(run_id, tool_dispatcher=tool_dispatcher))
        return BlockingForkHandle(handle, self)

    def _opened(self) -> _Open:
        if self._open is None:
            raise ForkRefused("Forks need an owner: use `with BlockingForkSubagent() as forks`.")
        return self._open

    def _call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        if self._loop is None:
            work.close()
            raise ForkRefused("The forks' owner is gone: use the handle inside its `with` block.")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def _end(self) -> None:
        loop, self._loop = self._loop, None
        assert loop is not None
        assert self._thread is not None
        asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """What lives in the loop's thread."""

    forks: Any
    contexts: AsyncExitStack
    leave: asyncio.Event


async def _live(make: Callable[[], AbstractAsyncContextManager[Any]], opened: Future[_Open]) -> None:
    """Hold the factory open in one task from beginning to end, as its task group wants it."""
    leave = asyncio.Event()
    try:
        async with AsyncExitStack() as contexts, make() as forks:
            opened.set_result(_Open(forks=forks, contexts=contexts, leave=leave))
            await leave.wait()
    except BaseException as exc:
        if opened.done():
            raise
        opened.set_exception(exc)


async def _abort(handle: ForkHandle, note: str) -> None:
    await handle.abort(note)


async def _message(handle: ForkHandle, text: str) -> None:
    await handle.message(text)


async def _next(events: Any) -> Any:
    return await anext(events)
