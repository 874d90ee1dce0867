"""Which daemons are there: each says so every few seconds, and the stream forgets whoever stopped.

The subject carries the daemon's public key, which the server lets nobody else publish on; a message that claims to be
from another daemon than its subject says is not shown.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pydantic import ValidationError

from nexofork.bus.jetstream import store
from nexofork.bus.reading import read_subject
from nexofork.wire import subjects
from nexofork.wire.messages import Presence, encode
from nexofork.wire.streams import PRESENCE
from nexofork.wire.subjects import DEFAULT_POOL

if TYPE_CHECKING:
    from nexofork.bus.connection import Bus
    from nexofork.bus.reading import Stored

__all__ = ["PresenceBoard", "read_presence"]

log = logging.getLogger(__name__)


class PresenceBoard:
    """Where daemons announce themselves and everybody can look."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def announce(self, presence: Presence) -> None:
        """Say that a daemon of this connection is there; to be repeated well within 30 s.

        Raises:
            BusError: It was not stored.
        """
        await store(self._bus, subjects.presence(self._bus.identity, presence.daemon.instance), encode(presence))

    async def withdraw(self, presence: Presence) -> None:
        """Say that the daemon takes nothing more and runs nothing any more.

        Raises:
            BusError: It was not stored; it is forgotten after 30 s all the same.
        """
        await self.announce(presence.model_copy(update={"slots": 0, "running": 0, "draining": True}))

    async def daemons(self, pool: str = DEFAULT_POOL) -> list[Presence]:
        """Return the daemons of a pool that are there, in the order they last spoke.

        Raises:
            BusError: NATS did not answer.
        """
        # The stream keeps one message per daemon, so reading it all is reading the newest of each, however many.
        stored = await read_subject(self._bus, PRESENCE, "presence.*.*")
        found = [presence for message in stored if (presence := read_presence(message)) is not None]
        return [presence for presence in found if presence.pool == pool and not _gone(presence)]


def read_presence(stored: Stored) -> Presence | None:
    """Return what a daemon said of itself, or None where it cannot be read or is not its own."""
    try:
        presence = Presence.model_validate_json(stored.data)
    except ValidationError:
        log.debug("a presence on %s cannot be read", stored.subject)
        return None
    tokens = stored.subject.split(".")
    return presence if tokens[1:] == [presence.daemon.nkey, presence.daemon.instance] else None


def _gone(presence: Presence) -> bool:
    return presence.draining and not presence.slots and not presence.running
