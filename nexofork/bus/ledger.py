"""Put model calls into the ledger, and read them back.

The subject carries the daemon's public key, which the server lets nobody else publish on; a message that claims to be
from another daemon than its subject says is left out.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from nexofork.bus.jetstream import store
from nexofork.bus.reading import read_subject
from nexofork.errors import BadMessage
from nexofork.wire import subjects
from nexofork.wire.ledger import decode_calls, encode_calls
from nexofork.wire.streams import LEDGER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.bus.connection import Bus
    from nexofork.bus.reading import Stored
    from nexofork.wire.ledger import BookedCall
    from nexofork.wire.messages import Daemon

__all__ = ["append_calls", "read_ledger"]

log = logging.getLogger(__name__)

_SKEW_S = 600.0
"""How far a daemon's clock may be ahead of the server's before its newest calls are missed."""


async def append_calls(bus: Bus, daemon: Daemon, calls: Sequence[BookedCall]) -> None:
    """Store calls as one message; after an unknown outcome it may be done again, since readers count a call once.

    Raises:
        BusError: They were not stored, or it is not known.
    """
    data = encode_calls(daemon, calls, at=time.time())
    await store(bus, subjects.ledger(bus.identity, daemon.instance), data)


async def read_ledger(bus: Bus, since: float | None = None) -> list[BookedCall]:
    """Return what was booked, in the order of the stream; a call may be there more than once.

    Args:
        bus: A connection of a parent, an observer or an admin; daemons may not read it.
        since: Unix time; calls sent before it are left out.

    Raises:
        BusError: NATS did not answer, or this role may not read it.
    """
    # A call is stored after it was sent, so older messages need not be read.
    stored = await read_subject(
        bus, LEDGER, "ledger.*.*", stored_since=None if since is None else max(since - _SKEW_S, 0.0)
    )
    return [call for message in stored for call in _calls(message) if since is None or call.at >= since]


def _calls(stored: Stored) -> list[BookedCall]:
    try:
        daemon, calls = decode_calls(stored.data)
    except BadMessage:
        log.debug("a message on %s cannot be read", stored.subject)
        return []
    return calls if stored.subject.split(".")[1:] == [daemon.nkey, daemon.instance] else []
