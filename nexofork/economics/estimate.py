"""What a fan-out is going to cost, before anything is sent: with sharing, without it, and as named agents instead.

Sharing has a price of its own: every child carries the whole history, and a cold prefix is written before it can be
read. So three bills stand side by side: the fork as it would run; the same children without one another, each paying
for its prompt alone (fresh, or cached for its own later turns where that is cheaper); and named agents that start with
a context of their own. How further turns are billed says `nexofork.economics.bills`; named agents cache for five
minutes where that is cheaper than not to. Nothing here is sent anywhere, and an unknown price is no error: then there
are tokens and a note.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from nexofork.core.boilerplate import check_directive
from nexofork.core.query_source import QuerySource, refuse_if_fork
from nexofork.economics.bills import Tariff
from nexofork.economics.forecast import MOST_CHILDREN, Forecast
from nexofork.economics.named_agents import MOST_CONTEXT_TOKENS, compare_named
from nexofork.economics.outlook import is_billed
from nexofork.economics.prices import current_prices
from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.core.snapshot import CacheSafeParams
    from nexofork.economics.bills import Bill
    from nexofork.economics.fan_out import Decision
    from nexofork.economics.named_agents import NamedAgents
    from nexofork.economics.prices import ModelFacts, PriceList

__all__ = ["FRESH_CONTEXT_TOKENS", "MOST_CHILDREN", "MOST_TURNS", "OUTPUT_TOKENS", "Estimate", "estimate"]

OUTPUT_TOKENS = 1_000
"""What a turn is taken to answer: a report of a page or two."""
FRESH_CONTEXT_TOKENS = 20_000
"""What a named agent is taken to need: system prompt, tools, its task, and what it has to read to know as much."""
MOST_TURNS = 1_000
_MOST_OUTPUT_TOKENS = 10_000_000
_LARGEST_MINIMUM = 4096
_LATEST = 4e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a fan-out is expected to cost, and what that rests on."""

    model: str
    turns: int
    output_tokens: int
    """What every turn of every child is taken to answer."""
    counted_by: Literal["bill", "bytes"]
    """Whether the parent's own bill says what its bytes are in tokens, or four bytes are taken for one."""
    prefix_tokens: int
    """The parent's request."""
    tail_tokens: int
    """What all children share behind it: the reply, answers to its calls, the boilerplate."""
    directive_tokens: tuple[int, ...]
    """What each child has for itself."""
    warm_tokens: int
    """How much of the prefix is taken to be cached already."""
    cache_why: str
    ttl: str
    tariff: Tariff
    """Prices, their source, and the shortest prefix that is cached; its facts are None where nothing is known."""
    decision: Decision
    """How the fan-out would start."""
    shared: Bill
    unshared: Bill
    """The same children, each paying for its whole prompt alone."""
    ideal: Bill
    """The prefix written once and read by everybody else; a single call writes nothing."""
    break_even_children: int | None
    """From how many children on sharing is cheaper, however many more there are; None where it is not."""
    named: NamedAgents
    notes: tuple[str, ...]
    """What to know before relying on the figures."""

    @property
    def children(self) -> int:
        """How many there are."""
        return len(self.directive_tokens)

    @property
    def saved(self) -> float:
        """The share of the input bill that sharing saves; negative where it costs more."""
        alone = self.unshared.input_cost
        return 1 - self.shared.input_cost / alone if alone else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the estimate as JSON values."""
        same = ("model", "children", "turns", "output_tokens", "counted_by", "prefix_tokens", "tail_tokens")
        return {
            **{name: getattr(self, name) for name in same},
            "directive_tokens": list(self.directive_tokens),
            "cache": "warm" if self.warm_tokens else "cold",
            "cache_why": self.cache_why,
            "warm_tokens": self.warm_tokens,
            "ttl": self.ttl,
            "minimum_tokens": self.tariff.minimum_tokens,
            "price": _price_json(self.tariff.facts, self.prefix_tokens + self.tail_tokens),
            "decision": self.decision.to_json(),
            "shared": self.shared.to_json(),
            "unshared": self.unshared.to_json(),
            "ideal": self.ideal.to_json(),
            "saved": round(self.saved, 6),
            "break_even_children": self.break_even_children,
            "named": self.named.to_json(),
            "notes": list(self.notes),
        }


def estimate(
    snapshot: CacheSafeParams,
    directives: Sequence[str],
    *,
    turns: int = 1,
    output_tokens: int = OUTPUT_TOKENS,
    fresh_context_tokens: int = FRESH_CONTEXT_TOKENS,
    fresh_model: str | None = None,
    now: float | None = None,
    boilerplate: bool = True,
    prices: PriceList | None = None,
) -> Estimate:
    """Estimate what it costs to fork a snapshot, one child per directive.

    Args:
        snapshot: The parent's request and the reply to it.
        directives: What each child shall do.
        turns: How many calls each child makes.
        output_tokens: What each of them answers; never more than the request's ``max_tokens``.
        fresh_context_tokens: What a named agent would start with instead.
        fresh_model: The model it would run on; the parent's unless said.
        now: Unix time of the fork; the present unless said.
        boilerplate: Whether children are told that they are forks.
        prices: The prices to go by; those in force unless said.

    Raises:
        ForkRefused: The snapshot or a directive cannot be forked, or a number makes no sense.
    """
    at = time.time() if now is None else now
    refuse_if_fork(QuerySource.SDK, snapshot)
    _check(directives, turns=turns, output_tokens=output_tokens, fresh_context_tokens=fresh_context_tokens, now=at)
    day, listed = datetime.fromtimestamp(at, UTC).date(), prices or current_prices()
    tariff = Tariff(facts=listed.facts(snapshot.model, day))
    assumed = {"turns": turns, "output": output_tokens}
    forecast = Forecast(snapshot, directives, tariff=tariff, now=at, boilerplate=boilerplate, **assumed)
    decision = forecast.decide(len(directives))
    shared = forecast.bill(decision.plan)
    other = fresh_model or snapshot.model
    instead = Tariff(facts=listed.facts(other, day))
    named = compare_named(other, instead, context_tokens=fresh_context_tokens, like=forecast, fork=shared)
    return Estimate(
        model=snapshot.model,
        turns=turns,
        output_tokens=forecast.output,
        counted_by="bill" if is_billed(snapshot) else "bytes",
        prefix_tokens=forecast.prefix,
        tail_tokens=forecast.tail,
        directive_tokens=forecast.directives,
        warm_tokens=forecast.warm,
        cache_why=forecast.cache_why,
        ttl=forecast.ttl,
        tariff=tariff,
        decision=decision,
        shared=shared,
        unshared=forecast.unshared(),
        ideal=forecast.ideal(),
        break_even_children=forecast.break_even(),
        named=named,
        notes=_notes(snapshot, forecast, named, asked_output=output_tokens),
    )


def _notes(snapshot: CacheSafeParams, forecast: Forecast, named: NamedAgents, *, asked_output: int) -> tuple[str, ...]:
    facts, minimum, notes = forecast.tariff.facts, forecast.tariff.minimum_tokens, []
    if not is_billed(snapshot):
        notes.append("Tokens are guessed, four bytes each: the parent's bill is not known; give the whole response.")
    if facts is None:
        notes.append(
            f"The price of {snapshot.model!r} is not known: there are tokens only, and what pays is judged by the "
            "usual proportions of prices. Name its price in a file (NEXOFORK_PRICES)."
        )
    if named.model != snapshot.model and not named.bill.priced:
        notes.append(f"The price of {named.model!r} is not known, so named agents cannot be compared.")
    if forecast.shared < minimum:
        notes.append(
            f"The shared prefix has {forecast.shared:,} tokens and the provider caches from {minimum:,} on: "
            "every child pays for all of it."
        )
    elif not forecast.cached:
        notes.append("Nothing that the children share can be marked for the cache: every child pays for all of it.")
    if forecast.shared < _LARGEST_MINIMUM and not (facts and facts.minimum_verified):
        notes.append(f"The shortest prefix that is cached ({minimum:,} tokens) is not documented for this model.")
    if asked_output > forecast.output:
        notes.append(f"The request's max_tokens is {forecast.output:,}: no answer is taken to be longer.")
    return tuple(notes)


def _check(directives: Sequence[str], *, now: float, **numbers: Any) -> None:
    if isinstance(directives, str):
        raise ForkRefused("The directives are one text; give a list with one directive per child.")
    if not 1 <= len(directives) <= MOST_CHILDREN:
        raise ForkRefused(f"There are {len(directives):,} directives; give one per child, 1 to {MOST_CHILDREN:,}.")
    for directive in directives:
        check_directive(directive)
    limits = {
        "turns": (1, MOST_TURNS),
        "output_tokens": (0, _MOST_OUTPUT_TOKENS),
        "fresh_context_tokens": (0, MOST_CONTEXT_TOKENS),
    }
    for name, (least, most) in limits.items():
        value = numbers[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ForkRefused(f"{name} has to be a whole number from {least:,} to {most:,}; give one.")
    if not (math.isfinite(now) and 0 <= now <= _LATEST):
        raise ForkRefused(f"now is {now}; give Unix time in seconds.")


def _price_json(facts: ModelFacts | None, prompt_tokens: int) -> dict[str, Any] | None:
    if facts is None:
        return None
    return {**asdict(facts.price_for(prompt_tokens)), "from": str(facts.since), "source": facts.source}
