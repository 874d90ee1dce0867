"""How a fork ended, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from nexofork.core.usage import Usage

if TYPE_CHECKING:
    from nexofork.core.report import Report
    from nexofork.engine.abort import Abort
    from nexofork.engine.cache_check import CacheCheck

__all__ = ["CallRecord", "ForkResult", "ForkStatus"]


class ForkStatus(StrEnum):
    """Where a run is, or how it ended; only `COMPLETED` is success."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"
    TIMED_OUT = "timed_out"
    MAX_TURNS = "max_turns"
    OVER_BUDGET = "over_budget"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One finished model call."""

    turn: int
    message_id: str
    usage: Usage
    stop_reason: str | None
    retries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkResult:
    """Everything known about a run at its end."""

    run_id: str
    label: str
    directive: str
    model: str
    status: ForkStatus
    end: str
    """What ended it, more closely: a stop_reason, ``truncated_tool_use``, ``context_overflow``, an error's name."""
    final_text: str
    """The last text the model said, whatever the status."""
    report: Report
    calls: tuple[CallRecord, ...] = ()
    usage: Usage = field(default_factory=Usage)
    """The sum over all finished calls."""
    cost_usd: float | None = None
    """None where the model's price is not known; `cost_note` says so."""
    cost_note: str = ""
    cache: CacheCheck | None = None
    """What the first call read, against what it should have."""
    turns: int = 0
    tool_uses: int = 0
    duration_ms: int = 0
    error: str | None = None
    """Why it failed, with what to do."""
    abort: Abort | None = None

    @property
    def ok(self) -> bool:
        """Whether the fork completed."""
        return self.status is ForkStatus.COMPLETED

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "run_id": self.run_id,
            "directive": self.directive,
            "status": self.status.value,
            "end": self.end,
            "final_text": self.final_text,
            "usage": self.usage.to_wire(),
            "calls": [{"turn": call.turn, **call.usage.to_wire()} for call in self.calls],
            "cost_usd": self.cost_usd,
            "expected_read": self.cache.expected_read if self.cache else None,
            "miss_cause": self.cache.cause if self.cache else None,
            "turns": self.turns,
            "tool_uses": self.tool_uses,
            "duration_ms": self.duration_ms,
            "error": self.error,
        }
