"""Wait for a fact instead of for a while."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["eventually"]

_DEADLINE_S = 20.0


async def eventually(holds: Callable[[], object], *, deadline_s: float = _DEADLINE_S) -> None:
    """Return as soon as the condition holds; for facts nothing announces.

    Raises:
        TimeoutError: It did not within the deadline.
    """
    async with asyncio.timeout(deadline_s):
        while not holds():  # noqa: ASYNC110 - for facts nothing announces
            await asyncio.sleep(0.005)
