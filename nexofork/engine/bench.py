"""Where a run works: whoever looks after what its tools change."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Bench", "NoBench"]


class Bench(Protocol):
    """Looks after what a run's tools change. What it raises ends the run."""

    async def worked(self, turn: int) -> None:
        """All calls of a turn are answered, and one of them may have changed something.

        The model has not seen the answers yet: what is kept now is what it will build on.
        """


class NoBench:
    """Keeps nothing."""

    async def worked(self, turn: int) -> None:
        """Do nothing."""
