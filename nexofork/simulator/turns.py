"""One turn of a script: what the model says, how fast, and what goes wrong.

A turn is a JSON object. ``thinking``, ``text`` and ``tools`` are shorthands, given out in that order; ``blocks`` says
the order itself. A bare string is a text. The rest steers delivery: ``repeat``, ``stop_reason``, ``stop_sequence``,
``delay_s``, ``delta_delay_s``, ``deltas``, ``escape``, ``hold`` and ``fault``.
Invariant: a `Turn` was checked when it was read; following it cannot fail.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexofork.simulator.canon import BYTES_PER_TOKEN
from nexofork.simulator.faults import Fault, ScriptError, count, parse_fault, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Hold", "Turn", "parse_turn", "parse_turns", "refuse_half_pairs", "stretch"]

FIELDS = frozenset(
    [
        "text",
        "thinking",
        "tools",
        "blocks",
        "repeat",
        "stop_reason",
        "stop_sequence",
        "delay_s",
        "delta_delay_s",
        "deltas",
        "escape",
        "hold",
        "fault",
    ]
)
STOP_REASONS = frozenset(
    ["end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal", "model_context_window_exceeded"]
)
BLOCK_FIELDS = {"text": "text", "thinking": "thinking", "tool_use": "name"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Stop here until the gate is released."""

    gate: str
    after_events: int = 0
    """How many events are sent first; zero holds back the first byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One reply of the model."""

    blocks: tuple[dict[str, Any], ...] = ()
    """Each `{"type": "text" | "thinking" | "tool_use", …}`; tool calls have no id yet."""
    stop_reason: str | None = None
    """None takes what follows from the blocks."""
    stop_sequence: str | None = None
    delay_s: float = 0.0
    delta_delay_s: float = 0.0
    deltas: int | None = None
    """Pieces per block; None goes by length."""
    escape: bool | None = None
    """Overrides the configuration's `escape_non_ascii`."""
    hold: Hold | None = None
    fault: Fault | None = None


def parse_turns(value: Any) -> tuple[Turn, ...]:
    """Read one turn or a list of them.

    Raises:
        ScriptError: naming the field that is wrong.
    """
    refuse_half_pairs(value)
    return tuple(parse_turn(turn) for turn in (value if isinstance(value, list) else [value]))


def refuse_half_pairs(value: Any) -> None:
    """Refuse a script with text that has no UTF-8: no reply could be made of it, nor an error that quotes it.

    Raises:
        ScriptError: There is half of a surrogate pair in it.
    """
    try:
        json.dumps(value, ensure_ascii=False, default=repr).encode()
    except UnicodeEncodeError as exc:
        raise ScriptError("half of a surrogate pair cannot be said; write both escapes, or the character") from exc


def parse_turn(value: Any) -> Turn:
    """Read one turn.

    Raises:
        ScriptError: naming the field that is wrong.
    """
    if isinstance(value, str):
        value = {"text": value}
    if not isinstance(value, dict):
        raise ScriptError(f"turn: expected an object or a string, not {value!r}")
    if unknown := sorted(set(value) - FIELDS):
        raise ScriptError(f"turn: unknown fields {', '.join(unknown)}; known are {', '.join(sorted(FIELDS))}")
    if value.get("stop_reason") not in STOP_REASONS | {None}:
        raise ScriptError(f"turn: unknown stop_reason {value['stop_reason']!r}")
    return Turn(
        blocks=tuple(_blocks(value)),
        stop_reason=value.get("stop_reason"),
        stop_sequence=value.get("stop_sequence"),
        delay_s=seconds(value, "delay_s") or 0.0,
        delta_delay_s=seconds(value, "delta_delay_s") or 0.0,
        deltas=count(value, "deltas"),
        escape=value.get("escape"),
        hold=_hold(value.get("hold")),
        fault=parse_fault(value.get("fault")),
    )


def stretch(text: str, tokens: int) -> str:
    """Repeat a text until it is so many tokens long."""
    wanted = tokens * BYTES_PER_TOKEN
    size = len(text.encode())
    whole = (text * (wanted // size + 1)).encode()
    return whole[:wanted].decode(errors="ignore")


def _blocks(value: dict[str, Any]) -> Sequence[dict[str, Any]]:
    if "blocks" in value:
        return [_block(block) for block in value["blocks"]]
    blocks: list[dict[str, Any]] = []
    if "thinking" in value:
        blocks.append(_block({"type": "thinking", "thinking": value["thinking"]}))
    if "text" in value or "repeat" in value:
        said = _block({"type": "text", "text": value.get("text", "token ")})
        repeat = count(value, "repeat")
        blocks.append(said if repeat is None else {**said, "text": stretch(said["text"] or " ", repeat)})
    for tool in value.get("tools", ()):
        blocks.append(_block({"type": "tool_use", **tool} if isinstance(tool, dict) else tool))
    return blocks


def _block(block: Any) -> dict[str, Any]:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind not in BLOCK_FIELDS or not isinstance(block.get(BLOCK_FIELDS[kind]), str):
        raise ScriptError(f"turn: {block!r} is not a text, thinking or tool_use block")
    if kind == "tool_use" and not isinstance(block.get("input", {}), dict):
        raise ScriptError(f"turn: the input of tool {block['name']!r} is not an object")
    return dict(block)


def _hold(value: Any) -> Hold | None:
    match value:
        case None:
            return None
        case str():
            return Hold(gate=value)
        case {"gate": str(gate), "after_events": int(events)}:
            return Hold(gate=gate, after_events=events)
    raise ScriptError(f"hold: expected a gate name or {{'gate', 'after_events'}}, not {value!r}")
