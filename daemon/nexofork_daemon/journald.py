"""The journal's own protocol: a record with named fields, in one datagram.

A value with a line end is sent with its length, and a record that is too large for a datagram goes as a sealed file.
Nobody waits for the journal: what it does not take is dropped, like everything written to a full disk would be.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SOCKET", "Journal", "encode"]

SOCKET = "/run/systemd/journal/socket"
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def encode(fields: Mapping[str, str]) -> bytes:
    r"""Return a record; names are upper case letters, digits and ``_``.

    >>> encode({"MESSAGE": "done", "RUN_ID": "r1"})
    b'MESSAGE=done\nRUN_ID=r1\n'
    >>> encode({"MESSAGE": "a\nb"})
    b'MESSAGE\n\x03\x00\x00\x00\x00\x00\x00\x00a\nb\n'
    """
    parts = []
    for name, text in fields.items():
        value = text.encode("utf-8", "backslashreplace")
        if b"\n" in value:
            parts.append(name.encode() + b"\n" + len(value).to_bytes(8, "little") + value + b"\n")
        else:
            parts.append(name.encode() + b"=" + value + b"\n")
    return b"".join(parts)


class Journal:
    """Writes records to the journal of this host."""

    def __init__(self, address: str = SOCKET) -> None:
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def write(self, fields: Mapping[str, str]) -> bool:
        """Write a record and return whether the journal took it."""
        record = encode(fields)
        try:
            self._socket.sendto(record, self._address)
        except OSError as exc:
            if exc.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                return False
            return self._write_large(record)
        return True

    def close(self) -> None:
        """Write no more."""
        self._socket.close()

    def _write_large(self, record: bytes) -> bool:
        file = os.memfd_create("journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with os.fdopen(os.dup(file), "wb") as writer:
                writer.write(record)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)  # it is read later, and must not change until then
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))
            self._socket.sendmsg([], [rights], 0, self._address)
        except OSError:
            return False
        finally:
            os.close(file)
        return True
