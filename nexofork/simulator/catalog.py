"""What the simulator knows of each model: prices, cache minimum, window, and which rules it enforces.

This is data, kept apart from the rules that read it. Figures that the provider has not published, or that only third
parties report, are marked *assumed*; everything can be replaced through the configuration.
Invariant: a model id is a family id with an optional ``-YYYYMMDD`` date, and nothing else resolves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["CATALOG", "Model", "Price", "find_model"]

WRITE_5M_FACTOR = 1.25
WRITE_1H_FACTOR = 2.0
DATED_ID = re.compile(r"^(?P<family>.+?)-(?P<date>20\d{6})$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Dollars per million tokens."""

    input: float
    """Fresh input; a 5m write costs 1.25 times this, a 1h write twice."""
    read: float
    """A cache read; no fixed fraction of `input`."""
    output: float
    above_prompt_tokens: int = 0
    """The price holds for prompts larger than this."""

    def of(self, *, fresh: int, read: int, write_5m: int, write_1h: int, output: int) -> float:
        """The bill in dollars; the five counts do not overlap."""
        written = write_5m * WRITE_5M_FACTOR + write_1h * WRITE_1H_FACTOR
        return ((fresh + written) * self.input + read * self.read + output * self.output) / 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model family and the rules that hold for it."""

    id: str
    prices: tuple[Price, ...]
    """Ascending by `above_prompt_tokens`; the last one that applies is the price."""
    minimum_cacheable_tokens: int = 512
    context_window_tokens: int = 200_000
    prefill: bool = False
    """Whether a conversation may end with an assistant message."""
    system_messages: bool = False
    """Whether `{"role": "system"}` is accepted after a user turn."""
    forced_tool_choice: bool = True
    bound_thinking: bool = False
    """Whether a thinking block is tied to the exact prefix before it."""
    drops_thinking: bool = False
    """Whether a user turn that is no tool result loses the message cache once there was thinking."""
    thinking_by_default: bool = False
    """Whether an omitted `thinking` means adaptive; else it means disabled."""

    def price(self, prompt_tokens: int) -> Price:
        """The price list for a prompt of this size."""
        return [
            tier for tier in self.prices if prompt_tokens > tier.above_prompt_tokens or not tier.above_prompt_tokens
        ][-1]


def _flat(input_price: float, read: float, output: float) -> tuple[Price, ...]:
    return (Price(input=input_price, read=read, output=output),)


_FABLE_5 = _flat(10, 1.0, 50)  # assumed: only the 5.1 read price is published
_FABLE_51 = _flat(10, 0.25, 50)
_OPUS = _flat(5, 0.50, 25)
_SONNET_4 = _flat(3, 0.30, 15)
_HAIKU_55 = (
    Price(input=0.10, read=0.01, output=0.50),
    Price(input=0.50, read=0.05, output=2.50, above_prompt_tokens=100_000),
)


def _five(model_id: str, prices: tuple[Price, ...], *, minimum: int = 512, system_messages: bool = True) -> Model:
    # Assumed for all of 5.x: the one-million window and adaptive thinking when nothing is said.
    return Model(
        id=model_id,
        prices=prices,
        minimum_cacheable_tokens=minimum,
        context_window_tokens=1_000_000,
        system_messages=system_messages,
        thinking_by_default=True,
    )


def _bound(model_id: str, prices: tuple[Price, ...]) -> Model:
    return Model(
        id=model_id,
        prices=prices,
        context_window_tokens=1_000_000,
        system_messages=True,
        forced_tool_choice=False,
        bound_thinking=True,
        thinking_by_default=True,
    )


CATALOG: dict[str, Model] = {
    model.id: model
    for model in (
        _bound("claude-fable-5-2", _FABLE_51),  # assumed price
        _bound("claude-fable-5-1", _FABLE_51),
        _five("claude-fable-5", _FABLE_5),
        _bound("claude-mythos-5-2", _FABLE_51),  # assumed price
        _bound("claude-mythos-5-1", _FABLE_51),  # assumed price
        _five("claude-mythos-5", _FABLE_5),
        _bound("claude-opus-5-5", _flat(4, 0.20, 20)),
        _bound("claude-sonnet-5-5", _flat(2, 0.10, 10)),
        _bound("claude-haiku-5-5", _HAIKU_55),
        _five("claude-opus-5", _OPUS),
        _five("claude-sonnet-5", _flat(2, 0.20, 10), minimum=1024, system_messages=False),
        Model(id="claude-opus-4-8", prices=_OPUS, minimum_cacheable_tokens=1024, system_messages=True),
        Model(id="claude-opus-4-7", prices=_OPUS, minimum_cacheable_tokens=2048),
        Model(id="claude-opus-4-6", prices=_OPUS, minimum_cacheable_tokens=4096),
        Model(id="claude-opus-4-5", prices=_OPUS, minimum_cacheable_tokens=4096, prefill=True),
        Model(id="claude-sonnet-4-6", prices=_SONNET_4, minimum_cacheable_tokens=1024),
        Model(
            id="claude-sonnet-4-5",
            prices=_SONNET_4,
            minimum_cacheable_tokens=1024,
            prefill=True,
            drops_thinking=True,
        ),
        Model(
            id="claude-haiku-4-5",
            prices=_flat(1, 0.10, 5),
            minimum_cacheable_tokens=4096,
            prefill=True,
            drops_thinking=True,
        ),
    )
}
"""Every model the simulator answers for, by family id."""


def find_model(model_id: str, catalog: dict[str, Model]) -> Model | None:
    """The family an id belongs to, or None when there is none.

    >>> find_model("claude-haiku-4-5-20251001", CATALOG).id
    'claude-haiku-4-5'
    """
    if model_id in catalog:
        return catalog[model_id]
    dated = DATED_ID.match(model_id)
    return catalog.get(dated["family"]) if dated else None
