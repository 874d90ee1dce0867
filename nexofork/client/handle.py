"""Hold on to a running fork, wherever it runs.

A handle is the parent's claim on a child. Dropping it unused means nobody wants the result, so the child is aborted
rather than left running up a bill; saying otherwise is explicit: `detach`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from nexofork.engine.events import ForkEnded, ForkStarted, TextStreamed
from nexofork.engine.result import ForkResult, ForkStatus
from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from nexofork.engine.events import ForkEvent

__all__ = ["ForkControl", "ForkHandle", "ForkRecord"]

log = logging.getLogger(__name__)


class ForkRecord:
    """What is known of a run; shared by whatever follows it and the handle that shows it."""

    def __init__(
        self,
        *,
        run_id: str,
        label: str,
        skip_transcript: bool = False,
        observer: Callable[[ForkEvent], object] | None = None,
    ) -> None:
        self.run_id = run_id
        self.label = label
        self.result: ForkResult | None = None
        self.events: list[ForkEvent] = []
        self._skip_transcript = skip_transcript
        self._observer = observer
        self._more = asyncio.Event()

    def add(self, event: ForkEvent) -> None:
        """Keep an event and show it; text deltas are for those who watch, and are not kept."""
        kept = not isinstance(event, TextStreamed)
        if self._skip_transcript and not isinstance(event, (ForkStarted, ForkEnded)):
            kept = False
        if kept:
            self.events.append(event)
        if isinstance(event, ForkEnded):
            self.result = event.result
        if kept:
            self._wake()
        self._show(event)

    async def until(self, seen: int) -> None:
        """Return once there are more than `seen` events or the run is over."""
        while len(self.events) <= seen and self.result is None:
            await self._more.wait()

    def _show(self, event: ForkEvent) -> None:
        if self._observer is None:
            return
        try:
            self._observer(event)
        except Exception:
            # An observer only watches: what it raises is its own trouble, not the fork's.
            log.exception("an observer of fork %s raised", self.run_id)

    def _wake(self) -> None:
        # Everybody waiting now is woken; who comes later waits for the next event.
        self._more.set()
        self._more = asyncio.Event()


class ForkControl(Protocol):
    """What a handle can do about its run."""

    def abort(self, note: str) -> Awaitable[None]:
        """End the run; the abort is under way when this returns, and in force when it was awaited."""

    def message(self, text: str) -> Awaitable[None]:
        """Say something to the child; it reads it between two turns."""

    def background(self) -> int:
        """Let go of a synchronous wait for it."""

    def detached(self) -> None:
        """Nobody waits for it any more, and nobody's leaving ends it."""

    def dropped(self) -> None:
        """The handle is gone and nobody asked for the result; called in the loop's own thread."""


class ForkHandle:
    """One fork, seen from its parent."""

    def __init__(self, record: ForkRecord, control: ForkControl) -> None:
        self._record = record
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._claimed = False

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._record.run_id

    @property
    def label(self) -> str:
        """What the caller named the fork."""
        return self._record.label

    @property
    def status(self) -> ForkStatus:
        """Where the run is now."""
        return self._record.result.status if self._record.result else ForkStatus.RUNNING

    async def result(self) -> ForkResult:
        """Wait for the end and return the result, whatever the status; may be asked again.

        From the first call on the result counts as wanted: dropping the handle no longer aborts the fork.
        """
        self._claimed = True
        record = self._record
        while record.result is None:
            await record.until(len(record.events))
        return record.result

    async def events(self) -> AsyncIterator[ForkEvent]:
        """Yield everything that happened and happens, from the start to the end of the run."""
        record, seen = self._record, 0
        while True:
            await record.until(seen)
            while seen < len(record.events):
                event = record.events[seen]
                seen += 1
                yield event
                if isinstance(event, ForkEnded):
                    return

    def abort(self, note: str = "") -> Awaitable[None]:
        """End the fork; a no-op once it is over. The result then says who and why.

        The abort is under way at once; await it to know that it is in force.
        """
        return self._control.abort(note)

    def message(self, text: str) -> Awaitable[None]:
        """Say something to the running child; it reads it between two of its turns.

        A child that has stopped but not yet ended goes on with it. Await to know that the message is on its way.

        Raises:
            ForkRefused: The text is empty, or the fork is over.
        """
        if not text.strip():
            raise ForkRefused("The message is empty; say something.")
        if self._record.result is not None:
            raise ForkRefused(f"The fork is over ({self.status}); start a new one to go on.")
        return self._control.message(text)

    def background(self) -> bool:
        """Let go of a synchronous wait for this fork; it goes on and nothing is lost.

        Returns:
            Whether somebody was waiting.
        """
        return bool(self._control.background())

    def detach(self) -> None:
        """Let the fork go on without anybody waiting for it."""
        self._claimed = True
        self._control.detached()

    def __del__(self) -> None:
        record = getattr(self, "_record", None)
        if record is None or self._claimed or record.result is not None or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._control.dropped)
