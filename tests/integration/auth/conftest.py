from __future__ import annotations

from tests.support.nats import accounts_server, nats_server, run_id

__all__ = ["accounts_server", "nats_server", "run_id"]
