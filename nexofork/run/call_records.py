"""Where a run books its model calls: what was billed, what failed, and what nobody heard the end of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from nexofork.wire.ledger import MOST_TOKENS, BookedCall, billed_tokens, cut_text
from nexofork.wire.subjects import DEFAULT_POOL

if TYPE_CHECKING:
    from nexofork.core.usage import Usage
    from nexofork.wire.ledger import Outcome

__all__ = ["CallFacts", "CallOwner", "Ledger", "MemoryLedger", "booked"]


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
        model=cut_text(call.model),
        outcome=call.outcome,
        billed=None if call.usage is None else billed_tokens(call.usage),
        message_id=cut_text(call.message_id),
        error=cut_text(call.error),
        prefix=cut_text(call.prefix),
        warm_tokens=min(max(call.warm_tokens, 0), MOST_TOKENS),
        ttl=_ttl(call.ttl),
        label=cut_text(account.label),
        group=None if account.group is None else cut_text(account.group),
        parent=cut_text(account.parent),
        host=cut_text(account.host),
        pool=account.pool,
    )


def _ttl(ttl: str) -> Literal["5m", "1h"]:
    return "1h" if ttl == "1h" else "5m"
