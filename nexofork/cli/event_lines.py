"""Say what happens in a run: as an object for programs, as a phrase for people.

The objects' names are the log's own words (requested, claimed, turn, ...), and a final one is the result that
``--json`` prints with ``event`` added, so that one reader serves both.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nexofork.cli.output import counted
from nexofork.run.events import (
    CacheBreakDetected,
    CallBegan,
    CallFailedOnce,
    ConversationCompacted,
    FanOutDecided,
    ForkAsked,
    ForkClaimed,
    ForkEnded,
    ForkPermitted,
    ForkStarted,
    MessagesDelivered,
    MessagesUndelivered,
    TextStreamed,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    WaitedForLeader,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexofork.run.events import ForkEvent

__all__ = ["call_phrase", "decision_phrase", "event_object", "event_phrase", "permitted_phrase"]

_NAMES: dict[type, str] = {
    ForkStarted: "requested",
    ForkClaimed: "claimed",
    FanOutDecided: "fan_out_decided",
    WaitedForLeader: "waited_for_leader",
    CallBegan: "call_began",
    CallFailedOnce: "call_failed_once",
    CacheBreakDetected: "cache_break_detected",
    TextStreamed: "text",
    TurnFinished: "turn",
    ToolStarted: "tool_started",
    ToolFinished: "tool_finished",
    MessagesDelivered: "delivered",
    MessagesUndelivered: "undelivered",
    ConversationCompacted: "compacted",
    ForkAsked: "asked",
    ForkPermitted: "permitted",
}


def event_object(event: ForkEvent) -> dict[str, Any]:
    """Return an event as JSON values; ``at`` is the log's, as in ``logs --json``, where the event is from a log."""
    if isinstance(event, ForkEnded):
        return {"event": "final", "at": event.at, **event.result.to_json()}
    fields = asdict(event)
    if isinstance(event, (TurnFinished, CallBegan)):
        fields["usage"] = event.usage.to_wire()
    if isinstance(event, ForkStarted):
        fields["cache_key_hash"] = f"{event.cache_key_hash:016x}"  # many readers of JSON round a number of 64 bits
    return {"event": _NAMES[type(event)], "at": event.at, **fields}


def event_phrase(event: ForkEvent) -> str:
    """Return an event in a few words; empty for what people need not see."""
    match event:
        case ForkStarted():
            return "requested"
        case ForkClaimed():
            again = f" (attempt {event.epoch})" if event.epoch > 1 else ""
            return f"claimed by {event.daemon} on {event.host}{again}"
        case FanOutDecided():
            return "" if event.decision.get("plan") == "all_at_once" else decision_phrase(event.decision)
        case TurnFinished():
            usage = event.usage
            tools = f", calls {', '.join(event.tool_names)}" if event.tool_names else ""
            return f"turn {event.turn}: read {usage.cache_read_tokens:,}, wrote {usage.cache_write_tokens:,}{tools}"
        case ToolStarted():
            return f"{event.name} runs"
        case ToolFinished():
            return f"{event.name or 'tool'} {'failed' if event.is_error else 'answered'}"
        case ForkAsked(what="permission"):
            return f"asks for permission: {call_phrase(event.name, event.arguments)}"
        case ForkPermitted():
            return permitted_phrase(event.name, allowed=event.allowed, how=event.how, note=event.note)
        case CacheBreakDetected():
            return f"cache missed ({event.check.cause}): read {event.check.hit_ratio:.0%} of the prompt"
        case MessagesDelivered():
            return f"reads {counted(len(event.ids), 'message')}"
        case MessagesUndelivered():
            return f"never read {counted(len(event.texts), 'message')}: {'; '.join(event.texts)}"
        case ConversationCompacted():
            return f"went on with a summary of {counted(event.turns, 'turn')}, which no longer fit"
        case CallFailedOnce():
            return f"call failed, again in {event.delay_s:.1f} s: {event.error}"
        case ForkEnded():
            result = event.result
            return f"{result.status.value} after {counted(result.turns, 'turn')}, {result.duration_ms / 1000:.1f} s"
        case _:
            return ""


def call_phrase(name: str, arguments: Mapping[str, Any] | None) -> str:
    """Return a tool call in a few words."""
    if arguments is None:
        return f"{name}, with arguments that are not to be had"
    if len(arguments) == 1:
        (value,) = arguments.values()
        return f"{name} {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
    return f"{name} {json.dumps(arguments, ensure_ascii=False, default=str)}" if arguments else name


def permitted_phrase(name: str, *, allowed: bool, how: str, note: str) -> str:
    """Return what came of a question in a few words."""
    word = "allowed" if allowed else "denied"
    why = "nobody answered in time" if how == "deadline" else note
    return f"{name or 'call'} {word}" + (f": {why}" if why else "")


def decision_phrase(decision: Mapping[str, Any]) -> str:
    """Return how a fan-out was started in a few words; what a daemon wrote on the log may be anything."""
    plan = str(decision.get("plan", "")).replace("_", " ")
    return ": ".join(part for part in (plan, str(decision.get("why", ""))) if part)
