"""Tell a person at a terminal what a command waits for, once that takes longer than a moment."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nexofork.cli.columns import clipped
from nexofork.cli.terminal import can_redraw

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["patience"]

_MOMENT_S = 1.0
_WIDTH = 78


@contextmanager
def patience(what: str) -> Iterator[None]:
    """Show what is waited for and for how long, on a line of stderr that is gone at the end; nothing in a pipe.

    For use in a running loop, around what prints nothing itself.
    """
    if not can_redraw(sys.stderr):
        yield
        return
    loop, began = asyncio.get_running_loop(), time.monotonic()
    timers: list[asyncio.TimerHandle] = []

    def show() -> None:
        if timers:
            _write(clipped(f"{what} … {time.monotonic() - began:.0f} s", _WIDTH))
        timers.append(loop.call_later(_MOMENT_S, show))

    show()
    try:
        yield
    finally:
        timers[-1].cancel()
        if len(timers) > 1:
            _write("")


def _write(line: str) -> None:
    sys.stderr.write(f"\r{line}\x1b[K")
    sys.stderr.flush()
