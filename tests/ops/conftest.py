from __future__ import annotations

from tests.support.fleet import fleet, nursery
from tests.support.nats import accounts_server, nats_server
from tests.support.previous import previous_nursery

__all__ = ["accounts_server", "fleet", "nats_server", "nursery", "previous_nursery"]
