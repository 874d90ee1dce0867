"""What an operator sets."""

from __future__ import annotations

import socket
import uuid
from dataclasses import dataclass, field

from nexofork.errors import ForkRefused
from nexofork.wire.subjects import DEFAULT_POOL, check_token

__all__ = ["DaemonSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """One daemon's settings."""

    name: str = field(default_factory=socket.gethostname)
    slots: int = 64
    """How many forks run at once."""
    pool: str = DEFAULT_POOL
    lease_s: float = 15.0
    """How long a run may go unrenewed before another daemon takes it."""
    drain_s: float = 60.0
    """How long running forks get to finish at shutdown before they are handed over."""
    epoch_limit: int = 5
    """How many daemons a run may have; one that keeps killing them ends as failed."""
    leader_wait_s: float = 30.0
    """The longest a fork waits for the sibling that writes their common prefix."""
    ask_s: float = 30.0
    """How long to wait for something only the parent can give."""
    host: str = field(default_factory=socket.gethostname)
    instance: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def __post_init__(self) -> None:
        problems = []
        if self.slots < 1:
            problems.append(f"slots is {self.slots}; give at least 1")
        if self.lease_s < 0.5:
            problems.append(f"lease_s is {self.lease_s:g}; give at least 0.5")
        if not self.leader_wait_s >= 0:
            problems.append(f"leader_wait_s is {self.leader_wait_s:g}; give 0 or more")
        if self.drain_s < 0:
            problems.append(f"drain_s is {self.drain_s:g}; give 0 or more")
        if problems:
            raise ForkRefused("The daemon's settings are wrong: " + "; ".join(problems) + ".")
        check_token(self.pool, "pool")
