"""Read a price file: TOML with one ``[[price]]`` entry per model family and first day.

Whoever writes such a file wants to hear of everything that is wrong with it at once, with the entry and the field, and
a mistyped key must not pass for one that was left out.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from datetime import date, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nexofork.errors import BadPrices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nexofork.core.usage import Usage

__all__ = ["ModelFacts", "Price", "read_price_file"]

_LARGEST_FILE_BYTES = 1_000_000
_DEAREST = 1e6
"""A dollar per token; more is a slip of the unit."""
_LARGEST_FACTOR = 1_000.0
_MOST_TOKENS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Dollars per million tokens."""

    input: float
    read: float
    output: float
    write_5m: float
    write_1h: float

    def write(self, ttl: str) -> float:
        """Return what a cache write of this TTL costs."""
        return self.write_1h if ttl == "1h" else self.write_5m

    def input_usd(self, usage: Usage) -> float:
        """Return what the prompt of one call costs."""
        return (
            usage.input_tokens * self.input
            + usage.cache_read_tokens * self.read
            + usage.cache_write_5m_tokens * self.write_5m
            + usage.cache_write_1h_tokens * self.write_1h
        ) / 1e6

    def output_usd(self, usage: Usage) -> float:
        """Return what the answer of one call costs."""
        return usage.output_tokens * self.output / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What is known about a model family from some day on."""

    model: str
    since: date
    source: str
    price: Price
    minimum_tokens: int
    """The shortest prefix the provider caches; below it nothing is written and nothing is said."""
    minimum_verified: bool = True
    """Whether the provider documents the minimum."""
    long_price: Price | None = None
    """Applies above `long_from_tokens` of prompt, where the price depends on it."""
    long_from_tokens: int = 0

    def price_for(self, prompt_tokens: int) -> Price:
        """Return the price of a prompt of this length."""
        return self.long_price if self.long_price and prompt_tokens > self.long_from_tokens else self.price


def read_price_file(path: str | Path) -> tuple[ModelFacts, ...]:
    """Return the entries of a price file.

    Raises:
        BadPrices: It cannot be read, or something in it is wrong; the message names all of it.
    """
    content = _read(path)
    problems: list[str] = []
    for key in content.keys() - {"price"}:
        problems.append(f"{_unknown(key, ['price'])} at the top; entries are [[price]]")
    entries = content.get("price", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        problems.append("`price` is not a list of tables; begin every entry with [[price]]")
        entries = []
    elif not entries:
        problems.append("there is no [[price]] entry in it")
    found = [_entry(number, entry, problems) for number, entry in enumerate(entries, 1)]
    facts = tuple(one for one in found if one is not None)
    seen: set[tuple[str, date]] = set()
    for one in facts:
        if (one.model, one.since) in seen:
            problems.append(f"{one.model} has two entries from {one.since}; keep one")
        seen.add((one.model, one.since))
    if problems:
        raise BadPrices(str(path), tuple(problems))
    return facts


def _read(path: str | Path) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_LARGEST_FILE_BYTES + 1)
        if len(data) > _LARGEST_FILE_BYTES:
            raise BadPrices(str(path), (f"it is longer than {_LARGEST_FILE_BYTES:,} bytes, which no price list is",))
        return tomllib.loads(data.decode())
    except OSError as exc:
        raise BadPrices(str(path), (f"it cannot be read ({exc.strerror or exc}); name a file that can",)) from exc
    except RecursionError as exc:
        raise BadPrices(str(path), ("it is nested too deeply; entries are flat",)) from exc
    except ValueError as exc:
        raise BadPrices(str(path), (f"it is not TOML ({exc}); correct it there",)) from exc


class _Table:
    """One table of the file; collects what is wrong with it."""

    def __init__(self, where: str, values: Mapping[str, Any], problems: list[str]) -> None:
        self._where = where
        self._values = values
        self._problems = problems
        self._asked: list[str] = []

    def take(self, key: str, check: Callable[[Any], Any], default: Any = None) -> Any:
        """Return a value as the check gives it back; None where it is missing or wrong, which is noted."""
        self._asked.append(key)
        if key not in self._values:
            if default is None:
                self.note(f"`{key}` is missing")
            return default
        try:
            return check(self._values[key])
        except (TypeError, ValueError, OverflowError) as exc:
            self.note(f"`{key}` is {_shown(self._values[key])}; {exc}")
            return None

    def note(self, problem: str) -> None:
        """Add to what is wrong."""
        self._problems.append(f"{self._where}: {problem}")

    def close(self) -> None:
        """Note the keys that nobody asked for."""
        for key in self._values:
            if key not in self._asked:
                self.note(_unknown(key, self._asked))


def _entry(number: int, values: dict[str, Any], problems: list[str]) -> ModelFacts | None:
    known = len(problems)
    name = values.get("model")
    table = _Table(f"entry {number}" + (f" ({name})" if isinstance(name, str) else ""), values, problems)
    plain = {
        "model": table.take("model", _words),
        "since": table.take("from", _day),
        "source": table.take("source", _words),
        "minimum_tokens": table.take("minimum_tokens", _tokens),
        "minimum_verified": table.take("minimum_verified", _flag, default=True),
    }
    factors = [table.take("write_5m", _factor, default=1.25), table.take("write_1h", _factor, default=2.0)]
    prices = [table.take(key, _dollars) for key in ("input", "read", "output")]
    long = table.take("long", _table, default={})
    above = 0
    long_prices: list[Any] = []
    if long:
        inner = _Table(f"entry {number}, `long`", long, problems)
        above = inner.take("above_tokens", _tokens)
        long_prices = [inner.take(key, _dollars) for key in ("input", "read", "output")]
        inner.close()
    table.close()
    if len(problems) > known:
        return None
    return ModelFacts(
        **plain,
        price=_price(prices, factors),
        long_price=_price(long_prices, factors) if long else None,
        long_from_tokens=above,
    )


def _price(prices: list[float], factors: list[float]) -> Price:
    fresh, read, output = prices
    return Price(input=fresh, read=read, output=output, write_5m=fresh * factors[0], write_1h=fresh * factors[1])


def _words(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("give a text in quotes")
    return value.strip()


def _day(value: Any) -> date:
    try:
        day = date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        day = None
    if not isinstance(day, date) or isinstance(day, datetime):
        raise ValueError("give a day, such as 2026-11-01")
    return day


def _tokens(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_TOKENS:
        raise ValueError("give a whole number of tokens, 0 or more")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("give true or false")
    return value


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise ValueError("give a table with above_tokens, input, read and output")
    return value


def _dollars(value: Any) -> float:
    return _number(value, most=_DEAREST, what="dollars per million tokens, from 0 to 1,000,000")


def _factor(value: Any) -> float:
    return _number(value, most=_LARGEST_FACTOR, what="a multiple of the input price, from 0 to 1,000")


def _number(value: Any, *, most: float, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"give {what}")
    number = float(value) if abs(value) <= most else math.nan
    if not 0 <= number <= most:
        raise ValueError(f"give {what}")
    return number


def _unknown(key: str, known: list[str]) -> str:
    near = get_close_matches(key, known, n=1, cutoff=0.5)
    meant = f"did you mean `{near[0]}`?" if near else f"the keys are {', '.join(known)}"
    return f"`{_shown(key, quoted=False)}` is not a key ({meant})"


def _shown(value: Any, *, quoted: bool = True) -> str:
    if isinstance(value, int) and abs(value) > _MOST_TOKENS:
        return "far too large"  # an integer may have more digits than Python is willing to print
    text = repr(value) if quoted and isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
