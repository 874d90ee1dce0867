"""Named gates that hold responses back until somebody opens them.

A test that must act while a response is under way names a gate in the script and opens it when it is done; no sleep
is needed. Invariant: an open gate stays open until the simulator is reset, so opening and arriving cannot race.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

__all__ = ["Gate", "Gates"]


class Gate:
    """One gate; whoever waits does so inside an `asyncio.timeout` that the gate ends."""

    def __init__(self) -> None:
        self.is_open = False
        self._waiting: set[asyncio.Timeout] = set()

    def open(self) -> None:
        """Let everybody through, now and later."""
        self.is_open = True
        for scope in self._waiting:
            scope.reschedule(0)

    @contextmanager
    def waiting(self, scope: asyncio.Timeout) -> Iterator[None]:
        """Register a timeout scope to be ended when the gate opens."""
        self._waiting.add(scope)
        try:
            yield
        finally:
            self._waiting.discard(scope)


class Gates:
    """All gates by name; a name that was never used is a closed gate."""

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}

    def named(self, name: str) -> Gate:
        """The gate of this name."""
        return self._gates.setdefault(name, Gate())

    def clear(self) -> None:
        """Open every gate for those who wait, and start over with closed ones."""
        for gate in self._gates.values():
            gate.open()
        self._gates.clear()
