"""What can be made to go wrong with a response, read from a script.

A fault is one JSON value: ``"hang"``, a bare status, or an object with any of ``status`` (with ``retry_after``,
``type``, ``message``), ``first_byte_s``, ``cut_after_events``, ``error_event_after`` (with ``type``),
``hang_after_events`` and ``times``. Event counts include every event sent, pings too.
Invariant: a fault only ever takes something away from a correct response; it adds no other behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexofork.simulator.errors import ERROR_TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Fault", "ScriptError", "count", "parse_fault", "seconds"]

FIELDS = frozenset(
    [
        "status",
        "retry_after",
        "type",
        "message",
        "first_byte_s",
        "cut_after_events",
        "error_event_after",
        "hang",
        "hang_after_events",
        "times",
    ]
)


class ScriptError(ValueError):
    """A script that cannot be followed; the message names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One injected failure."""

    status: int | None = None
    """Answer with this error status instead of a message."""
    retry_after_s: float | None = None
    kind: str | None = None
    """Error type; by default the one of the status, or `overloaded_error` for an event."""
    message: str | None = None
    first_byte_s: float = 0.0
    """Wait so long before anything is sent."""
    cut_after_events: int | None = None
    error_event_after: int | None = None
    hang: bool = False
    """Never answer; ends when the client leaves or the simulator stops."""
    hang_after_events: int | None = None
    times: int | None = None
    """How often it happens; None is always."""

    @property
    def name(self) -> str:
        """A short name for the log."""
        if self.status is not None:
            return f"status {self.status}"
        for field in ("cut_after_events", "error_event_after", "hang_after_events"):
            if (count := getattr(self, field)) is not None:
                return f"{field} {count}"
        return "hang" if self.hang else f"first_byte_s {self.first_byte_s:g}"

    @property
    def text(self) -> str:
        """What the error says."""
        return self.message or {429: "Rate limited by the script", 529: "Overloaded"}.get(
            self.status or 529, "Injected fault"
        )

    @property
    def event_kind(self) -> str:
        """The type of an error event."""
        return self.kind or "overloaded_error"

    @property
    def event_status(self) -> int:
        """The status an error event would have had if nothing had been sent yet."""
        return next((status for status, kind in ERROR_TYPES.items() if kind == self.event_kind), 500)


def seconds(holder: Mapping[str, Any], name: str) -> float | None:
    """A duration of a script, or None when it is not given.

    Raises:
        ScriptError: it is no number, or negative.
    """
    value = holder.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ScriptError(f"{name}: expected seconds, not {value!r}")
    return value


def count(holder: Mapping[str, Any], name: str) -> int | None:
    """A whole number of a script, or None when it is not given.

    Raises:
        ScriptError: it is no whole number, or negative.
    """
    value = holder.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ScriptError(f"{name}: expected a whole number, not {value!r}")
    return value


def parse_fault(value: Any) -> Fault | None:
    """Read a fault from a script; None when there is none.

    Raises:
        ScriptError: the value is not a fault.
    """
    if value is None:
        return None
    if value == "hang":
        return Fault(hang=True)
    if isinstance(value, int) and not isinstance(value, bool):
        return Fault(status=value)
    if not isinstance(value, dict):
        raise ScriptError(f'fault: expected an object, a status or "hang", not {value!r}')
    if unknown := sorted(set(value) - FIELDS):
        raise ScriptError(f"fault: unknown fields {', '.join(unknown)}; known are {', '.join(sorted(FIELDS))}")
    return Fault(
        status=count(value, "status"),
        retry_after_s=seconds(value, "retry_after"),
        kind=value.get("type"),
        message=value.get("message"),
        first_byte_s=seconds(value, "first_byte_s") or 0.0,
        cut_after_events=count(value, "cut_after_events"),
        error_event_after=count(value, "error_event_after"),
        hang=bool(value.get("hang", False)),
        hang_after_events=count(value, "hang_after_events"),
        times=count(value, "times"),
    )
