"""Wait for a fact instead of for a while."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PATIENCE_S", "eventually"]

PATIENCE_S = 60.0
"""How long tests wait for what has to come: on a busy machine nothing else may fail them. No claim about speed."""


async def eventually(holds: Callable[[], object], *, deadline_s: float = PATIENCE_S) -> None:
    """Return as soon as the condition holds; for facts nothing announces.

    Raises:
        TimeoutError: It did not within the deadline.
    """
    async with asyncio.timeout(deadline_s):
        while not holds():  # noqa: ASYNC110 - for facts nothing announces
            await asyncio.sleep(0.005)
