"""A request under way: the answers so far, and what ends it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexofork.bus.subscription import Msg
    from nexofork.errors import BusError

__all__ = ["Exchange"]


@dataclass(slots=True, kw_only=True)
class Exchange:
    """A request and the answers to it."""

    subject: str
    is_last: Callable[[Msg], bool]
    timeout_s: float
    """How long the next answer may take."""
    done: asyncio.Future[None]
    scope: asyncio.Timeout
    replies: list[Msg] = field(default_factory=list)
    sent: bool = False
    """Whether the server may have it; before that nothing that happens to the connection concerns it."""

    def take(self, msg: Msg) -> None:
        """Add an answer."""
        if self.done.done() or self.scope.expired():
            return
        self.replies.append(msg)
        if self.is_last(msg):
            self.done.set_result(None)
        else:  # a long answer is late only when it stops coming
            self.scope.reschedule(asyncio.get_running_loop().time() + self.timeout_s)

    def fail(self, error: BusError) -> None:
        """End it with an error."""
        if self.sent and not self.done.done():
            self.done.set_exception(error)
