"""Sum the ledger: what calls were billed for, what they would have cost without sharing, and the least they could have.

The least: each distinct prefix is written once, at the price of the TTL in force, every other call reads the longest
part it shares, and only the rest is fresh. A pre-warm, a repeated write and a call that nobody heard the end of are
not part of it, so what they cost shows as the distance between the bill and the least.

Invariant: a call counts once however often it was booked, and rows always add up to their total.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from nexofork.core.markers import TTL_S
from nexofork.core.usage import Usage
from nexofork.economics.prices import current_prices
from nexofork.errors import UnknownModelPrice

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nexofork.economics.prices import PriceList
    from nexofork.wire.ledger import BookedCall

__all__ = ["BY", "By", "Money", "PricedCall", "Sums", "distinct", "key_of", "price_calls", "sum_by", "total"]

By: TypeAlias = Literal["call", "run", "group", "parent", "day", "host", "model"]
BY: tuple[By, ...] = ("call", "run", "group", "parent", "day", "host", "model")
_Name: TypeAlias = tuple[str, str]
NOBODY = "-"
"""The key of calls that have no group, parent, host or model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """Dollars; the input alone is what sharing is about."""

    billed: float = 0.0
    billed_input: float = 0.0
    unshared: float = 0.0
    """The same calls with their whole prompts at the plain input price."""
    ideal: float = 0.0
    """The least they could have cost."""
    ideal_input: float = 0.0

    def __add__(self, other: Money) -> Money:
        return Money(
            billed=self.billed + other.billed,
            billed_input=self.billed_input + other.billed_input,
            unshared=self.unshared + other.unshared,
            ideal=self.ideal + other.ideal,
            ideal_input=self.ideal_input + other.ideal_input,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedCall:
    """A call with what it cost."""

    call: BookedCall
    ideal: Usage
    """The tokens of the least it could have cost; none where it is not confirmed, or is a pre-warm."""
    money: Money | None
    """None where the model's price is not known."""


@dataclass(slots=True, kw_only=True)
class Sums:
    """Several calls together."""

    key: str
    calls: int = 0
    confirmed: int = 0
    unconfirmed: int = 0
    failed: int = 0
    unpriced: int = 0
    """How many were billed at a price that is not known; their dollars are left out."""
    usage: Usage = field(default_factory=Usage)
    ideal_usage: Usage = field(default_factory=Usage)
    money: Money = field(default_factory=Money)

    def add(self, priced: PricedCall) -> None:
        """Count one more call."""
        call = priced.call
        self.calls += 1
        self.confirmed += call.outcome == "confirmed"
        self.unconfirmed += call.outcome == "unconfirmed"
        self.failed += call.outcome == "failed"
        self.usage += call.usage
        self.ideal_usage += priced.ideal
        if priced.money is None:
            self.unpriced += 1
        else:
            self.money += priced.money

    @property
    def priced(self) -> bool:
        """Whether dollars can be said at all."""
        return not self.unpriced or self.money.billed > 0

    @property
    def saved(self) -> float | None:
        """The share of the unshared bill that sharing saved; None where there is nothing to compare."""
        return 1 - self.money.billed / self.money.unshared if self.priced and self.money.unshared else None

    @property
    def to_ideal(self) -> float | None:
        """How many times the least the input was billed; None where there is nothing to compare."""
        return self.money.billed_input / self.money.ideal_input if self.priced and self.money.ideal_input else None

    def to_json(self) -> dict[str, Any]:
        """Return the sums as JSON values; dollars are None where no price is known."""
        money = self.money if self.priced else None
        return {
            "key": self.key,
            "calls": self.calls,
            "confirmed": self.confirmed,
            "unconfirmed": self.unconfirmed,
            "failed": self.failed,
            "unpriced": self.unpriced,
            "read": self.usage.cache_read_tokens,
            "write_5m": self.usage.cache_write_5m_tokens,
            "write_1h": self.usage.cache_write_1h_tokens,
            "fresh": self.usage.input_tokens,
            "output": self.usage.output_tokens,
            "usd": money and _dollars(money.billed),
            "unshared_usd": money and _dollars(money.unshared),
            "ideal_usd": money and _dollars(money.ideal),
            "input_usd": money and _dollars(money.billed_input),
            "ideal_input_usd": money and _dollars(money.ideal_input),
            "saved": None if self.saved is None else round(self.saved, 6),
            "billed_to_ideal_input": None if self.to_ideal is None else round(self.to_ideal, 6),
        }


def distinct(calls: Iterable[BookedCall]) -> list[BookedCall]:
    """Return each call once, by the entry that knows most, in the order they were sent."""
    best: dict[_Name, BookedCall] = {}
    for call in calls:
        known = best.get(_name(call))
        if known is None or _knows(call) > _knows(known):
            best[_name(call)] = call
    return sorted(best.values(), key=lambda call: (call.at, call.call_id))


def _name(call: BookedCall) -> _Name:
    return call.pool, call.call_id


def _knows(call: BookedCall) -> int:
    """Rank an entry: a bill that was seen outweighs a refusal, and a refusal outweighs not having heard."""
    if call.outcome == "confirmed":
        return 3
    if call.outcome == "failed":
        return 1
    return 2 if call.billed is not None else 0


def price_calls(calls: Iterable[BookedCall], prices: PriceList | None = None) -> list[PricedCall]:
    """Return each call once with what it cost.

    Args:
        calls: All there are, since the least that one could cost depends on its siblings.
        prices: What to go by; the prices in force unless said.
    """
    once = distinct(calls)
    ideals = _ideals(once)
    listed = prices or current_prices()
    return [
        PricedCall(call=call, ideal=ideal, money=_money(call, ideal, listed))
        for call in once
        for ideal in (ideals.get(_name(call), Usage()),)
    ]


def sum_by(calls: Iterable[PricedCall], by: By) -> list[Sums]:
    """Return sums by whatever is asked for: days and calls in order, everything else the dearest first."""
    rows: dict[str, Sums] = {}
    for priced in calls:
        key = key_of(priced.call, by)
        rows.setdefault(key, Sums(key=key)).add(priced)
    if by == "call":
        return list(rows.values())
    if by == "day":
        return [rows[key] for key in sorted(rows)]
    return sorted(rows.values(), key=lambda row: (-row.money.billed, -row.usage.prompt_tokens, row.key))


def total(calls: Iterable[PricedCall]) -> Sums:
    """Return the sum of all of them."""
    sums = Sums(key="total")
    for priced in calls:
        sums.add(priced)
    return sums


def key_of(call: BookedCall, by: By) -> str:
    """Return what a call is summed under."""
    match by:
        case "call":
            return call.call_id
        case "run":
            return call.run_id
        case "group":
            return call.group or NOBODY
        case "parent":
            return call.parent or NOBODY
        case "day":
            return datetime.fromtimestamp(call.at, UTC).strftime("%Y-%m-%d")
        case "host":
            return call.host or NOBODY
        case "model":
            return call.model or NOBODY


def _money(call: BookedCall, ideal: Usage, prices: PriceList) -> Money | None:
    """Return the dollars of a call at the prices of its day, None where they are not known."""
    usage, model, on = call.usage, call.model, datetime.fromtimestamp(call.at, UTC).date()
    if not usage.prompt_tokens and not usage.output_tokens:
        return Money()
    try:
        price = prices.price(model, usage.prompt_tokens, on)
        output = price.output_usd(usage)
        ideal_input = prices.price(model, ideal.prompt_tokens, on).input_usd(ideal) if ideal.prompt_tokens else 0.0
        return Money(
            billed=price.input_usd(usage) + output,
            billed_input=price.input_usd(usage),
            unshared=usage.prompt_tokens * price.input / 1e6 + output,
            ideal=ideal_input + (output if ideal.prompt_tokens else 0.0),
            ideal_input=ideal_input,
        )
    except UnknownModelPrice:
        return None


def _ideals(calls: Sequence[BookedCall]) -> dict[_Name, Usage]:
    """Return the least each confirmed call could have been billed for, by its name."""
    ideals: dict[_Name, Usage] = {}
    prefixes: dict[str, list[BookedCall]] = defaultdict(list)
    for call in calls:
        if call.prefix:
            prefixes[call.prefix].append(call)
        elif call.outcome == "confirmed" and call.turn == 1:
            ideals[_name(call)] = call.usage  # nobody knows what it shares
    for siblings in prefixes.values():
        ttl = _ttl(siblings)
        for span in _spans(siblings, ttl):
            ideals |= _first_turns(span, ttl)
    runs: dict[str, dict[int, BookedCall]] = defaultdict(dict)
    for call in calls:
        if call.outcome != "confirmed" or not call.turn:
            continue
        if call.turn > 1:
            ideals[_name(call)] = _later_turn(call, runs[call.run_id].get(call.turn - 1))
        runs[call.run_id][call.turn] = call
    return ideals


def _ttl(calls: Iterable[BookedCall]) -> str:
    """Return the TTL in force: what was billed tells, since something on the way may have changed what was asked."""
    wrote_5m = wrote_1h = False
    asked = "5m"
    for call in calls:
        wrote_5m |= call.usage.cache_write_5m_tokens > 0
        wrote_1h |= call.usage.cache_write_1h_tokens > 0
        asked = max(asked, call.ttl, key=lambda ttl: TTL_S[ttl])
    return "1h" if wrote_1h else "5m" if wrote_5m else asked


def _spans(siblings: Sequence[BookedCall], ttl: str) -> list[list[BookedCall]]:
    """Cut calls on one prefix where none came for longer than its entry lives."""
    spans: list[list[BookedCall]] = []
    last = None
    for call in siblings:
        if last is None or call.at - last > TTL_S[ttl]:
            spans.append([])
        spans[-1].append(call)
        last = call.at
    return spans


def _first_turns(span: Sequence[BookedCall], ttl: str) -> Mapping[_Name, Usage]:
    """Let one confirmed first call write what was not cached, and the others read.

    A prefix that one call alone uses need not be written at all; a write is cheapest only from the second call on.
    Who came first is not told by clocks, which differ between hosts: the least that any of them read, or knew to be
    warm, is what was there before all of them.
    """
    firsts = [call for call in span if call.turn <= 1]
    billed = [call.usage.cache_read_tokens for call in firsts if call.billed is not None and call.usage.prompt_tokens]
    warm = max(min((call.warm_tokens for call in firsts), default=0), min(billed, default=0))
    alone = sum(call.outcome == "confirmed" and call.turn > 0 for call in span) == 1
    ideals: dict[_Name, Usage] = {}
    for call in firsts:
        if call.outcome != "confirmed" or call.turn != 1:
            continue
        usage = call.usage
        shared = usage.cache_read_tokens + usage.cache_write_tokens
        ideal = _split(usage, read=shared if ideals else min(warm, shared), ttl=ttl)
        ideals[_name(call)] = _unwritten(ideal) if alone else ideal
    return ideals


def _later_turn(call: BookedCall, before: BookedCall | None) -> Usage:
    """Let a later call read what the call before it left in the cache, and pay for the rest as it was billed."""
    usage, ttl = call.usage, _ttl([call])
    if before is None or call.at - before.at > TTL_S[_ttl([before, call])]:
        return usage
    left = before.usage.cache_read_tokens + before.usage.cache_write_tokens
    shared = usage.cache_read_tokens + usage.cache_write_tokens
    return _split(usage, read=min(max(left, usage.cache_read_tokens), shared), ttl=ttl)


def _split(usage: Usage, *, read: int, ttl: str) -> Usage:
    """Return the same prompt with another part of it read, and the rest of its cached part written."""
    written = usage.cache_read_tokens + usage.cache_write_tokens - read
    return replace(
        usage,
        cache_read_tokens=read,
        cache_write_5m_tokens=0 if ttl == "1h" else written,
        cache_write_1h_tokens=written if ttl == "1h" else 0,
    )


def _unwritten(usage: Usage) -> Usage:
    fresh = usage.input_tokens + usage.cache_write_tokens
    return replace(usage, input_tokens=fresh, cache_write_5m_tokens=0, cache_write_1h_tokens=0)


def _dollars(amount: float) -> float:
    return round(amount, 9)
