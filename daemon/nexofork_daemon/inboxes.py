"""What parents put into the inboxes of this daemon's runs.

One subscription serves all runs of the daemon; the live message is a hint, what counts is what the stream has.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nexofork.bus.reading import read_subject
from nexofork.engine.mailbox import Letter
from nexofork.wire.messages import Answer
from nexofork.wire.streams import inbox_stream
from nexofork.wire.subjects import inbox_filter, run_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nexofork.bus.connection import Bus, Msg, Subscription

__all__ = ["InboxMail", "Inboxes"]

log = logging.getLogger(__name__)


class Inboxes:
    """Tells each run when something came for it."""

    def __init__(self, bus: Bus, *, pool: str) -> None:
        self._bus = bus
        self._pool = pool
        self._listeners: dict[str, list[Callable[[str], None]]] = {}
        self._subscription: Subscription | None = None

    async def open(self) -> None:
        """Start listening."""
        self._subscription = await self._bus.subscribe(inbox_filter("*", self._pool), self._arrived)

    def listen(self, owner: str, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener(name)` for everything that comes for a run, or from a parent; returns what ends that."""
        self._listeners.setdefault(owner, []).append(listener)

        def stop() -> None:
            listeners = self._listeners[owner]
            listeners.remove(listener)
            if not listeners:
                del self._listeners[owner]

        return stop

    def _arrived(self, message: Msg) -> None:
        name = message.subject.rpartition(".")[2]
        for listener in list(self._listeners.get(run_of(message.subject), ())):
            listener(name)


class InboxMail:
    """The messages to one run; a `Mailbox` for the engine."""

    def __init__(self, bus: Bus, run_id: str, *, pool: str, delivered: Iterable[str]) -> None:
        self._bus = bus
        self._filter = inbox_filter(run_id, pool)
        self._stream = inbox_stream(pool)
        self._delivered = set(delivered)
        self._next = 1
        self._waiting = True  # something may have come before we listened

    def hint(self, _: str) -> None:
        """Something came; look at the next turn."""
        self._waiting = True

    async def take(self) -> Sequence[Letter]:
        """Return the messages that were not delivered yet.

        Raises:
            BusError: NATS was not reached.
        """
        if not self._waiting:
            return ()
        self._waiting = False
        letters = []
        for stored in await read_subject(self._bus, self._stream, self._filter, start_seq=self._next):
            self._next = stored.seq + 1
            try:
                answer = Answer.model_validate_json(stored.data)
            except ValueError:
                log.warning("ignored an unreadable message in %s", stored.subject)
                continue
            if answer.kind == "message" and answer.id not in self._delivered and answer.text.strip():
                self._delivered.add(answer.id)
                letters.append(Letter(id=answer.id, text=answer.text))
        return letters
