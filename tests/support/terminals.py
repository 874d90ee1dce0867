"""A command at a terminal of its own, and what that terminal shows."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Terminal", "at_terminal"]

_MOVE = re.compile(r"\x1b\[(\d+);1H")


class Terminal:
    """A command at a terminal of its own."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.shown = ""
        self._descriptor = descriptor
        self._read_to = 0

    def until(self, words: str) -> None:
        """Return when the words are shown, behind those that were waited for last."""
        self.until_holds(lambda: self.shown.find(words, self._read_to) >= 0)
        self._read_to = self.shown.find(words, self._read_to) + len(words)

    def until_holds(self, holds: Callable[[], object]) -> None:
        """Return when a fact about what is shown holds."""
        give_up = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < give_up, self.shown
            if not self._read(0.2):
                assert holds(), self.shown

    def ended(self) -> int:
        """Return the exit code, once there is one and everything was read."""
        give_up = time.monotonic() + PATIENCE_S
        while self._read(0.2):
            assert time.monotonic() < give_up, self.shown
        return self.process.wait(PATIENCE_S)

    def type(self, words: str) -> None:
        """Type something."""
        os.write(self._descriptor, words.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Make the window another size."""
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def modes(self) -> list[Any]:
        """How the terminal is set."""
        return termios.tcgetattr(self._descriptor)

    @property
    def screen(self) -> list[str]:
        """The lines of the picture that is on the second screen, without colours; whatever is drawn, line by line."""
        drawn = self.shown.rpartition("\x1b[?1049h")[2].partition("\x1b[?1049l")[0].rpartition("\x1b[2J")[2]
        lines: dict[int, str] = {}
        parts = _MOVE.split(drawn)
        for row, text in zip(parts[1::2], parts[2::2], strict=True):
            lines[int(row)] = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", text)
        return [lines.get(row, "") for row in range(1, max(lines, default=0) + 1)]

    def _read(self, wait_s: float) -> bool:
        """Read what there is; False once the command is gone."""
        if not select.select([self._descriptor], [], [], wait_s)[0]:
            return True
        with suppress(OSError):
            if data := os.read(self._descriptor, 65536):
                self.shown += data.decode(errors="replace")
                return True
        return False


@contextmanager
def at_terminal(
    command: Sequence[str], environment: dict[str, str], *, columns: int = 100, rows: int = 30
) -> Iterator[Terminal]:
    """Start a command at a terminal; it is gone at the end of the block."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={"TERM": "xterm", **environment},
        preexec_fn=lambda: os.login_tty(theirs),  # so that Ctrl-C reaches it
    )
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
