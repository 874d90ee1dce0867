"""Change a file so that it is either as it was or as it shall be, and only if what is there has been seen.

The new content goes to a temporary file beside the old one, is flushed to the disk, and takes the old one's place with
its mode. A link is followed: its target changes, the link stays. A hard link's other names keep the old content, and so
nothing outside the folder changes. Access control lists and extended attributes are not kept.

Between the look at what is there and the rename somebody outside may change the file; what he wrote is lost then. Two
forks of one daemon cannot do that to each other: they take turns.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.tools.arguments import Unable
from nexofork.tools.file_read import WHOLE_BYTES, looks_binary
from nexofork.tools.named_file import explained, folder_of, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nexofork.tools.named_file import FilePath
    from nexofork.tools.threads import Stop

__all__ = ["Edit", "Written", "edit_file", "encoded", "write_file"]

_CHUNK_BYTES = 1024 * 1024
_TURNS = [threading.Lock() for _ in range(64)]
_BARE_LF = re.compile(rb"(?<!\r)\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Text to put in another's place."""

    old: bytes
    new: bytes
    everywhere: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What came of a change."""

    text: str
    digest: str
    """SHA-256 of what is in the file now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Current:
    data: bytes
    status: os.stat_result


def encoded(text: str, name: str) -> bytes:
    """Return a text's bytes.

    Raises:
        Unable: It cannot be written as UTF-8, or it is too long.
    """
    try:
        data = text.encode()
    except UnicodeEncodeError as exc:
        raise Unable(f"`{name}` cannot be written as UTF-8: there is half a surrogate pair in it.") from exc
    _refuse_large(name, len(data))
    return data


def write_file(path: FilePath, data: bytes, *, known: str | None, stop: Stop) -> Written:
    """Write a whole file, and the folders it is in.

    Args:
        path: Where, canonical.
        data: What.
        known: SHA-256 of what the fork last saw of it.
        stop: Whether anybody still wants it.

    Raises:
        Unable: There is a file that the fork has not seen as it is, or it cannot be written.
    """
    with _changing(path, stop, create=True) as folder:
        current = _current(path, folder)
        if current is not None:
            _refuse_unseen(path, current, known, "overwriting")
        digest = _put(path, folder, data, current, stop)
    what = "Created" if current is None else "Overwrote"
    return Written(text=f"{what} {path} ({len(data)} bytes).", digest=digest)


def edit_file(path: FilePath, edit: Edit, *, known: str | None, stop: Stop) -> Written:
    """Put a text in the place of another that the file has exactly once, or everywhere.

    In a file whose lines all end with CRLF, a line feed in the edit stands for that.

    Raises:
        Unable: The fork has not seen the file as it is, the text is not there or there more than once, or the file
            cannot be written.
    """
    with _changing(path, stop) as folder:
        current = _current(path, folder)
        if current is None:
            raise explained(path, FileNotFoundError(errno.ENOENT, "not there"))
        _refuse_unseen(path, current, known, "editing")
        if looks_binary(current.data):
            raise Unable(f"{path} is a binary file and cannot be edited as text.")
        old, new = (_with_ends_of(current.data, text) for text in (edit.old, edit.new))
        found = current.data.count(old)
        _refuse_match(path, found, everywhere=edit.everywhere)
        _refuse_large(path, len(current.data) + found * (len(new) - len(old)))
        digest = _put(path, folder, current.data.replace(old, new), current, stop)
    line = current.data.count(b"\n", 0, current.data.index(old)) + 1
    places = f"1 place, in line {line}" if found == 1 else f"{found} places, the first in line {line}"
    return Written(text=f"Edited {path}: replaced {places}.", digest=digest)


@contextmanager
def _changing(path: FilePath, stop: Stop, *, create: bool = False) -> Iterator[int]:
    """Open the folder while nobody else of this process changes the file."""
    turn = _TURNS[hash(path.real) % len(_TURNS)]
    while not turn.acquire(timeout=0.1):
        stop.check()
    try:
        stop.check()
        with folder_of(path, create=create) as folder:
            yield folder
    except OSError as exc:
        raise explained(path, exc) from exc
    finally:
        turn.release()


def _current(path: FilePath, folder: int) -> _Current | None:
    try:
        with opened(path, folder) as descriptor, open(descriptor, "rb", closefd=False) as file:
            status = os.fstat(descriptor)
            _refuse_large(path, status.st_size)
            data = file.read(WHOLE_BYTES + 1)
    except FileNotFoundError:
        return None
    _refuse_large(path, len(data))
    if not os.access(path.name, os.W_OK, dir_fd=folder):
        raise PermissionError(errno.EACCES, "not writable")
    return _Current(data=data, status=status)


def _put(path: FilePath, folder: int, data: bytes, current: _Current | None, stop: Stop) -> str:
    name, temporary = path.name, f".nexofork-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, 0o666 if current is None else 0o600, dir_fd=folder)
    try:
        for start in range(0, len(data), _CHUNK_BYTES):
            stop.check()
            _write_all(descriptor, data[start : start + _CHUNK_BYTES])
        if current is not None:
            _keep_owner_and_mode(descriptor, current.status)
        os.fsync(descriptor)
        stop.check()
        if current is None:
            _place_new(path, temporary, folder)
        else:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(descriptor)
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
    with suppress(OSError):
        _sync_folder(folder)
    return hashlib.sha256(data).hexdigest()


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _place_new(path: FilePath, temporary: str, folder: int) -> None:
    """Give a new file its name, unless somebody was faster."""
    name = path.name
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise Unable(f"{path} has just been created by somebody else; read it with FileRead first.") from None
    except OSError:  # a file system without hard links
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def _keep_owner_and_mode(descriptor: int, status: os.stat_result) -> None:
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) != (status.st_uid, status.st_gid):
        with suppress(PermissionError):
            os.fchown(descriptor, status.st_uid, status.st_gid)
    # Not the bits that have it run as its owner: they were given to what was in it before.
    os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & ~(stat.S_ISUID | stat.S_ISGID))


def _sync_folder(folder: int) -> None:
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _with_ends_of(data: bytes, text: bytes) -> bytes:
    lines = data.count(b"\n")
    return _BARE_LF.sub(b"\r\n", text) if lines and lines == data.count(b"\r\n") else text


def _refuse_unseen(path: FilePath, current: _Current, known: str | None, doing: str) -> None:
    if known is None:
        raise Unable(f"{path} has not been read; read it with FileRead before {doing} it.")
    if hashlib.sha256(current.data).hexdigest() != known:
        raise Unable(f"{path} has changed since it was read; read it again with FileRead before {doing} it.")


def _refuse_match(path: FilePath, found: int, *, everywhere: bool) -> None:
    if not found:
        raise Unable(
            f"`old_string` is not in {path}; read the file with FileRead and copy the text exactly, "
            "without the line numbers."
        )
    if found > 1 and not everywhere:
        raise Unable(f"`old_string` is in {path} {found} times; add lines around it to name one, or set `replace_all`.")


def _refuse_large(name: str | FilePath, size: int) -> None:
    if size > WHOLE_BYTES:
        raise Unable(f"{name} has {size} bytes; up to {WHOLE_BYTES} can be written here. Use Bash.")
