"""What happens in a run, as it happens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexofork.core.usage import Usage
    from nexofork.engine.cache_check import CacheCheck
    from nexofork.engine.result import ForkResult

__all__ = [
    "CacheBreakDetected",
    "CallBegan",
    "CallFailedOnce",
    "FanOutDecided",
    "ForkAsked",
    "ForkClaimed",
    "ForkEnded",
    "ForkEvent",
    "ForkStarted",
    "TextStreamed",
    "ToolFinished",
    "ToolStarted",
    "TurnFinished",
    "WaitedForLeader",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkStarted:
    """The run began; nothing was sent yet."""

    run_id: str
    label: str
    directive: str
    cache_key_hash: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkClaimed:
    """A daemon took the run; it may happen again when a daemon is lost."""

    run_id: str
    epoch: int
    daemon: str
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutDecided:
    """It is decided whether the first call waits for a sibling's."""

    run_id: str
    decision: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitedForLeader:
    """The first call waited until a sibling's response began, to read what it wrote instead of writing it again."""

    run_id: str
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBegan:
    """The response to a model call began; its input is billed from here on."""

    run_id: str
    turn: int
    message_id: str
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFailedOnce:
    """An attempt failed and is repeated; text streamed by it no longer counts."""

    run_id: str
    turn: int
    error: str
    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBreakDetected:
    """The first call read less than half of its prompt from the cache."""

    run_id: str
    check: CacheCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStreamed:
    """A piece of text, for whoever watches; not kept."""

    run_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished:
    """A reply is complete."""

    run_id: str
    turn: int
    text: str
    stop_reason: str | None
    tool_names: tuple[str, ...]
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted:
    """A tool is about to run."""

    run_id: str
    call_id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished:
    """A tool answered."""

    run_id: str
    call_id: str
    name: str
    is_error: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkAsked:
    """The run needs something only its parent can give; the parent's client answers what it can by itself."""

    run_id: str
    ask_id: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkEnded:
    """The run is over; always the last event, exactly once."""

    result: ForkResult


ForkEvent: TypeAlias = (
    ForkStarted
    | ForkClaimed
    | FanOutDecided
    | WaitedForLeader
    | CallBegan
    | CallFailedOnce
    | CacheBreakDetected
    | TextStreamed
    | TurnFinished
    | ToolStarted
    | ToolFinished
    | ForkAsked
    | ForkEnded
)
