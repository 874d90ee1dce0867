from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.fleet import fleet, nursery, restartable
from tests.support.nats import accounts_server, cluster, nats_server

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["accounts_server", "cluster", "fleet", "nats_server", "nursery", "restartable"]


_LONG = {"chaos": "crashes at length", "ops": "what is billed and what outlives a cluster's leader, at length"}


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers of the long tests."""
    for name, what in _LONG.items():
        how = f"run with `-m {name}` or NEXOFORK_{name.upper()}=1"
        config.addinivalue_line("markers", f"{name}: {what}; takes minutes; {how}")


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Leave the long tests out unless they are asked for."""
    for name in _LONG:
        if name in config.option.markexpr or os.environ.get(f"NEXOFORK_{name.upper()}"):
            continue
        for item in items:
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=f"takes minutes; run with -m {name}"))
