"""What a daemon gives each of its runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nexofork.bus.blobs import BlobStore
    from nexofork.bus.clock import ServerClock
    from nexofork.bus.connection import Bus
    from nexofork.bus.peers import Peers
    from nexofork.engine.warmth import Warmth
    from nexofork.providers.provider import Provider
    from nexofork.wire.messages import Daemon
    from nexofork_daemon.inboxes import Inboxes
    from nexofork_daemon.keeper import Leases
    from nexofork_daemon.leaving import Leaving
    from nexofork_daemon.ledger import DaemonLedger
    from nexofork_daemon.purses import Purses
    from nexofork_daemon.request import SnapshotShelf
    from nexofork_daemon.settings import DaemonSettings
    from nexofork_daemon.workbench import Workbench

__all__ = ["Host"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a daemon gives each of its runs."""

    settings: DaemonSettings
    identity: Daemon
    bus: Bus
    blobs: BlobStore
    provider: Provider
    workbench: Workbench
    warmth: Warmth
    clock: ServerClock
    shelf: SnapshotShelf
    inboxes: Inboxes
    peers: Peers
    leaving: Leaving
    leases: Leases
    purses: Purses
    ledger: DaemonLedger
