"""The prompt cache itself: look up, bill, and write when a response begins.

Looking and writing are two steps because the provider's are: a request sees only the entries that were readable when
it arrived, and its own become readable with its first byte. So N cold requests at once pay N writes.
Invariant: read + write_5m + write_1h + fresh is the prompt's total, always.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.simulator.breakpoints import Breakpoint

__all__ = ["TTL_S", "Bill", "CachePlan", "Prefix", "PromptCache"]

LOOKBACK = 20
"""How many positions one breakpoint tries, itself counted."""
TTL_S = {"5m": 300.0, "1h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """A prompt as the cache needs it: what may be found and what may be written."""

    workspace: str
    chain: Sequence[bytes]
    """Cumulative hash after each position."""
    totals: Sequence[int]
    """Cumulative tokens after each position."""
    breakpoints: Sequence[Breakpoint]
    minimum_tokens: int
    """Breakpoints over a shorter prefix are silently ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """How a prompt's tokens are charged; the four counts do not overlap."""

    read: int
    write_5m: int
    write_1h: int
    fresh: int
    """What the provider calls `input_tokens`."""

    @property
    def total(self) -> int:
        """The prompt's tokens."""
        return self.read + self.write_5m + self.write_1h + self.fresh


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """What one request found and what it will write once its response begins."""

    bill: Bill
    started_at: float
    workspace: str
    hit_position: int | None
    """Index of the position whose entry is read, or None on a miss."""
    refreshes: bytes | None
    writes: tuple[tuple[bytes, str], ...]
    """Hash and TTL of each new entry."""


@dataclass(slots=True)
class _Entry:
    ttl_s: float
    expires_at: float


class PromptCache:
    """All entries of all workspaces; nothing is ever shared between two of them."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, bytes], _Entry] = {}

    def plan(self, prefix: Prefix, *, now: float) -> CachePlan:
        """Look the prompt up as of now and work out its bill; changes nothing."""
        usable = [point for point in prefix.breakpoints if prefix.totals[point.position] >= prefix.minimum_tokens]
        hit = self._find(prefix, usable, now)
        ahead = [point for point in usable if hit is None or point.position > hit]
        return CachePlan(
            bill=_bill(prefix.totals, hit, ahead),
            started_at=now,
            workspace=prefix.workspace,
            hit_position=hit,
            refreshes=None if hit is None else prefix.chain[hit],
            writes=tuple((prefix.chain[point.position], point.ttl) for point in ahead),
        )

    def commit(self, plan: CachePlan) -> None:
        """Make the plan's entries readable and prolong the one it read; call it with the first byte.

        The TTL counts from the start of the request, not from here.
        """
        if plan.refreshes is not None:
            entry = self._entries.get((plan.workspace, plan.refreshes))
            if entry is not None:
                entry.expires_at = max(entry.expires_at, plan.started_at + entry.ttl_s)
        for digest, ttl in plan.writes:
            self._write((plan.workspace, digest), TTL_S[ttl], plan.started_at)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()

    def _write(self, key: tuple[str, bytes], ttl_s: float, started_at: float) -> None:
        fresh = _Entry(ttl_s=ttl_s, expires_at=started_at + ttl_s)
        before = self._entries.get(key)
        # Two cold requests write the same prefix: the entry that lives longer wins.
        if before is None or fresh.expires_at >= before.expires_at:
            self._entries[key] = fresh

    def _find(self, prefix: Prefix, usable: Sequence[Breakpoint], now: float) -> int | None:
        for point in reversed(usable):
            for position in range(point.position, max(point.position - LOOKBACK, -1), -1):
                entry = self._entries.get((prefix.workspace, prefix.chain[position]))
                if entry is not None and entry.expires_at > now:
                    return position
        return None


def _bill(totals: Sequence[int], hit: int | None, ahead: Sequence[Breakpoint]) -> Bill:
    """A is what is read, B the highest one-hour breakpoint after it, C the last breakpoint."""
    total = totals[-1] if totals else 0
    read = 0 if hit is None else totals[hit]
    hours = [totals[point.position] for point in ahead if point.ttl == "1h"]
    long_end = max(hours, default=read)
    end = max((totals[point.position] for point in ahead), default=read)
    return Bill(read=read, write_5m=end - long_end, write_1h=long_end - read, fresh=total - end)
