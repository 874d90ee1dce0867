"""Split a byte stream into server-sent events, whatever its chunks look like.

Every streamed token passes here, so the splitter works on the lines that ``bytes.splitlines`` finds and keeps an
unfinished line as a list of pieces that are joined once. An event is handed out at its blank line, never later.

Invariant: the events depend on the bytes only, not on where the chunks were cut.
"""

from __future__ import annotations

__all__ = ["SseSplitter"]

_BOM = b"\xef\xbb\xbf"
_LF = 0x0A
_CR = 0x0D


class SseSplitter:
    """Turns chunks into the ``data`` of complete events.

    Only the data is kept: a Messages event carries its own ``type``, so the ``event`` line says nothing new, and
    ``id``, ``retry`` and comments mean nothing for a stream that is never resumed.
    """

    __slots__ = ("_after_cr", "_data", "_first_line", "_unfinished")

    def __init__(self) -> None:
        self._unfinished: list[bytes] = []
        self._data: list[bytes] = []
        self._after_cr = False
        self._first_line = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of every event that `chunk` completes; lines of one event are joined by a line feed."""
        if self._after_cr and chunk:
            # The line already ended at the carriage return; a CRLF cut in two must not end a second, empty line.
            self._after_cr = False
            if chunk[0] == _LF:
                chunk = chunk[1:]
        if not chunk:
            return []
        lines = chunk.splitlines()
        last = chunk[-1]
        tail = None if last in (_LF, _CR) else lines.pop()
        self._after_cr = last == _CR
        if lines and self._unfinished:
            self._unfinished.append(lines[0])
            lines[0] = b"".join(self._unfinished)
            self._unfinished.clear()
        if tail is not None:
            self._unfinished.append(tail)
        return self._events(lines)

    def _events(self, lines: list[bytes]) -> list[bytes]:
        if self._first_line and lines:
            self._first_line = False
            lines[0] = lines[0].removeprefix(_BOM)
        events: list[bytes] = []
        data = self._data
        for line in lines:
            if not line:
                if data:
                    events.append(data[0] if len(data) == 1 else b"\n".join(data))
                    data.clear()
            elif line.startswith(b"data:"):
                data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line == b"data":
                data.append(b"")
        return events
