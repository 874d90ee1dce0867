"""Everything a parent needs, for parents without an event loop.

A loop runs in a thread of its own; each call hands its work over and waits. Capture needs none of this: it works on
the synchronous ``Anthropic`` client as it is.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Self, TypeVar

from nexofork.client.in_process import DefaultForkSubagent
from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from nexofork.client.handle import ForkHandle
    from nexofork.engine.events import ForkEvent
    from nexofork.engine.params import ForkParams
    from nexofork.engine.result import ForkResult, ForkStatus

__all__ = ["BlockingForkHandle", "BlockingForkSubagent"]

T = TypeVar("T")
_NO_OWNER = "Forks need an owner: use `with BlockingForkSubagent() as forks`."


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

    def detach(self) -> None:
        """Let the fork go on without anybody waiting for it."""
        self._handle.detach()


class BlockingForkSubagent:
    """`DefaultForkSubagent` for synchronous code; a context that ends its forks when it is left."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Any]] = DefaultForkSubagent) -> None:
        """Prepare the façade.

        Args:
            make: Builds the factory inside the loop's thread.
        """
        self._make = make
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._forks: Any = None

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nexofork", daemon=True)
        self._thread.start()
        self._forks = self._call(_make_and_enter(self._make))
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._call(self._forks.__aexit__(None, None, None))
        self._call(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the loop the forks run in, for instance to open or close their provider."""
        return self._call(work)

    def fork(self, params: ForkParams) -> BlockingForkHandle:
        """Start a fork; raises like `DefaultForkSubagent.fork`."""
        return BlockingForkHandle(self._call(self._owned().fork(params)), self)

    def fork_each(self, params: ForkParams, directives: Iterable[str]) -> list[BlockingForkHandle]:
        """Start one fork per directive; raises like `DefaultForkSubagent.fork_each`."""
        handles = self._call(self._owned().fork_each(params, directives))
        return [BlockingForkHandle(handle, self) for handle in handles]

    def _owned(self) -> Any:
        if self._forks is None:
            raise ForkRefused(_NO_OWNER)
        return self._forks

    def _call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        if self._loop is None:
            work.close()
            raise ForkRefused(_NO_OWNER)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise


async def _make_and_enter(make: Callable[[], AbstractAsyncContextManager[Any]]) -> Any:
    return await make().__aenter__()


async def _abort(handle: ForkHandle, note: str) -> None:
    await handle.abort(note)


async def _next(events: Any) -> Any:
    return await anext(events)
