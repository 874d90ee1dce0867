"""Show a run's text as it comes, while somebody looks. Lossy on purpose: the log has the turns.

Whether somebody looks is asked only once a reply has gone on for a moment: short ones are on the log before it matters.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Self

from nexofork.bus.failures import NoAnswer, NoResponders
from nexofork.engine.events import TextStreamed
from nexofork.errors import BusError
from nexofork.wire.subjects import DEFAULT_POOL, delta

if TYPE_CHECKING:
    from types import TracebackType

    from nexofork.bus.connection import Bus
    from nexofork.engine.events import ForkEvent

__all__ = ["DeltaFeed"]

_FIRST_LOOK_S = 0.3
_LOOK_AGAIN_S = 1.0
_GATHER_S = 0.05


class DeltaFeed:
    """Publishes text deltas of one run; an async context around its one task."""

    def __init__(self, bus: Bus, run_id: str, *, pool: str = DEFAULT_POOL) -> None:
        self._bus = bus
        self._subject = delta(run_id, pool)
        self._pending: list[str] = []
        self._some = asyncio.Event()
        self._quiet_until = 0.0
        self._watched = False
        self._tasks = asyncio.TaskGroup()
        self._task: asyncio.Task[None] | None = None

    def show(self, event: ForkEvent) -> None:
        """Take an event; what is not text is not shown here."""
        if isinstance(event, TextStreamed) and time.monotonic() >= self._quiet_until:
            self._pending.append(event.text)
            self._some.set()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._task = self._tasks.create_task(self._publish())
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
        await self._tasks.__aexit__(exc_type, exc, traceback)

    async def _publish(self) -> None:
        while True:
            await self._some.wait()
            if not self._watched:
                await asyncio.sleep(_FIRST_LOOK_S)
                await self._say("")  # nobody pays for text that nobody watches
            text, self._pending = "".join(self._pending), []
            self._some.clear()
            if self._watched:
                await self._say(text)

    async def _say(self, text: str) -> None:
        data = json.dumps({"v": 1, "text": text}, ensure_ascii=False).encode("utf-8", "backslashreplace")
        try:
            # Sent as a request: without a subscriber the server says so at once, and we stop for a while.
            await self._bus.request(self._subject, data, timeout_s=_GATHER_S)
        except NoResponders:
            self._watched = False
            self._quiet_until = time.monotonic() + _LOOK_AGAIN_S
        except NoAnswer:
            self._watched = True  # somebody looks, and need not answer
        except BusError:
            return
