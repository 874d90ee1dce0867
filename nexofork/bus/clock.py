"""The NATS server's time, which hosts whose own clocks differ by minutes can all tell alike."""

from __future__ import annotations

import logging
import time
from datetime import datetime
from typing import TYPE_CHECKING

from nexofork.bus.jetstream import call
from nexofork.errors import BusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexofork.bus.connection import Bus

__all__ = ["ServerClock", "steady_time"]

log = logging.getLogger(__name__)

_FRESH_S = 300.0
_NOTABLE_S = 5.0


_AT_START = time.time() - time.monotonic()


def steady_time() -> float:
    """Return the Unix time of the process's start plus what has passed since; setting the clock does not change it."""
    return _AT_START + time.monotonic()


class ServerClock:
    """Tells the server's time from our own clock and the difference that was last seen."""

    def __init__(self, bus: Bus, stream: str, *, own: Callable[[], float] = steady_time) -> None:
        """Start with our own time.

        Args:
            bus: The connection.
            stream: One that every role may ask about: the answer carries the server's time.
            own: This host's clock, as Unix time.
        """
        self._own = own
        self._bus = bus
        self._stream = stream
        self._asked_at: float | None = None
        self.ahead_s = 0.0
        """How far the server's clock is ahead of ours."""

    def now(self) -> float:
        """Return the server's time as Unix time."""
        return self._own() + self.ahead_s

    def ours(self, server_time: float) -> float:
        """Return what our own clock shows at a time of the server's."""
        return server_time - self.ahead_s

    async def refresh(self) -> None:
        """Ask the server for its time, unless it was asked a moment ago; where it does not say, ours has to do."""
        if self._asked_at is not None and time.monotonic() - self._asked_at < _FRESH_S:
            return
        before = self._own()
        try:
            info = await call(self._bus, f"STREAM.INFO.{self._stream}")
            at = datetime.fromisoformat(str(info["ts"])[:26].rstrip("Z") + "+00:00").timestamp()
        except (BusError, KeyError, ValueError) as exc:
            log.debug("the server's time is not known: %s", exc)
            return
        self._asked_at = time.monotonic()
        self.ahead_s = at - (before + self._own()) / 2
        if abs(self.ahead_s) > _NOTABLE_S:
            log.warning(
                "this host's clock is %+.0f s off the NATS server's; the difference is allowed for", -self.ahead_s
            )
