"""Whether named agents with a fresh context would do the same work for less.

A fork carries the whole history to every child, at the price of a cache read; a named agent carries only what it needs
and pays for that alone. Which is cheaper depends on how much it would have to be given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from nexofork.economics.bills import conversation, part, uncached_conversation

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexofork.economics.bills import Bill, Tariff
    from nexofork.economics.forecast import Forecast

__all__ = ["MOST_CONTEXT_TOKENS", "NamedAgents", "compare_named"]

MOST_CONTEXT_TOKENS = 10_000_000
_SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedAgents:
    """The other way to do it: as many agents that know nothing of the conversation."""

    model: str
    context_tokens: int
    """What each of them starts with."""
    bill: Bill
    cheaper: Literal["fork", "named", "same"] | None
    """None where a price is not known."""
    difference_usd: float | None
    """How much cheaper, input and output together."""
    even_at_tokens: int | None
    """The largest context with which they cost no more than the fork; 0 where none is that small.

    None where they cost less however large it is, or where a price is not known.
    """

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {
            "model": self.model,
            "context_tokens": self.context_tokens,
            **self.bill.to_json(),
            "cheaper": self.cheaper,
            "difference_usd": self.difference_usd,
            "even_at_tokens": self.even_at_tokens,
        }


def compare_named(model: str, tariff: Tariff, *, context_tokens: int, like: Forecast, fork: Bill) -> NamedAgents:
    """Compare a fork with as many named agents.

    Args:
        model: What they would run on.
        tariff: What that costs.
        context_tokens: What each would start with.
        like: The children of the fork; there are as many agents, with as many turns and as long answers.
        fork: Their bill.
    """
    turns, output = like.turns, like.output

    def bill(context: int) -> Bill:
        best = tariff.bill(uncached_conversation(context, turns=turns, output=output))
        if turns > 1:
            cached = context >= tariff.minimum_tokens
            first = part(written=context, output=output) if cached else part(fresh=context, output=output)
            calls = conversation(first, turns=turns, ttl="5m", minimum_tokens=tariff.minimum_tokens)
            best = min(best, tariff.bill(calls), key=lambda one: one.input_cost)
        return best * len(like.own)

    total = bill(context_tokens)
    priced = fork.priced and total.priced
    difference = total.cost - fork.cost
    same = abs(difference) <= _SAME * max(total.cost, fork.cost)
    cheaper: Literal["fork", "named", "same"] = "same" if same else "fork" if difference > 0 else "named"
    return NamedAgents(
        model=model,
        context_tokens=context_tokens,
        bill=total,
        cheaper=cheaper if priced else None,
        difference_usd=abs(difference) if priced else None,
        even_at_tokens=_even_at(lambda context: bill(context).cost <= fork.cost, tariff) if priced else None,
    )


def _even_at(affordable: Callable[[int], bool], tariff: Tariff) -> int | None:
    """Return the largest context that is affordable; None where all are.

    The bill rises with the context, but for where caching sets in: there it may fall, so either side is looked at.
    """
    low, high = 0, tariff.minimum_tokens
    if affordable(tariff.minimum_tokens):
        low, high = tariff.minimum_tokens, MOST_CONTEXT_TOKENS
        if affordable(high):
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if affordable(middle) else (low, middle)
    return low
