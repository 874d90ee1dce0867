"""A picture on a terminal that changes in place.

It is drawn on the terminal's second screen, so that what was there before comes back, and only lines that changed are
written, each over itself: nothing is ever blank, so nothing flickers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nexofork.cli.columns import clipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Screen"]

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"  # the second screen, no cursor, all blank
_LEAVE = "\x1b[?25h\x1b[?1049l"
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"  # terminals that know it show everything in between at once


class Screen:
    """Shows lines on stdout, which is a terminal that can move its cursor."""

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._size = shutil.get_terminal_size()

    @contextmanager
    def open(self, redraw: Callable[[], object]) -> Iterator[None]:
        """Have the screen for as long as the block lasts; for use in a running loop.

        Args:
            redraw: Called when the terminal has another size, or is ours again after Ctrl-Z.
        """
        loop = asyncio.get_running_loop()

        def stop() -> None:
            self._write(_LEAVE)
            os.kill(os.getpid(), signal.SIGSTOP)
            self._enter()
            redraw()

        # A line of the log would stand in the middle of the picture, which shows what is wrong itself.
        logged = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        loop.add_signal_handler(signal.SIGWINCH, redraw)
        loop.add_signal_handler(signal.SIGTSTP, stop)
        self._enter()
        try:
            yield
        finally:
            self._write(_LEAVE)
            logging.disable(logged)
            loop.remove_signal_handler(signal.SIGWINCH)
            loop.remove_signal_handler(signal.SIGTSTP)

    @property
    def rows(self) -> int:
        """How many lines fit."""
        return shutil.get_terminal_size().lines

    def show(self, lines: Sequence[str]) -> None:
        """Show these lines and no others; what does not fit is cut off."""
        size = shutil.get_terminal_size()
        out = []
        if size != self._size:
            self._size, self._shown = size, []
            out.append("\x1b[2J")
        # The last column stays free: many terminals begin a new line behind it.
        fitting = [clipped(line, size.columns - 1) for line in lines[: size.lines]]
        for at in range(max(len(fitting), len(self._shown))):
            line = fitting[at] if at < len(fitting) else ""
            if at >= len(self._shown) or self._shown[at] != line:
                out.append(f"\x1b[{at + 1};1H{line}\x1b[K")
        self._shown = fitting
        if out:
            self._write("".join((_BEGIN, *out, _END)))

    def _enter(self) -> None:
        self._shown = []
        self._write(_ENTER)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
