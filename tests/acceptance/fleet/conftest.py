from __future__ import annotations

from tests.support.fleet import fleet, nursery, restartable
from tests.support.nats import accounts_server, cluster, nats_server

__all__ = ["accounts_server", "cluster", "fleet", "nats_server", "nursery", "restartable"]
