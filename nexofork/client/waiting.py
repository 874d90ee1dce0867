"""Wait for forks in the foreground, and let go of the wait without letting go of the forks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.client.handle import ForkHandle

__all__ = ["Foreground"]


class Foreground:
    """The synchronous waits of one parent."""

    def __init__(self, *, auto_background_s: float | None = None) -> None:
        self._auto_background_s = auto_background_s
        self._waits: dict[str, asyncio.Event] = {}

    async def wait(self, handles: Sequence[ForkHandle]) -> None:
        """Return when each of the forks is over or was moved to the background; they notice neither.

        Cancelling the wait aborts those that still run, waits for their end, and the cancellation goes on.
        """
        try:
            async with asyncio.TaskGroup() as waits:
                for handle in handles:
                    waits.create_task(self._one(handle))
        except asyncio.CancelledError:
            for handle in handles:
                await handle.abort("the caller stopped waiting")
            for handle in handles:
                await handle.result()
            raise

    def background(self, run_id: str | None = None) -> int:
        """Move one wait, or all of them, to the background.

        Returns:
            How many waits were moved.
        """
        waits = [wait for key, wait in self._waits.items() if run_id in (None, key)]
        for wait in waits:
            wait.set()
        return len(waits)

    async def _one(self, handle: ForkHandle) -> None:
        moved = self._waits[handle.run_id] = asyncio.Event()
        try:
            async with asyncio.timeout(self._auto_background_s), asyncio.TaskGroup() as racers:
                over = racers.create_task(handle.result())
                asked = racers.create_task(moved.wait())
                over.add_done_callback(lambda _: asked.cancel())
                asked.add_done_callback(lambda _: over.cancel())
        except TimeoutError:
            return
        finally:
            del self._waits[handle.run_id]
