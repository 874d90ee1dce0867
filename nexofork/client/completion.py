"""Take the results of several forks in the order they come, and find the forks of a group again.

Waiting for a result is not the same as wanting to keep the fork: whoever leaves the loop early has asked for nothing
that was not given yet, so what became of the other handles is as if the loop had never been. No task is started, so
there is nothing to clean up.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from nexofork.client.handle import ForkHandle
    from nexofork.engine.result import ForkResult

__all__ = ["HandleGroups", "as_completed"]


async def as_completed(handles: Iterable[ForkHandle]) -> AsyncIterator[ForkResult]:
    """Yield each fork's result as soon as it is over, whatever the status; forks here and on a fleet may be mixed.

    The handles are held until the loop is left. Leaving it early neither aborts nor detaches the others: dropping
    their handles unused aborts them, as always.
    """
    held = list(dict.fromkeys(handles))
    over: asyncio.Queue[ForkResult] = asyncio.Queue()
    forget = [handle.when_over(over.put_nowait) for handle in held]
    try:
        for _ in held:
            yield await over.get()
    finally:
        for stop in forget:
            stop()


class HandleGroups:
    """The handles of one parent by group, for as long as somebody holds them."""

    def __init__(self) -> None:
        self._groups: dict[str, WeakValueDictionary[int, ForkHandle]] = {}
        self._numbers = itertools.count()

    def add(self, group: str | None, handle: ForkHandle) -> ForkHandle:
        """Remember a handle, and return it."""
        if group is not None:
            if group not in self._groups:
                # Names are let go of too, or a parent that makes up one per fan-out would keep them all.
                self._groups = {name: handles for name, handles in self._groups.items() if handles}
            self._groups.setdefault(group, WeakValueDictionary())[next(self._numbers)] = handle
        return handle

    def of(self, group: str) -> list[ForkHandle]:
        """Return the group's handles that somebody holds, in the order the forks were started."""
        return [handle for _, handle in sorted(self._groups.get(group, {}).items())]
