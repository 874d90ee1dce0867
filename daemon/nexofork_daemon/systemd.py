"""Talk to systemd: the daemon's state and its watchdog, and records for the journal.

A value with a line end is sent to the journal with its length, and a record that is too large for a datagram goes as a
sealed file. No call waits for the journal: what it does not take is dropped, as if the disk were full.
"""

from __future__ import annotations

import array
import asyncio
import errno
import fcntl
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["JOURNAL_SOCKET", "Journal", "Supervisor", "Watch", "encode_record"]

_BEATS = 3
_EXTEND_S = 30.0
_STOPPING_BEAT_S = 5.0
JOURNAL_SOCKET = "/run/systemd/journal/socket"
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervisor:
    """How to reach the one who started us, if that is systemd."""

    address: str = ""
    """Its socket; empty where there is none."""
    watchdog_s: float | None = None
    """How long it waits for a sign of life."""

    def tell(self, **facts: object) -> None:
        """Send facts, such as ``READY=1``; nobody waits for them to arrive."""
        if not self.address:
            return
        # A name in the abstract namespace is written with @ in front.
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        message = "\n".join(f"{name}={str(fact).replace(chr(10), ' ')}" for name, fact in facts.items())
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as to:
            try:
                to.sendto(message.encode(), address)
            except OSError:
                return  # it is restarting, or gone; the next one will get through


class Watch:
    """What the supervisor was told, and the beat that tells it."""

    def __init__(self, supervisor: Supervisor, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._supervisor = supervisor
        self._clock = clock
        self._doing = ""
        self._stopping = asyncio.Event()

    def waiting(self) -> None:
        """Say that the start waits for NATS, and ask for time: the unit's limit is for a start that hangs."""
        self._supervisor.tell(STATUS="waiting for NATS", EXTEND_TIMEOUT_USEC=int(_EXTEND_S * 1e6))

    def ready(self) -> None:
        """Say that work can be taken."""
        self._supervisor.tell(READY=1, STATUS=self._doing or "ready")

    def doing(self, *, slots: int, running: int, draining: bool) -> None:
        """Say how busy the daemon is."""
        state = "draining" if draining else f"{slots} slots"
        doing = f"{state}, {running} running"
        if doing != self._doing:
            self._doing = doing
            self._supervisor.tell(STATUS=doing)

    def reloading(self) -> None:
        """Say that settings are read again; `ready` says when that is done."""
        self._supervisor.tell(RELOADING=1, MONOTONIC_USEC=int(self._clock() * 1e6))

    def stopping(self) -> None:
        """Say that the daemon drains."""
        self._supervisor.tell(STOPPING=1, EXTEND_TIMEOUT_USEC=int(_EXTEND_S * 1e6))
        self._stopping.set()

    async def beat(self) -> None:
        """Say that the loop turns, for as long as it does; ends when it is cancelled.

        While the daemon drains every beat also asks for more time, so that the unit's own limit never cuts a drain
        short whose limit was set longer.
        """
        watchdog_s = self._supervisor.watchdog_s
        while self._supervisor.address:
            facts: dict[str, object] = {"WATCHDOG": 1} if watchdog_s else {}
            if self._stopping.is_set():
                facts["EXTEND_TIMEOUT_USEC"] = int(_EXTEND_S * 1e6)
            if facts:
                self._supervisor.tell(**facts)
            pause = watchdog_s / _BEATS if watchdog_s else _STOPPING_BEAT_S
            await asyncio.sleep(min(pause, _STOPPING_BEAT_S))


def encode_record(fields: Mapping[str, str]) -> bytes:
    r"""Return a record; names are upper case letters, digits and ``_``.

    >>> encode_record({"MESSAGE": "done", "RUN_ID": "r1"})
    b'MESSAGE=done\nRUN_ID=r1\n'
    >>> encode_record({"MESSAGE": "a\nb"})
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

    def __init__(self, address: str = JOURNAL_SOCKET) -> None:
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def write(self, fields: Mapping[str, str]) -> bool:
        """Write a record and return whether the journal took it."""
        record = encode_record(fields)
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
