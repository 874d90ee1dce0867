"""What a conversation's calls are going to be billed, turn by turn, before any of them is made.

The model is simple on purpose. The first call is what the caller says it is. Every further turn adds the answer before
it, reads from the cache all that was written so far and writes the rest; a prompt that is shorter than the provider's
minimum is paid fresh. Entries are taken to outlive the conversation, and what tools return is left out: it is the same
however the conversation was started.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nexofork.core.usage import Usage
from nexofork.economics.outlook import SMALLEST_MINIMUM
from nexofork.economics.prices import USUAL_PROPORTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nexofork.economics.prices import ModelFacts

__all__ = ["Bill", "Tariff", "conversation", "part", "uncached_conversation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What some calls cost together."""

    usage: Usage = field(default_factory=Usage)
    input_cost: float = 0.0
    """Dollars; plain input tokens by the usual proportions where the price is not known."""
    output_cost: float = 0.0
    priced: bool
    """Whether the costs are dollars."""

    @property
    def cost(self) -> float:
        """Input and output together, in the unit of both."""
        return self.input_cost + self.output_cost

    @property
    def input_usd(self) -> float | None:
        """None where the price is not known."""
        return self.input_cost if self.priced else None

    @property
    def output_usd(self) -> float | None:
        """None where the price is not known."""
        return self.output_cost if self.priced else None

    @property
    def total_usd(self) -> float | None:
        """None where the price is not known."""
        return self.cost if self.priced else None

    def __add__(self, other: Bill) -> Bill:
        return Bill(
            usage=self.usage + other.usage,
            input_cost=self.input_cost + other.input_cost,
            output_cost=self.output_cost + other.output_cost,
            priced=self.priced and other.priced,
        )

    def __mul__(self, times: int) -> Bill:
        usage = self.usage
        return Bill(
            usage=Usage(
                input_tokens=usage.input_tokens * times,
                cache_read_tokens=usage.cache_read_tokens * times,
                cache_write_5m_tokens=usage.cache_write_5m_tokens * times,
                cache_write_1h_tokens=usage.cache_write_1h_tokens * times,
                output_tokens=usage.output_tokens * times,
            ),
            input_cost=self.input_cost * times,
            output_cost=self.output_cost * times,
            priced=self.priced,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the bill as JSON values."""
        return {
            "usage": self.usage.to_wire(),
            "input_usd": self.input_usd,
            "output_usd": self.output_usd,
            "total_usd": self.total_usd,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """How one model's calls are billed; with the usual proportions where nothing is known about it."""

    facts: ModelFacts | None

    @property
    def minimum_tokens(self) -> int:
        """The shortest prefix that is cached."""
        return self.facts.minimum_tokens if self.facts else SMALLEST_MINIMUM

    def bill(self, calls: Iterable[Usage]) -> Bill:
        """Return what the calls cost; each at the price of its own length."""
        usage, input_cost, output_cost = Usage(), 0.0, 0.0
        for call in calls:
            price = self.facts.price_for(call.prompt_tokens) if self.facts else USUAL_PROPORTIONS
            usage += call
            input_cost += price.input_usd(call)
            output_cost += price.output_usd(call)
        return Bill(usage=usage, input_cost=input_cost, output_cost=output_cost, priced=self.facts is not None)


def part(*, fresh: int = 0, read: int = 0, written: int = 0, ttl: str = "5m", output: int = 0) -> Usage:
    """Return one call's counts; what is written is written with this TTL."""
    return Usage(
        input_tokens=fresh,
        cache_read_tokens=read,
        cache_write_5m_tokens=0 if ttl == "1h" else written,
        cache_write_1h_tokens=written if ttl == "1h" else 0,
        output_tokens=output,
    )


def conversation(first: Usage, *, turns: int, ttl: str, minimum_tokens: int) -> Iterator[Usage]:
    """Yield the calls of a conversation that caches what it says.

    Args:
        first: The first call; every other one has as long an answer.
        turns: How many calls there are.
        ttl: What entries are written with.
        minimum_tokens: The shortest prefix that is cached.
    """
    yield first
    cached, prompt = first.cache_read_tokens + first.cache_write_tokens, first.prompt_tokens
    for _ in range(turns - 1):
        prompt += first.output_tokens
        if prompt < minimum_tokens:
            yield part(fresh=prompt, output=first.output_tokens)
            continue
        yield part(read=cached, written=prompt - cached, ttl=ttl, output=first.output_tokens)
        cached = prompt


def uncached_conversation(prompt: int, *, turns: int, output: int) -> Iterator[Usage]:
    """Yield the calls of a conversation that caches nothing."""
    for turn in range(turns):
        yield part(fresh=prompt + turn * output, output=output)
