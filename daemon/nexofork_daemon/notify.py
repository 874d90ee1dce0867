"""Tell systemd how the daemon is: ready, reloading, stopping, what it does, and that its event loop still turns."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Supervisor", "Watch"]

_BEATS = 3
_EXTEND_S = 30.0
_STOPPING_BEAT_S = 5.0


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
