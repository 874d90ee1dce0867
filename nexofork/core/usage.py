"""What one model call, or several, was billed for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexofork.errors import NexoforkError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CALL_TOKENS", "SUM_TOKENS", "BadUsage", "Usage"]

CALL_TOKENS = 20_000_000
"""The most tokens of one call, prompt or output: above every model's context window."""
SUM_TOKENS = 10**100
"""The most tokens that are read at all: above it is no number to count with."""
_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
_WRITES = ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")


class BadUsage(NexoforkError):
    """Token counts that no call can have."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"The usage {problem}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts as the provider bills them; the four input counts never overlap."""

    input_tokens: int = 0
    """Fresh input behind the last breakpoint; includes neither reads nor writes."""
    cache_read_tokens: int = 0
    """Input served from the cache."""
    cache_write_5m_tokens: int = 0
    """Input written to the cache with the five-minute TTL."""
    cache_write_1h_tokens: int = 0
    """Input written to the cache with the one-hour TTL."""
    output_tokens: int = 0

    @property
    def cache_write_tokens(self) -> int:
        """Input written to the cache, whatever its TTL."""
        return self.cache_write_5m_tokens + self.cache_write_1h_tokens

    @property
    def prompt_tokens(self) -> int:
        """The whole prompt: fresh, read and written."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    @property
    def hit_ratio(self) -> float:
        """The share of the prompt that was read from the cache; 0 for an empty prompt."""
        return self.cache_read_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_5m_tokens=self.cache_write_5m_tokens + other.cache_write_5m_tokens,
            cache_write_1h_tokens=self.cache_write_1h_tokens + other.cache_write_1h_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
        )

    @classmethod
    def from_wire(cls, usage: Mapping[str, Any], *, base: Usage | None = None) -> Usage:
        """Read the API's ``usage`` object; what it leaves out is taken from `base`.

        ``message_delta`` repeats only some of the counts of ``message_start``, and a server that does not split writes
        by TTL means the five-minute default.
        """
        start = base or cls()

        def count(key: str, default: int, source: Mapping[str, Any] = usage) -> int:
            value = source.get(key)
            # A count that no call can have is as good as none.
            return value if type(value) is int and 0 <= value <= SUM_TOKENS else default

        split = usage.get("cache_creation")
        if isinstance(split, dict):
            write_5m = count("ephemeral_5m_input_tokens", 0, split)
            write_1h = count("ephemeral_1h_input_tokens", 0, split)
        else:
            written = count("cache_creation_input_tokens", start.cache_write_tokens)
            write_1h = min(start.cache_write_1h_tokens, written)
            write_5m = written - write_1h
        return cls(
            input_tokens=count("input_tokens", start.input_tokens),
            cache_read_tokens=count("cache_read_input_tokens", start.cache_read_tokens),
            cache_write_5m_tokens=write_5m,
            cache_write_1h_tokens=write_1h,
            output_tokens=count("output_tokens", start.output_tokens),
        )

    @classmethod
    def billed(cls, usage: object, *, base: Usage | None = None, most: int = CALL_TOKENS) -> Usage:
        """Read the ``usage`` of one call like `from_wire`; counts may be missing, and must not be impossible.

        Raises:
            BadUsage: A count is negative, not an integer, or over `most`.
        """
        usage = _object("", usage)
        split = _object("cache_creation", usage.get("cache_creation"))
        for name, value in (
            *((name, usage.get(name)) for name in _COUNTS),
            *((name, split.get(name)) for name in _WRITES),
        ):
            if value is None:
                continue
            if type(value) is not int:
                raise BadUsage(f"has a `{name}` that is no integer: {str(value)[:40]}")
            if not 0 <= value <= most:
                raise BadUsage(f"has a `{name}` that is not between 0 and {_short(most)}: {_short(value)}")
        read = cls.from_wire(usage, base=base)
        if read.prompt_tokens > most:
            raise BadUsage(f"has a prompt of {_short(read.prompt_tokens)} tokens, over {_short(most)}")
        return read

    def to_wire(self) -> dict[str, Any]:
        """Return the counts under the API's names."""
        return {
            "input_tokens": self.input_tokens,
            "cache_read_input_tokens": self.cache_read_tokens,
            "cache_creation_input_tokens": self.cache_write_tokens,
            "cache_creation": {
                "ephemeral_5m_input_tokens": self.cache_write_5m_tokens,
                "ephemeral_1h_input_tokens": self.cache_write_1h_tokens,
            },
            "output_tokens": self.output_tokens,
        }

    def to_compact_wire(self) -> dict[str, Any]:
        """Return the counts under the API's names without those that are zero; `from_wire` reads both forms."""
        counts = {
            "input_tokens": self.input_tokens,
            "cache_read_input_tokens": self.cache_read_tokens,
            "output_tokens": self.output_tokens,
        }
        writes = {
            "ephemeral_5m_input_tokens": self.cache_write_5m_tokens,
            "ephemeral_1h_input_tokens": self.cache_write_1h_tokens,
        }
        compact: dict[str, Any] = {name: count for name, count in counts.items() if count}
        if self.cache_write_tokens:
            compact["cache_creation"] = {name: count for name, count in writes.items() if count}
        return compact


def _object(name: str, value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadUsage(f"has a `{name}` that is no object" if name else "is no object")
    return value


def _short(count: int) -> str:
    return f"{count:,}" if abs(count) < 10**15 else f"a number {'below -' if count < 0 else 'above '}10^15"
