"""Where a run books its model calls: what was billed, what failed, and what nobody heard the end of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from nexofork.wire.ledger import MOST_TOKENS, BookedCall
from nexofork.wire.subjects import DEFAULT_POOL

if TYPE_CHECKING:
    from nexofork.core.usage import Usage
    from nexofork.wire.ledger import Outcome

__all__ = ["CallFacts", "CallOwner", "Ledger", "MemoryLedger", "booked"]

_TEXT = 200
"""Names and errors are kept up to here: the ledger is for sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """One attempt of one model call, as the run that made it knows it."""

    at: float
    """Unix time it was sent at."""
    turn: int
    """0 for a pre-warm."""
    attempt: int
    model: str
    outcome: Outcome
    usage: Usage | None = None
    """None where nothing is known."""
    message_id: str = ""
    error: str = ""
    prefix: str = ""
    warm_tokens: int = 0
    ttl: str = "5m"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOwner:
    """Whose calls they are."""

    run_id: str
    epoch: int = 1
    label: str = ""
    group: str | None = None
    parent: str = ""
    host: str = ""
    pool: str = DEFAULT_POOL


class Ledger(Protocol):
    """Takes one run's calls."""

    def book(self, call: CallFacts) -> None:
        """Keep the call; neither waits nor raises."""


class MemoryLedger:
    """The ledger of forks in this process: as long-lived as whoever holds it."""

    def __init__(self) -> None:
        self.calls: list[BookedCall] = []
        """Every call so far, oldest first."""

    def of_run(self, account: CallOwner) -> Ledger:
        """Return where one run books."""
        return _RunInMemory(self.calls, account)


class _RunInMemory:
    def __init__(self, calls: list[BookedCall], account: CallOwner) -> None:
        self._calls = calls
        self._account = account

    def book(self, call: CallFacts) -> None:
        self._calls.append(booked(call, self._account))


def booked(call: CallFacts, account: CallOwner) -> BookedCall:
    """Return a call as the ledger keeps it; what a server or a parent made up is cut to size, never refused."""
    return BookedCall(
        at=min(max(call.at, 0.0), 1e11),
        run_id=account.run_id,
        epoch=account.epoch,
        turn=call.turn,
        attempt=call.attempt,
        model=_text(call.model),
        outcome=call.outcome,
        billed=None if call.usage is None else _billed(call.usage),
        message_id=_text(call.message_id),
        error=_text(call.error),
        prefix=_text(call.prefix),
        warm_tokens=_count(call.warm_tokens),
        ttl=_ttl(call.ttl),
        label=_text(account.label),
        group=None if account.group is None else _text(account.group),
        parent=_text(account.parent),
        host=_text(account.host),
        pool=account.pool,
    )


def _billed(usage: Usage) -> tuple[int, int, int, int, int]:
    return (
        _count(usage.input_tokens),
        _count(usage.cache_read_tokens),
        _count(usage.cache_write_5m_tokens),
        _count(usage.cache_write_1h_tokens),
        _count(usage.output_tokens),
    )


def _count(tokens: int) -> int:
    return min(max(tokens, 0), MOST_TOKENS)


def _ttl(ttl: str) -> Literal["5m", "1h"]:
    return "1h" if ttl == "1h" else "5m"


def _text(text: str) -> str:
    return text[:_TEXT].encode("utf-8", "replace").decode()
