"""Follow what runs in the background: report each end once, and let a parent wait for one where it wants to.

An end is delivered once: to whoever waits for that run in the foreground, else as a notification.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

from nexofork.errors import ForkRefused
from nexofork.run.result import task_notification

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator
    from types import TracebackType

    from nexofork.run.result import ForkResult

__all__ = ["Background", "Running"]


class Running(Protocol):
    """A run that was started, as its factory's handle shows it."""

    @property
    def run_id(self) -> str:
        """The run's id."""

    async def result(self) -> ForkResult:
        """Wait for the end."""

    def abort(self, note: str = "") -> Awaitable[None]:
        """End it."""


@dataclass(slots=True, eq=False)
class _Followed:
    run_id: str
    handle: Running | None
    """None once it has ended: nothing it held is kept but its result."""
    result: ForkResult | None = None
    waits: list[asyncio.Event] = field(default_factory=list)


class Background:
    """The runs of one parent; an async context, since following them takes tasks. Leaving it ends no run."""

    def __init__(self, *, auto_background_s: float | None = None) -> None:
        self._auto_background_s = auto_background_s
        self._followed: dict[str, _Followed] = {}
        self._running: set[str] = set()
        self._ready: deque[str] = deque()
        self._news = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._following: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tasks, self._tasks = self._tasks, None
        assert tasks is not None
        for task in self._following:
            task.cancel()
        # The group is not told what the caller raised: it would wrap it.
        await tasks.__aexit__(None, None, None)

    def opened(self) -> asyncio.TaskGroup:
        """Return the group that follows runs.

        Raises:
            ForkRefused: The context is not entered.
        """
        if self._tasks is None:
            raise ForkRefused("Agents run in the background and somebody has to follow them: use `async with` first.")
        return self._tasks

    def follow(self, handle: Running) -> None:
        """Report the run's end from now on; one that is followed already is left alone."""
        tasks = self.opened()
        if handle.run_id in self._followed:
            return
        followed = self._followed[handle.run_id] = _Followed(handle.run_id, handle)
        self._running.add(handle.run_id)
        task = tasks.create_task(self._until_end(followed, handle))
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    @property
    def running(self) -> tuple[str, ...]:
        """The ids of the runs that have not ended, in the order they were started."""
        return tuple(run_id for run_id in self._followed if run_id in self._running)

    def notifications(self) -> list[str]:
        """Return what has ended and was not told yet, each as text for a user message."""
        told = [self._notice(run_id) for run_id in self._ready]
        self._ready.clear()
        return told

    async def next_notification(self) -> str | None:
        """Wait for the next end and return it as text for a user message; None where nothing is running any more."""
        while not self._ready:
            if not self._running:
                return None
            await self._news.wait()
        return self._notice(self._ready.popleft())

    async def wait(self, run_id: str) -> ForkResult | None:
        """Wait for a run in the foreground; None if the wait was moved to the background, where the run goes on.

        Who gets the result here is not notified of it again. Cancelling the wait does not touch the run.

        Raises:
            ForkRefused: No such run was started here.
        """
        followed = self._known(run_id)
        if followed.result is None:
            await self._woken(followed)
        if followed.result is not None and run_id in self._ready:
            self._ready.remove(run_id)
        return followed.result

    def background(self, run_id: str | None = None) -> int:
        """Move one wait, or all of them, to the background; the runs do not notice.

        Returns:
            How many waits were moved.
        """
        waits = [wait for key, followed in self._followed.items() if run_id in (None, key) for wait in followed.waits]
        for wait in waits:
            wait.set()
        return len(waits)

    @contextmanager
    def backgrounded_by(self, number: signal.Signals = signal.SIGUSR1) -> Iterator[None]:
        """Let a signal move all waits to the background, as long as the context lasts; for a main thread's loop."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(number, self.background)
        try:
            yield
        finally:
            loop.remove_signal_handler(number)

    async def abort(self, run_id: str, note: str = "") -> None:
        """End a run; its end is reported like any other. A no-op once it is over.

        Raises:
            ForkRefused: No such run was started here.
            BusError: NATS was not reached.
        """
        handle = self._known(run_id).handle
        if handle is not None:
            await handle.abort(note)

    async def _woken(self, followed: _Followed) -> None:
        wake = asyncio.Event()
        followed.waits.append(wake)
        heard = False
        try:
            async with asyncio.timeout(self._auto_background_s):
                await wake.wait()
            heard = True
        except TimeoutError:
            heard = True
        finally:
            followed.waits.remove(wake)
            if not heard and followed.result is not None and not followed.waits:
                self._tell(followed.run_id)  # it ended for a wait that was given up at the same moment

    async def _until_end(self, followed: _Followed, handle: Running) -> None:
        followed.result = await handle.result()
        followed.handle = None
        self._running.discard(followed.run_id)
        if followed.waits:
            for wait in followed.waits:
                wait.set()
            self._wake()
        else:
            self._tell(followed.run_id)

    def _tell(self, run_id: str) -> None:
        self._ready.append(run_id)
        self._wake()

    def _wake(self) -> None:
        # Everybody waiting now is woken; who comes later waits for the next news.
        self._news.set()
        self._news = asyncio.Event()

    def _notice(self, run_id: str) -> str:
        result = self._followed[run_id].result
        assert result is not None, "only what has ended is ready"
        return task_notification(result)

    def _known(self, run_id: str) -> _Followed:
        followed = self._followed.get(run_id)
        if followed is None:
            known = ", ".join(self._followed) or "none"
            raise ForkRefused(f"No agent was started here as {run_id!r}; started were: {known}.")
        return followed
