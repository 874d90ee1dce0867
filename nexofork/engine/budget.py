"""What a fork, or a group of forks, may cost: the call that would pass the limit is not sent.

Before a call its most likely price with its longest possible answer is reserved; after it, what it really cost is
settled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from nexofork.core.usage import Usage

__all__ = ["Budget", "FreePurse", "Purse", "Quote", "Reservation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most that may be billed; None is no limit."""

    usd: float | None = None
    tokens: int | None = None
    """All tokens count: fresh, read, written and output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """What a call may cost at most, as far as can be known before it is sent."""

    tokens: int
    usd: float | None
    """None where the model's price is not known."""


class Reservation(Protocol):
    """Money set aside for one call."""

    def settle(self, usage: Usage | None) -> None:
        """Say what the call cost: nothing (an empty usage), so much, or None where that cannot be known."""


class Purse(Protocol):
    """Pays for one run's calls."""

    async def reserve(self, quote: Quote) -> Reservation:
        """Set the money for a call aside; waits while only other calls' reservations stand in the way.

        Raises:
            OverBudget: The call would pass the limit.
        """


class _Nothing:
    def settle(self, usage: Usage | None) -> None:
        pass


class FreePurse:
    """Pays for everything: the purse of a run without a budget."""

    async def reserve(self, quote: Quote) -> Reservation:
        """Set nothing aside."""
        return _Nothing()
