"""Hold on to a running fork.

A handle is the parent's claim on a child. Dropping it unused means nobody wants the result, so the child is aborted
rather than left running up a bill; saying otherwise is explicit: `detach`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nexofork.engine.abort import AbortReason
from nexofork.engine.events import ForkEnded, ForkStarted, TextStreamed
from nexofork.engine.result import ForkResult, ForkStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nexofork.engine.abort import AbortToken
    from nexofork.engine.events import ForkEvent

__all__ = ["ForkHandle", "ForkRecord"]


class ForkRecord:
    """What is known of a run; shared by the task that runs it and the handle that watches it."""

    def __init__(self, *, run_id: str, label: str, token: AbortToken, skip_transcript: bool) -> None:
        self.run_id = run_id
        self.label = label
        self.token = token
        self.result: ForkResult | None = None
        self._skip_transcript = skip_transcript
        self.events: list[ForkEvent] = []
        self._more = asyncio.Event()

    def add(self, event: ForkEvent) -> None:
        """Keep an event for whoever asks; text deltas are for those who watch, and are not kept."""
        if isinstance(event, TextStreamed):
            return
        if self._skip_transcript and not isinstance(event, (ForkStarted, ForkEnded)):
            return
        self.events.append(event)
        if isinstance(event, ForkEnded):
            self.result = event.result
        self._wake()

    async def until(self, seen: int) -> None:
        """Return once there are more than `seen` events or the run is over."""
        while len(self.events) <= seen and self.result is None:
            await self._more.wait()

    def _wake(self) -> None:
        # Everybody waiting now is woken; who comes later waits for the next event.
        self._more.set()
        self._more = asyncio.Event()


class ForkHandle:
    """One fork, seen from its parent."""

    def __init__(self, record: ForkRecord) -> None:
        self._record = record
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

    def abort(self, note: str = "") -> None:
        """End the fork; a no-op once it is over. The result then says who and why."""
        self._record.token.abort(AbortReason.PARENT, note)

    def detach(self) -> None:
        """Let the fork go on without anybody waiting for it."""
        self._claimed = True

    def __del__(self) -> None:
        record = getattr(self, "_record", None)
        if record is None or self._claimed or record.result is not None or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(record.token.abort, AbortReason.PARENT, "its handle was dropped unused")
