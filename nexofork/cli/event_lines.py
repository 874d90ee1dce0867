"""Say what happens in a run: as an object for programs, as a phrase for people.

The objects' names are the log's own words (requested, claimed, turn, ...), and a final one is the result that
``--json`` prints with ``event`` added, so that one reader serves both.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nexofork.cli.output import counted
from nexofork.engine.events import (
    CacheBreakDetected,
    CallBegan,
    CallFailedOnce,
    ForkAsked,
    ForkClaimed,
    ForkEnded,
    ForkStarted,
    TextStreamed,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    WaitedForLeader,
)

if TYPE_CHECKING:
    from nexofork.engine.events import ForkEvent

__all__ = ["event_object", "event_phrase"]

_NAMES: dict[type, str] = {
    ForkStarted: "requested",
    ForkClaimed: "claimed",
    WaitedForLeader: "waited_for_leader",
    CallBegan: "call_began",
    CallFailedOnce: "call_failed_once",
    CacheBreakDetected: "cache_break_detected",
    TextStreamed: "text",
    TurnFinished: "turn",
    ToolStarted: "tool_started",
    ToolFinished: "tool_finished",
    ForkAsked: "asked",
}


def event_object(event: ForkEvent) -> dict[str, Any]:
    """Return an event as JSON values; ``at`` is when it was seen here."""
    if isinstance(event, ForkEnded):
        return {"event": "final", "at": time.time(), **event.result.to_json()}
    fields = asdict(event)
    if isinstance(event, (TurnFinished, CallBegan)):
        fields["usage"] = event.usage.to_wire()
    if isinstance(event, ForkStarted):
        fields["cache_key_hash"] = f"{event.cache_key_hash:016x}"  # many readers of JSON round a number of 64 bits
    return {"event": _NAMES[type(event)], "at": time.time(), **fields}


def event_phrase(event: ForkEvent) -> str:
    """Return an event in a few words; empty for what people need not see."""
    match event:
        case ForkStarted():
            return "requested"
        case ForkClaimed():
            again = f" (attempt {event.epoch})" if event.epoch > 1 else ""
            return f"claimed by {event.daemon} on {event.host}{again}"
        case TurnFinished():
            usage = event.usage
            tools = f", calls {', '.join(event.tool_names)}" if event.tool_names else ""
            return f"turn {event.turn}: read {usage.cache_read_tokens:,}, wrote {usage.cache_write_tokens:,}{tools}"
        case ToolStarted():
            return f"{event.name} runs"
        case ToolFinished():
            return f"{event.name or 'tool'} {'failed' if event.is_error else 'answered'}"
        case CacheBreakDetected():
            return f"cache missed ({event.check.cause}): read {event.check.hit_ratio:.0%} of the prompt"
        case CallFailedOnce():
            return f"call failed, again in {event.delay_s:.1f} s: {event.error}"
        case ForkEnded():
            result = event.result
            return f"{result.status.value} after {counted(result.turns, 'turn')}, {result.duration_ms / 1000:.1f} s"
        case _:
            return ""
