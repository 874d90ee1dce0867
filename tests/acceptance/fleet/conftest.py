from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.fleet import fleet, nursery, restartable
from tests.support.nats import accounts_server, cluster, nats_server

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["accounts_server", "cluster", "fleet", "nats_server", "nursery", "restartable"]


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of the long tests."""
    config.addinivalue_line("markers", "chaos: takes minutes; run with `-m chaos` or NEXOFORK_CHAOS=1")


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Leave the long tests out unless they are asked for."""
    if "chaos" in (config.option.markexpr) or os.environ.get("NEXOFORK_CHAOS"):
        return
    for item in items:
        if item.get_closest_marker("chaos"):
            item.add_marker(pytest.mark.skip(reason="takes minutes; run with -m chaos"))
