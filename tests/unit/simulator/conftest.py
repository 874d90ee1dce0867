from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nexofork.simulator import Simulator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def provider() -> AsyncIterator[Simulator]:
    """A fresh simulator."""
    async with Simulator() as simulator:
        yield simulator
