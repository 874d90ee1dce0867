"""What tokens cost, by model. Prices are data: dollars per million tokens, with where they come from.

A cache read is not a flat tenth of the input price on every model, so nothing here assumes that it is. Writes are 1.25
times the input price for five minutes and twice for an hour.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.errors import UnknownModelPrice

if TYPE_CHECKING:
    from nexofork.core.usage import Usage

__all__ = ["ModelFacts", "Price", "cost_usd", "input_cost_usd", "model_facts", "price_of", "unshared_input_cost_usd"]

WRITE_5M = 1.25
WRITE_1H = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Dollars per million tokens."""

    input: float
    read: float
    output: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What is known about a model family."""

    price: Price
    minimum_tokens: int
    """The shortest prefix the provider caches; below it nothing is written and nothing is said."""
    long_price: Price | None = None
    """Applies above `long_from_tokens` of prompt, where the price depends on it."""
    long_from_tokens: int = 0


def _facts(price: tuple[float, float, float], minimum: int) -> ModelFacts:
    return ModelFacts(price=Price(input=price[0], read=price[1], output=price[2]), minimum_tokens=minimum)


# Source: the provider's public price list and caching guide, November 2026. The minima of the 5.x.y models are not
# documented; 512 is what their predecessors have.
_MODELS: dict[str, ModelFacts] = {
    "claude-fable-5-1": _facts((10, 0.25, 50), 512),
    "claude-opus-5-5": _facts((4, 0.20, 20), 512),
    "claude-opus-5": _facts((5, 0.50, 25), 512),
    "claude-opus-4-8": _facts((5, 0.50, 25), 1024),
    "claude-opus-4-7": _facts((5, 0.50, 25), 2048),
    "claude-opus-4-6": _facts((5, 0.50, 25), 4096),
    "claude-opus-4-5": _facts((5, 0.50, 25), 4096),
    "claude-sonnet-5-5": _facts((2, 0.10, 10), 512),
    "claude-sonnet-5": _facts((2, 0.20, 10), 1024),
    "claude-haiku-5-5": ModelFacts(
        price=Price(input=0.10, read=0.01, output=0.50),
        minimum_tokens=512,
        long_price=Price(input=0.50, read=0.05, output=2.50),
        long_from_tokens=100_000,
    ),
    "claude-haiku-4-5": _facts((1, 0.10, 5), 4096),
}
_DATE = re.compile(r"-\d{8}$")


def model_facts(model: str) -> ModelFacts | None:
    """Return what is known about a model, with or without a date in its name; None if nothing is."""
    return _MODELS.get(_DATE.sub("", model))


def price_of(model: str, prompt_tokens: int) -> Price:
    """Return the price that applies to a prompt of this length.

    Raises:
        UnknownModelPrice: The model is not in the table.
    """
    facts = model_facts(model)
    if facts is None:
        raise UnknownModelPrice(model, known=tuple(_MODELS))
    if facts.long_price is not None and prompt_tokens > facts.long_from_tokens:
        return facts.long_price
    return facts.price


def input_cost_usd(usage: Usage, model: str) -> float:
    """Return what the prompt of one call cost; raises like `price_of`."""
    price = price_of(model, usage.prompt_tokens)
    writes = WRITE_5M * usage.cache_write_5m_tokens + WRITE_1H * usage.cache_write_1h_tokens
    return ((usage.input_tokens + writes) * price.input + usage.cache_read_tokens * price.read) / 1e6


def cost_usd(usage: Usage, model: str) -> float:
    """Return what one call cost, output included; raises like `price_of`."""
    return input_cost_usd(usage, model) + usage.output_tokens * price_of(model, usage.prompt_tokens).output / 1e6


def unshared_input_cost_usd(usage: Usage, model: str) -> float:
    """Return what the same prompt costs when nothing of it is cached; raises like `price_of`."""
    return usage.prompt_tokens * price_of(model, usage.prompt_tokens).input / 1e6
