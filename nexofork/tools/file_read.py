"""Show a text file's lines with their numbers, as many as fit an answer; the file may be of any size."""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from nexofork.tools.arguments import Unable
from nexofork.tools.named_file import explained, folder_of, opened

if TYPE_CHECKING:
    from nexofork.tools.named_file import FilePath
    from nexofork.tools.threads import Stop

__all__ = ["DEFAULT_LINES", "WHOLE_BYTES", "Shown", "looks_binary", "read_file", "refuse_pictures"]

DEFAULT_LINES = 2_000
WHOLE_BYTES = 16 * 1024 * 1024
"""Files up to this are read whole, so that what was seen has a digest; only those can be written or edited."""
_LINE_CHARS = 2_000
_LINE_BYTES = 4 * _LINE_CHARS + 8
_ANSWER_CHARS = 150_000
"""Stays below what the default content-replacement budget would shorten."""
_HEAD_BYTES = 64 * 1024
_CHUNK_BYTES = 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_PICTURES = (
    (b"\x89PNG\r\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"BM", "a BMP image"),
    (b"%PDF-", "a PDF document"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the model gets to see of a file."""

    text: str
    digest: str | None
    """SHA-256 of the whole file; None where it is too large to be had."""


def looks_binary(head: bytes) -> bool:
    """Whether a file that starts like this is no text."""
    return b"\0" in head[:_HEAD_BYTES]


def refuse_pictures(path: FilePath, head: bytes) -> None:
    """Refuse what cannot be shown as text.

    Raises:
        Unable: The file is an image, a document or something else that is no text.
    """
    binary = looks_binary(head)
    for magic, kind in _PICTURES:
        # Two letters may start a text too.
        if head.startswith(magic) and (binary or len(magic) > 2):
            raise Unable(f"{path} is {kind}, which cannot be shown here.")
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        raise Unable(f"{path} is a WebP image, which cannot be shown here.")
    if binary:
        raise Unable(f"{path} is a binary file; look at it with Bash, for example with `file` or `xxd`.")


def read_file(path: FilePath, *, offset: int, limit: int, stop: Stop) -> Shown:
    """Return `limit` lines from line `offset` on, counted from 1.

    Raises:
        Unable: There is no such file, it is no text, or it has no such line.
    """
    stop.check()
    try:
        with (
            folder_of(path) as folder,
            opened(path, folder) as descriptor,
            open(descriptor, "rb", closefd=False) as file,
        ):
            return _shown(path, file, os.fstat(descriptor).st_size, offset=offset, limit=limit, stop=stop)
    except OSError as exc:
        raise explained(path, exc) from exc


def _shown(path: FilePath, file: IO[bytes], size: int, *, offset: int, limit: int, stop: Stop) -> Shown:
    head = file.read(_HEAD_BYTES)
    refuse_pictures(path, head)
    data = head + file.read(WHOLE_BYTES + 1 - len(head)) if size <= WHOLE_BYTES else b""
    whole = size <= WHOLE_BYTES and len(data) <= WHOLE_BYTES
    if not whole:
        file.seek(0)
    digest = hashlib.sha256(data).hexdigest() if whole else None
    if whole and not data:
        return Shown(text=f"[{path} is empty]", digest=digest)
    page = _Page(io.BytesIO(data) if whole else file, stop)
    page.skip(path, offset - 1)
    text = page.take(offset, limit)
    if whole:
        page.note_line_ends(data)
    else:
        page.notes.append(f"the file is larger than {WHOLE_BYTES} bytes and can only be changed with Bash")
    return Shown(text=text + "".join(f"\n[{note}]" for note in page.notes), digest=digest)


class _Page:
    """Some lines of a stream; never holds more of it than it shows."""

    def __init__(self, stream: IO[bytes], stop: Stop) -> None:
        self._stream = stream
        self._stop = stop
        self.notes: list[str] = []
        """What the reader has to know about what is shown."""
        if stream.read(len(_BOM)) == _BOM:
            self.notes.append("the file starts with a byte order mark, which is not shown")
        else:
            stream.seek(0)

    def skip(self, path: FilePath, lines: int) -> None:
        """Go to the line behind so many.

        Raises:
            Unable: There is none.
        """
        skipped, last = 0, b"\n"
        while skipped < lines:
            self._stop.check()
            start = self._stream.tell()
            chunk = self._stream.read(_CHUNK_BYTES)
            if not chunk:
                break
            found, last = chunk.count(b"\n"), chunk[-1:]
            if skipped + found >= lines:
                end = -1
                for _ in range(lines - skipped):
                    end = chunk.index(b"\n", end + 1)
                self._stream.seek(start + end + 1)
                last = b"\n"
                found = lines - skipped
            skipped += found
        if not self._more():
            count = skipped + (last != b"\n")
            raise Unable(f"{path} has only {count} line{'s' if count != 1 else ''}; give a smaller `offset`.")

    def take(self, first: int, limit: int) -> str:
        """Return lines with their numbers, and note what was cut, left out or made readable."""
        lines: list[str] = []
        chars, cut, replaced = 0, False, False
        while len(lines) < limit and chars < _ANSWER_CHARS:
            self._stop.check()
            raw = self._stream.readline(_LINE_BYTES)
            if not raw:
                break
            text = raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "replace")
            replaced = replaced or ("\ufffd" in text and "\ufffd".encode() not in raw)
            too_long = self._rest_of_line(raw) or len(text) > _LINE_CHARS
            if too_long:
                text, cut = f"{text[:_LINE_CHARS]} [cut]", True
            lines.append(f"{first + len(lines):6}\t{text}")
            chars += len(lines[-1]) + 1
        if self._more():
            self.notes.append(f"more lines follow; go on with offset {first + len(lines)}")
        if cut:
            self.notes.append(f"lines of more than {_LINE_CHARS} characters were cut")
        if replaced:
            self.notes.append("not all of it is valid UTF-8: other bytes are shown as \ufffd")
        return "\n".join(lines)

    def note_line_ends(self, data: bytes) -> None:
        """Say how lines end where that is not with a line feed alone."""
        windows, all_ = data.count(b"\r\n"), data.count(b"\n")
        if windows == all_ > 0:
            self.notes.append("lines end with CRLF; a line feed in a FileEdit stands for that")
        elif windows:
            self.notes.append(f"{windows} of {all_} lines end with CRLF, the others with LF")

    def _rest_of_line(self, raw: bytes) -> bool:
        """Pass over what is left of a long line; whether there was anything."""
        found = False
        while not raw.endswith(b"\n"):
            self._stop.check()
            raw = self._stream.readline(_CHUNK_BYTES)
            if not raw:
                break
            found = found or raw != b"\n"
        return found

    def _more(self) -> bool:
        at = self._stream.tell()
        more = self._stream.read(1) != b""
        self._stream.seek(at)
        return more
