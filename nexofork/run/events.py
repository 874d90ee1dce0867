"""What happens in a run, as it happens."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexofork.core.usage import Usage
    from nexofork.run.cache_check import CacheCheck
    from nexofork.run.result import ForkResult

__all__ = [
    "CacheBreakDetected",
    "CallBegan",
    "CallFailedOnce",
    "ConversationCompacted",
    "FanOutDecided",
    "ForkAsked",
    "ForkClaimed",
    "ForkEnded",
    "ForkEvent",
    "ForkPermitted",
    "ForkStarted",
    "MessagesDelivered",
    "MessagesUndelivered",
    "TextStreamed",
    "ToolFinished",
    "ToolStarted",
    "TurnFinished",
    "WaitedForLeader",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Happened:
    """What all events have; two that differ in their time alone are equal."""

    at: float = field(default_factory=time.time, compare=False)
    """Unix time: of what is on a run's log, as its writer's clock had it; of anything else, when it was seen here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkStarted(_Happened):
    """The run began; nothing was sent yet."""

    run_id: str
    label: str
    directive: str
    cache_key_hash: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkClaimed(_Happened):
    """A daemon took the run; it may happen again when a daemon is lost."""

    run_id: str
    epoch: int
    daemon: str
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutDecided(_Happened):
    """It is decided whether the first call waits for a sibling's."""

    run_id: str
    decision: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitedForLeader(_Happened):
    """The first call waited until a sibling's response began, to read what it wrote instead of writing it again."""

    run_id: str
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBegan(_Happened):
    """The response to a model call began; its input is billed from here on."""

    run_id: str
    turn: int
    message_id: str
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFailedOnce(_Happened):
    """An attempt failed and is repeated; text streamed by it no longer counts."""

    run_id: str
    turn: int
    error: str
    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBreakDetected(_Happened):
    """The first call read less than half of its prompt from the cache."""

    run_id: str
    check: CacheCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStreamed(_Happened):
    """A piece of text, for whoever watches; not kept."""

    run_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished(_Happened):
    """A reply is complete."""

    run_id: str
    turn: int
    text: str
    stop_reason: str | None
    tool_names: tuple[str, ...]
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(_Happened):
    """A tool is about to run."""

    run_id: str
    call_id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished(_Happened):
    """A tool answered."""

    run_id: str
    call_id: str
    name: str
    is_error: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesDelivered(_Happened):
    """Messages of the parent's are shown to the child with its next call."""

    run_id: str
    turn: int
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesUndelivered(_Happened):
    """The run ended and the child never read these messages of its parent's."""

    run_id: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationCompacted(_Happened):
    """The child's own turns no longer fitted the model; it goes on with a summary of them."""

    run_id: str
    turns: int
    """How many turns the summary stands for."""
    left_out: int
    """How many of them, the newest ones, whoever wrote it could not read either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkAsked(_Happened):
    """The run needs something only its parent can give; the parent's client answers what it can by itself."""

    run_id: str
    ask_id: str
    what: str
    """``blob``, ``tool`` or ``permission``."""
    turn: int = 0
    call_id: str = ""
    name: str = ""
    """The tool that is asked about."""
    arguments: Mapping[str, Any] | None = None
    """What it is called with; None where that is not known here."""
    deadline_s: float | None = None
    """How long an answer is waited for, from when it was asked."""
    rules: tuple[str, ...] = ()
    """What an answer that is remembered would allow, or deny, for the rest of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPermitted(_Happened):
    """It is decided whether a call that was asked for may run."""

    run_id: str
    ask_id: str
    call_id: str
    name: str
    allowed: bool
    how: str
    """By an ``answer``, or by the ``deadline``."""
    note: str = ""
    rules: tuple[str, ...] = ()
    """What is remembered of it for the rest of the run."""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkEnded(_Happened):
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
    | MessagesDelivered
    | MessagesUndelivered
    | ConversationCompacted
    | ForkAsked
    | ForkPermitted
    | ForkEnded
)
