"""Let go of a synchronous wait after a time that its session sets, whatever its factory's own is."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from nexofork.run.events import ForkStarted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nexofork.run.events import ForkEvent
    from nexofork.run.params import ForkParams

__all__ = ["moved_after"]


@contextmanager
def moved_after(limit_s: float | None, params: ForkParams, background: Callable[[str], int]) -> Iterator[ForkParams]:
    """Give parameters to fork with in the block: the wait for that run moves to the background after a time.

    Args:
        limit_s: After how long from the run's start; None leaves the wait alone.
        params: The run's.
        background: Moves the wait for a run, and says how many it moved.
    """
    if limit_s is None:
        yield params
        return
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []

    def move(run_id: str) -> None:
        if not background(run_id):
            timers[:] = [loop.call_later(limit_s, move, run_id)]  # the wait has not begun yet

    def seen(event: ForkEvent) -> None:
        if isinstance(event, ForkStarted):  # nobody else says a run's id before its wait is over
            timers[:] = [loop.call_later(limit_s, move, event.run_id)]
        if params.on_message is not None:
            params.on_message(event)

    try:
        yield replace(params, on_message=seen)
    finally:
        for timer in timers:
            timer.cancel()
