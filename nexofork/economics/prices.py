"""What tokens cost, by model and day. Prices are data: ``prices.toml`` beside this module, and a file before it.

A cache read is not a flat tenth of the input price on every model, and prices change, so nothing here assumes either.
A model that no entry names has no price: its tokens can be counted, and nothing is said in dollars. A later member of
a known family is another model; what it costs is not guessed from its name.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from nexofork.economics.price_file import ModelFacts, Price, read_price_file
from nexofork.economics.settings import prices_file
from nexofork.errors import UnknownModelPrice

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nexofork.core.usage import Usage

__all__ = [
    "USUAL_PROPORTIONS",
    "ModelFacts",
    "Price",
    "PriceList",
    "cost_usd",
    "current_prices",
    "family_of",
    "input_cost_usd",
    "load_prices",
    "model_facts",
    "price_of",
    "unshared_input_cost_usd",
]

USUAL_PROPORTIONS = Price(input=1e6, read=1e5, output=5e6, write_5m=1.25e6, write_1h=2e6)
"""What most models' prices are to one another, in fresh input tokens: to plan with where the price is not known."""
_SHIPPED = Path(__file__).with_name("prices.toml")
_PLATFORM = re.compile(r"(?:[a-z]{2,8}(?:-[a-z]+)*\.)?anthropic\.")
_REVISION = re.compile(r"-v\d+(?::\d+)?(?::\d+k)?$")
_DATE = re.compile(r"(?:[-@]\d{8}|[-@]latest)$")


class PriceList:
    """Prices by model and day; entries of an earlier file come before those of a later one."""

    def __init__(self, *files: Iterable[ModelFacts]) -> None:
        self._files: list[dict[str, list[ModelFacts]]] = []
        for entries in files:
            by_model: dict[str, list[ModelFacts]] = {}
            for facts in sorted(entries, key=lambda one: one.since, reverse=True):
                by_model.setdefault(facts.model, []).append(facts)
            self._files.append(by_model)

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that has a price."""
        return tuple(dict.fromkeys(model for entries in self._files for model in entries))

    def facts(self, model: str, on: date | None = None) -> ModelFacts | None:
        """Return what is known about a model on a day, today unless said; None if nothing is."""
        day = on or datetime.now(UTC).date()
        family = family_of(model)
        for by_model in self._files:
            for name in (model, family):
                for facts in by_model.get(name, ()):
                    if facts.since <= day:
                        return facts
        return None

    def price(self, model: str, prompt_tokens: int, on: date | None = None) -> Price:
        """Return the price of a prompt of this length.

        Raises:
            UnknownModelPrice: No entry names the model, or none holds on that day.
        """
        facts = self.facts(model, on)
        if facts is None:
            raise UnknownModelPrice(model, known=self.models)
        return facts.price_for(prompt_tokens)


@lru_cache(maxsize=256)
def family_of(model: str) -> str:
    """Return a model's name without its date, and without what a platform puts around it.

    >>> family_of("us.anthropic.claude-opus-5-5-20260901-v1:0")
    'claude-opus-5-5'
    >>> family_of("claude-haiku-4-5@20251001"), family_of("claude-sonnet-5-latest")
    ('claude-haiku-4-5', 'claude-sonnet-5')
    """
    name = model
    if platform := _PLATFORM.match(model):
        name = _REVISION.sub("", model[platform.end() :])
    return _DATE.sub("", name)


def load_prices(path: str | Path) -> PriceList:
    """Return the prices of a file, and ours for what it leaves out.

    Raises:
        BadPrices: Something is wrong with the file.
    """
    return PriceList(read_price_file(path), read_price_file(_SHIPPED))


def current_prices() -> PriceList:
    """Return the prices in force: ours, behind those of the file that NEXOFORK_PRICES names. Files are read once.

    Raises:
        BadPrices: Something is wrong with that file.
    """
    path = prices_file()
    return _shipped() if path is None else _loaded(path)


@cache
def _shipped() -> PriceList:
    return PriceList(read_price_file(_SHIPPED))


@lru_cache(maxsize=8)
def _loaded(path: str) -> PriceList:
    return load_prices(path)


def model_facts(model: str, on: date | None = None) -> ModelFacts | None:
    """Return what is known about a model on a day, today unless said; None if nothing is.

    Raises:
        BadPrices: As `current_prices` does.
    """
    return current_prices().facts(model, on)


def price_of(model: str, prompt_tokens: int, on: date | None = None) -> Price:
    """Return the price that applies to a prompt of this length.

    Raises:
        UnknownModelPrice: The model is not in the list.
        BadPrices: As `current_prices` does.
    """
    return current_prices().price(model, prompt_tokens, on)


def input_cost_usd(usage: Usage, model: str, on: date | None = None) -> float:
    """Return what the prompt of one call cost; raises like `price_of`."""
    return price_of(model, usage.prompt_tokens, on).input_usd(usage)


def cost_usd(usage: Usage, model: str, on: date | None = None) -> float:
    """Return what one call cost, output included; raises like `price_of`."""
    price = price_of(model, usage.prompt_tokens, on)
    return price.input_usd(usage) + price.output_usd(usage)


def unshared_input_cost_usd(usage: Usage, model: str, on: date | None = None) -> float:
    """Return what the same prompt costs when nothing of it is cached; raises like `price_of`."""
    return usage.prompt_tokens * price_of(model, usage.prompt_tokens, on).input / 1e6
