from __future__ import annotations

from tests.support.fleet import restartable
from tests.support.nats import accounts_server, attacked_server, bus, cluster, nats_server, pool, pool_bus, run_id

__all__ = [
    "accounts_server",
    "attacked_server",
    "bus",
    "cluster",
    "nats_server",
    "pool",
    "pool_bus",
    "restartable",
    "run_id",
]
