"""The simulator's time: it runs by itself and can be pushed forward.

Time to live, rate limits and the log all read this clock, so a test of a five-minute expiry takes no five minutes.
Invariant: it never goes back, and two readings differ by at least the real time between them times the scale.
"""

from __future__ import annotations

import time

__all__ = ["Clock"]


class Clock:
    """Seconds since the epoch on a monotonic base, plus whatever was added by `advance`."""

    def __init__(self, *, scale: float = 1.0) -> None:
        if scale <= 0:
            raise ValueError(f"a clock needs a positive scale, not {scale}")
        self._scale = scale
        self._epoch = time.time()
        self._start = time.monotonic()
        self._offset_s = 0.0

    def now(self) -> float:
        """The current simulated time."""
        return self._epoch + (time.monotonic() - self._start) * self._scale + self._offset_s

    def advance(self, seconds: float) -> float:
        """Jump forward and return the new time.

        Raises:
            ValueError: the jump would go back in time.
        """
        if seconds < 0:
            raise ValueError(f"the clock cannot go back by {-seconds} s")
        self._offset_s += seconds
        return self.now()
