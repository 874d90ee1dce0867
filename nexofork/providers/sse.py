"""Split a byte stream into server-sent events, whatever its chunks look like.

Every streamed token passes here, so the splitter works on the lines that ``bytes.splitlines`` finds and keeps an
unfinished line in one buffer. An event is handed out at its blank line, never later.

Invariant: the events depend on the bytes only, not on where the chunks were cut. No more than one event of the largest
size is kept, however small the chunks are that bring it.
"""

from __future__ import annotations

from nexofork.core.reply import BLOCK_BYTES, check_size

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
        self._unfinished = bytearray()
        self._data: bytes | bytearray | None = None
        self._after_cr = False
        self._first_line = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of every event that `chunk` completes; lines of one event are joined by a line feed.

        Raises:
            OversizedReply: A line or an event is over `BLOCK_BYTES`.
        """
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
            self._unfinished += lines[0]
            lines[0] = bytes(self._unfinished)
            self._unfinished = bytearray()
        if tail is not None:
            self._unfinished += tail
            check_size("a line with a number of bytes", len(self._unfinished), BLOCK_BYTES)
        return self._events(lines)

    def _events(self, lines: list[bytes]) -> list[bytes]:
        if self._first_line and lines:
            self._first_line = False
            lines[0] = lines[0].removeprefix(_BOM)
        events: list[bytes] = []
        for line in lines:
            if not line:
                if self._data is not None:
                    events.append(bytes(self._data))
                    self._data = None
            elif line.startswith(b"data:"):
                self._add(line[6:] if line[5:6] == b" " else line[5:])
            elif line == b"data":
                self._add(b"")
        return events

    def _add(self, data: bytes) -> None:
        if self._data is None:
            self._data = data
        else:
            if isinstance(self._data, bytes):
                self._data = bytearray(self._data)
            self._data += b"\n"
            self._data += data
        check_size("an event with a number of bytes", len(self._data), BLOCK_BYTES)
