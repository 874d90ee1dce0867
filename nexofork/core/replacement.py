"""Decide once which long tool results are replaced, and never decide again.

Parent and child must show the model the same bytes for the same result. A child that decided afresh might cut a result
the parent had sent whole, and the prefix would differ. So the decisions are state: they travel with the snapshot, a
child works on a clone, and a result that was sent once keeps the form it was sent in for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["ContentReplacementState"]


@dataclass(slots=True, kw_only=True)
class ContentReplacementState:
    """The budget for tool results and what it has decided so far."""

    max_chars: int = 200_000
    """The longest single result that is sent whole."""
    keep_chars: int = 2_000
    """How much of a replaced result is kept at its start and at its end, each."""
    budget_chars: int | None = None
    """What all results together may take; beyond it each further one is replaced. None: no such limit."""
    spent_chars: int = 0
    decisions: dict[str, str | None] = field(default_factory=dict)
    """By tool call: the text sent instead, or None where the result was sent whole."""

    def apply(self, call_id: str, text: str) -> str:
        """Return what is sent for this result; the first answer for a call is the answer for good."""
        if call_id in self.decisions:
            kept = self.decisions[call_id]
            return text if kept is None else kept
        over = self.budget_chars is not None and self.spent_chars + len(text) > self.budget_chars
        shown = text
        if (over or len(text) > self.max_chars) and len(text) > 2 * self.keep_chars:
            shown = min(text, self._shortened(text), key=len)
        self.decisions[call_id] = None if shown is text else shown
        self.spent_chars += len(shown)
        return shown

    def sent(self, call_id: str, text: str) -> None:
        """Take note of what was sent for a result by whoever decided on it."""
        if call_id not in self.decisions:
            self.decisions[call_id] = text
            self.spent_chars += len(text)

    def clone(self) -> ContentReplacementState:
        """Return a copy that decides alike and leaves this one alone."""
        return ContentReplacementState(
            max_chars=self.max_chars,
            keep_chars=self.keep_chars,
            budget_chars=self.budget_chars,
            spent_chars=self.spent_chars,
            decisions=dict(self.decisions),
        )

    def to_wire(self) -> dict[str, Any]:
        """Return the state as JSON values, to travel in a request."""
        return {
            "max_chars": self.max_chars,
            "keep_chars": self.keep_chars,
            "budget_chars": self.budget_chars,
            "spent_chars": self.spent_chars,
            "decisions": dict(self.decisions),
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> ContentReplacementState:
        """Read a state that travelled; unknown keys are ignored."""
        known = {key: wire[key] for key in ("max_chars", "keep_chars", "budget_chars", "spent_chars") if key in wire}
        return cls(**known, decisions=dict(wire.get("decisions", {})))

    def _shortened(self, text: str) -> str:
        left_out = len(text) - 2 * self.keep_chars
        start, end = text[: self.keep_chars], text[len(text) - self.keep_chars :]
        return f"{start}\n[{left_out} characters left out]\n{end}"
