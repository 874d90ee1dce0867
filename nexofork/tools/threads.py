"""Do file work beside the event loop, so that a slow disk holds up one fork and not the daemon.

The threads are these tools' own: the loop's are needed to look up host names. A thread cannot be ended from outside, so
work asks again and again whether anybody still waits for it. A fork that is aborted gives it a moment to notice, and
goes on without it then.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from nexofork.tools.arguments import Unable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Stop", "in_thread"]

_THREADS = ThreadPoolExecutor(max_workers=16, thread_name_prefix="nexofork-files")
_GRACE_S = 1.0

T = TypeVar("T")


class Stop:
    """Whether the work is still wanted."""

    def __init__(self) -> None:
        self._set = threading.Event()

    def set(self) -> None:
        """Say that it is not."""
        self._set.set()

    def check(self) -> None:
        """Go on, or end the work.

        Raises:
            Unable: Nobody waits for it any more.
        """
        if self._set.is_set():
            raise Unable("It was ended before it was done.")


async def in_thread(work: Callable[[Stop], T], *, limit_s: float) -> T:
    """Return what the work returns.

    Raises:
        Unable: It took longer than the limit.
    """
    stop = Stop()
    # In the caller's context, so that what the work reports belongs to the caller's span.
    future = asyncio.get_running_loop().run_in_executor(_THREADS, contextvars.copy_context().run, work, stop)
    try:
        async with asyncio.timeout(limit_s):
            return await asyncio.shield(future)
    except TimeoutError:
        raise Unable(f"The file could not be dealt with in {limit_s:g} s.") from None
    finally:
        stop.set()
        if not future.done():
            future.add_done_callback(_heard)
            await asyncio.wait([future], timeout=_GRACE_S)


def _heard(future: asyncio.Future[T]) -> None:
    """Take note of how abandoned work ended, so that nobody complains that it was not."""
    if not future.cancelled():
        future.exception()
