"""What a daemon gives each of its runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nexofork.bus.blobs import BlobStore
    from nexofork.bus.clock import ServerClock
    from nexofork.bus.connection import Bus
    from nexofork.bus.peers import Peers
    from nexofork.providers.provider import Provider
    from nexofork.run.prefix_gate import Warmth
    from nexofork.wire.messages import Daemon
    from nexofork_daemon.budgets import Budgets
    from nexofork_daemon.inbox import Inboxes
    from nexofork_daemon.lease import Leases
    from nexofork_daemon.ledger import DaemonLedger
    from nexofork_daemon.placement import Placement
    from nexofork_daemon.run_environment import Environments
    from nexofork_daemon.run_setup import Snapshots
    from nexofork_daemon.settings import DaemonSettings

__all__ = ["Host"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a daemon gives each of its runs."""

    settings: DaemonSettings
    identity: Daemon
    bus: Bus
    blobs: BlobStore
    provider: Provider
    environments: Environments
    warmth: Warmth
    clock: ServerClock
    snapshots: Snapshots
    inboxes: Inboxes
    peers: Peers
    placement: Placement
    leases: Leases
    budgets: Budgets
    ledger: DaemonLedger
