"""The simulator in a thread of its own, for callers without an event loop.

The handle has the simulator's methods in blocking form; each is run in the simulator's loop. Invariant: when the
block ends the thread has ended.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from nexofork.simulator.server import Simulator

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from nexofork.simulator.clock import Clock
    from nexofork.simulator.config import SimulatorConfig
    from nexofork.simulator.log import RequestRecord

__all__ = ["ThreadedSimulator", "simulator_thread"]

T = TypeVar("T")
DEADLINE_S = 30.0


class ThreadedSimulator:
    """A running simulator as another thread sees it."""

    def __init__(self, simulator: Simulator, loop: asyncio.AbstractEventLoop) -> None:
        self._simulator = simulator
        self._loop = loop
        self.url = simulator.url

    @property
    def log(self) -> list[RequestRecord]:
        """The records so far; a copy."""
        return list(self._simulator.log)

    @property
    def clock(self) -> Clock:
        """The movable clock."""
        return self._simulator.clock

    def body(self, index: int) -> bytes | None:
        """The raw bytes of a request."""
        return self._simulator.body(index)

    def script(self, *rules: Mapping[str, Any]) -> None:
        """Replace the rules for what the model says."""
        self._call(lambda: self._simulator.script(*rules))

    def release(self, gate: str) -> None:
        """Open a gate."""
        self._call(lambda: self._simulator.release(gate))

    def reset(self) -> None:
        """Forget cache entries, log, limits, gates and rules."""
        self._call(self._simulator.reset)

    def received(self, requests: int, *, deadline_s: float = DEADLINE_S) -> None:
        """Return when so many requests have arrived.

        Raises:
            TimeoutError: they have not within the deadline.
        """
        self._wait(self._simulator.received(requests), deadline_s)

    def finished(self, requests: int, *, deadline_s: float = DEADLINE_S) -> None:
        """Return when so many requests are over; raises `TimeoutError` past the deadline."""
        self._wait(self._simulator.finished(requests), deadline_s)

    def closed_early(self, requests: int, *, deadline_s: float = DEADLINE_S) -> None:
        """Return when so many clients have left early; raises `TimeoutError` past the deadline."""
        self._wait(self._simulator.closed_early(requests), deadline_s)

    def _call(self, action: Callable[[], T]) -> T:
        async def run() -> T:
            return action()

        return self._wait(run(), DEADLINE_S)

    def _wait(self, work: Coroutine[Any, Any, T], deadline_s: float) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(deadline_s)
        finally:
            future.cancel()


@contextmanager
def simulator_thread(config: SimulatorConfig | None = None) -> Iterator[ThreadedSimulator]:
    """Run a simulator in a background thread for the length of a block."""
    started: Future[tuple[ThreadedSimulator, asyncio.Event]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        async with Simulator(config) as simulator:
            started.set_result((ThreadedSimulator(simulator, asyncio.get_running_loop()), stop))
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except OSError as exc:
            if started.done():
                raise
            started.set_exception(exc)

    thread = threading.Thread(target=run, name="nexofork-simulator", daemon=True)
    thread.start()
    handle, stop = started.result(DEADLINE_S)
    try:
        yield handle
    finally:
        handle._loop.call_soon_threadsafe(stop.set)
        thread.join(DEADLINE_S)
