"""Where a run books its model calls: what was billed, what failed, and what nobody heard the end of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from nexofork.core.usage import Usage
from nexofork.wire.ledger import BookedCall, call_id

if TYPE_CHECKING:
    from nexofork.wire.ledger import Outcome

__all__ = ["CallFacts", "Ledger", "MemoryLedger"]


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
    usage: Usage = field(default_factory=Usage)
    message_id: str = ""
    error: str = ""
    prefix: str = ""
    warm_tokens: int = 0
    ttl: str = "5m"


class Ledger(Protocol):
    """Takes one run's calls."""

    def book(self, call: CallFacts) -> None:
        """Keep the call; neither waits nor raises."""


class MemoryLedger:
    """The ledger of forks in this process: as long-lived as whoever holds it."""

    def __init__(self) -> None:
        self.calls: list[BookedCall] = []
        """Every call so far, oldest first."""

    def of_run(self, run_id: str, *, label: str = "", group: str | None = None, parent: str = "") -> Ledger:
        """Return where one run books."""
        return _RunInMemory(self.calls, run_id, label=label, group=group, parent=parent)


class _RunInMemory:
    def __init__(self, calls: list[BookedCall], run_id: str, *, label: str, group: str | None, parent: str) -> None:
        self._calls = calls
        self._run_id = run_id
        self._label = label
        self._group = group
        self._parent = parent

    def book(self, call: CallFacts) -> None:
        self._calls.append(
            booked(call, run_id=self._run_id, epoch=1, label=self._label, group=self._group, parent=self._parent)
        )


def booked(
    call: CallFacts, *, run_id: str, epoch: int, label: str, group: str | None, parent: str, host: str = ""
) -> BookedCall:
    """Return a call as the ledger keeps it."""
    return BookedCall(
        at=call.at,
        call_id=call_id(run_id, epoch=epoch, turn=call.turn, attempt=call.attempt),
        run_id=run_id,
        turn=call.turn,
        attempt=call.attempt,
        model=call.model,
        outcome=call.outcome,
        usage=call.usage.to_compact_wire(),
        message_id=call.message_id,
        error=call.error,
        prefix=call.prefix,
        warm_tokens=call.warm_tokens,
        ttl=call.ttl,
        label=label,
        group=group,
        parent=parent,
        host=host,
    )
