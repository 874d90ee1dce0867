"""What a program of ours does before it loads anything else, so that nothing can go wrong while it loads.

An interrupt in the middle of an import is a traceback, or is lost where the import system drops exceptions. A standard
stream that is closed is worse: the next file that is opened takes its number, and libuv aborts over it.
"""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["start"]


def start() -> None:
    """Let an interrupt end this process until a loop has a handler for it, and open closed streams on nothing.

    An interrupt that whoever started us ignores stays ignored. Doing it twice is harmless.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number, which is this one
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
