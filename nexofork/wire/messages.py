"""The messages of a run: what a parent asks for and what a daemon reports.

Decoders ignore fields they do not know and refuse kinds and versions they do not know. Every message carries an id of
its own: after a publish whose answer was lost, the writer finds out by it whether the message had landed.
"""

from __future__ import annotations

import json
import secrets
import uuid
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)

from nexofork.errors import BadMessage

__all__ = [
    "INLINE_BYTES",
    "VERSION",
    "AbortEvent",
    "Amount",
    "Answer",
    "Asked",
    "BlobRef",
    "BudgetLimit",
    "CallBudget",
    "CallStarted",
    "Claimed",
    "Daemon",
    "Delivered",
    "Delta",
    "Event",
    "Final",
    "FirstCall",
    "HandedOver",
    "Message",
    "Parent",
    "Payload",
    "Presence",
    "Report",
    "Requested",
    "ToolFinished",
    "ToolStarted",
    "Turn",
    "Warming",
    "announced_call",
    "decode_event",
    "decode_report",
    "encode",
    "new_run_id",
]

VERSION: Literal[1] = 1
INLINE_BYTES = 32 * 1024
"""Payloads above this travel as blobs, so that the log never fills up with content."""

_HEX = r"^[0-9a-f]{64}$"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class BlobRef(_Model):
    """A content kept beside the log: a name to find it by, a digest to check it with."""

    owner: Literal["parent", "daemon"]
    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")
    """Usually the digest itself, and then left out; another one where that name was taken."""
    sha256: str = Field(pattern=_HEX)
    size: int = Field(ge=0)
    chunks: int = Field(ge=1, le=100_000)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        if isinstance(data, dict) and "name" not in data:
            return {**data, "name": data.get("sha256")}
        return data

    @model_serializer(mode="wrap")
    def _briefly(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain: dict[str, Any] = serialise(self)
        if self.name == self.sha256:
            plain.pop("name", None)
        return plain


class Delta(_Model):
    """A content that keeps both ends of another one: what a parent's next turn adds to its last."""

    base: BlobRef
    prefix: int = Field(ge=0)
    """How many bytes of the base come first."""
    suffix: int = Field(ge=0)
    """How many bytes of the base come last."""
    middle: BlobRef | str
    """What stands between them; a string is taken as UTF-8."""
    sha256: str = Field(pattern=_HEX)
    """Of the whole."""
    size: int = Field(ge=0)


class Payload(_Model):
    """Bytes, one way or another. Text is the bytes' UTF-8; it keeps them exactly."""

    text: str | None = None
    blob: BlobRef | None = None
    delta: Delta | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Payload:
        if sum(way is not None for way in (self.text, self.blob, self.delta)) != 1:
            raise ValueError("give exactly one of text, blob and delta")
        return self


class Message(_Model):
    """What every message has."""

    v: Literal[1] = VERSION
    id: str = Field(default_factory=lambda: secrets.token_hex(8), max_length=128)
    at: float = 0.0
    """Unix time, for people; nothing is decided by it."""


class Parent(_Model):
    """Who asked."""

    id: str = Field(default="", pattern=r"^[A-Za-z0-9_-]{0,128}$")
    host: str = ""
    agent: str = "main"
    heartbeat_s: float | None = None
    """How often the parent says that it is there; None where it does not."""


class BudgetLimit(_Model):
    """The most that may be billed; what is left out is not limited."""

    usd: float | None = Field(default=None, gt=0)
    tokens: int | None = Field(default=None, gt=0)


class Amount(_Model):
    """Tokens and dollars; both are counted, whichever of them is limited."""

    tokens: int = Field(default=0, ge=0)
    """All tokens count: fresh, read, written and output."""
    usd: float = Field(default=0.0, ge=0)
    """0 where the model's price is not known; no dollars are limited then."""

    def __add__(self, other: Amount) -> Amount:
        return Amount(tokens=self.tokens + other.tokens, usd=self.usd + other.usd)


class CallBudget(_Model):
    """What the log keeps of the money set aside for a call, so that whoever takes the run over knows what it cost."""

    key: str
    """Names the reservation in the group's account."""
    spent: Amount
    """By the run, before this call."""
    reserved: Amount


class Requested(Message):
    """Run a fork. The smallest valid one has a snapshot and a directive."""

    kind: Literal["requested"] = "requested"
    snapshot: Payload
    """The parent's request body."""
    directive: str = Field(min_length=1)
    reply: Payload | None = None
    """The assistant message it got: an API response or a content array."""
    headers: dict[str, str] = Field(default_factory=dict)
    query: list[tuple[str, str]] = Field(default_factory=list)
    exact: bool = True
    sent_at: float | None = None
    workspace_id: str | None = None
    notes: list[str] = Field(default_factory=list)
    label: str = "fork"
    query_source: str = "agent:builtin:fork"
    parent: Parent = Field(default_factory=Parent)
    group: str | None = None
    boilerplate: bool = True
    overrides: dict[str, Any] = Field(default_factory=dict)
    agent_id: str | None = None
    reminder: str | None = None
    allow_cache_break: bool = False
    max_turns: int = Field(default=200, ge=1)
    timeout_s: float | None = Field(default=None, gt=0)
    on_parent_gone: Literal["continue", "abort"] = "continue"
    skip_transcript: bool = False
    replacements: dict[str, Any] | None = None
    siblings: int | None = Field(default=None, ge=1)
    """How many children were asked for together, this one included; None where nobody counted."""
    warm_up: Literal["auto", "all_at_once", "leader_first", "prewarm"] = "auto"
    """How the fan-out starts on a prefix that nobody has written yet."""
    budget: BudgetLimit | None = None
    """What this run may cost."""
    group_budget: BudgetLimit | None = None
    """What all runs of the group may cost together; the first to say so sets it."""


class AbortEvent(Message):
    """End the run. Only a parent can say this; it exists only as an event."""

    kind: Literal["abort"] = "abort"
    note: str = ""
    by: str = ""


class Answer(Message):
    """What a parent puts in a run's inbox."""

    kind: Literal["answer", "message", "abort", "alive"]
    text: str = ""
    data: dict[str, Any] = Field(default_factory=dict)


class Daemon(_Model):
    """Which daemon speaks."""

    nkey: str = "local"
    instance: str = ""
    host: str = ""
    name: str = ""


class _Report(Message):
    epoch: int = Field(ge=1)


class FirstCall(_Model):
    """The model call that goes out along with a claim; see `CallStarted`, whose place it takes."""

    model: str = ""
    prefix: str = ""
    decision: dict[str, Any] | None = None


class Claimed(_Report):
    """A daemon took the run; a higher epoch takes it from a lower one."""

    kind: Literal["claimed"] = "claimed"
    daemon: Daemon
    workspace_id: str | None = None
    request: int | None = None
    """Sequence of the request whose delivery is the lease; there are more where somebody asked twice."""
    call: FirstCall | None = None
    """The first call, where nothing stands between it and the claim."""


class CallStarted(_Report):
    """A model call is about to be sent; said before it is, so that no call is paid for that nobody knows of."""

    kind: Literal["call_started"] = "call_started"
    turn: int = Field(ge=0)
    """0 for a pre-warm."""
    attempt: int = Field(default=1, ge=1)
    model: str = ""
    prefix: str = ""
    """Names the prefix that the call's siblings share."""
    decision: dict[str, Any] | None = None
    """On the first call: how the fan-out was started, and by which numbers."""
    budget: CallBudget | None = None
    """Where a budget limits the run: what was set aside for the call."""


def announced_call(report: object) -> CallStarted | None:
    """Return the model call that a report announces: its own, or the first one that goes out with a claim."""
    if isinstance(report, CallStarted):
        return report
    if isinstance(report, Claimed) and report.call is not None:
        return CallStarted(id=report.id, at=report.at, epoch=report.epoch, turn=1, **report.call.model_dump())
    return None


class Turn(_Report):
    """The model's reply to one call: paid for, and never asked for again."""

    kind: Literal["turn"] = "turn"
    turn: int = Field(ge=1)
    content: Payload
    """The content array, as wire bytes."""
    stop_reason: str | None = None
    message_id: str = ""
    usage: dict[str, Any] = Field(default_factory=dict)
    retries: int = 0
    truncated_tool: str | None = None
    """The tool whose call the reply was cut off in; the call is not among the content."""
    cache: dict[str, Any] | None = None
    """On the first turn: what was read, against what should have been."""


class ToolStarted(_Report):
    """A tool is about to run; said before it does, so that nobody runs it twice."""

    kind: Literal["tool_started"] = "tool_started"
    turn: int
    call_id: str
    name: str
    read_only: bool = False


class ToolFinished(_Report):
    """What the tool answered, as the block that goes to the model."""

    kind: Literal["tool_finished"] = "tool_finished"
    turn: int
    call_id: str
    block: Payload
    is_error: bool = False


class Delivered(_Report):
    """Messages of the parent's are about to be shown to the model, behind this turn."""

    kind: Literal["delivered"] = "delivered"
    turn: int
    ids: list[str]
    texts: list[str]


class Asked(_Report):
    """Something only the parent can give; it answers in the run's inbox under the same id."""

    kind: Literal["asked"] = "asked"
    ask_id: str = Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")
    what: Literal["blob"] = "blob"
    payload: Payload
    """The content that could not be had."""
    deadline_s: float = Field(gt=0)


class HandedOver(_Report):
    """The daemon lets go of the run in good order; the next one may take it at once."""

    kind: Literal["handed_over"] = "handed_over"
    reason: str = ""


class Final(_Report):
    """How the run ended; the last report of a run, exactly once."""

    kind: Literal["final"] = "final"
    status: str
    result: Payload
    """The whole result, as JSON text."""


class Presence(Message):
    """A daemon is there."""

    kind: Literal["presence"] = "presence"
    daemon: Daemon
    version: str = ""
    pool: str = "fork"
    slots: int = 0
    running: int = 0
    draining: bool = False
    workspace_id: str | None = None
    sandbox: str = "none"


class Warming(Message):
    """What the fleet knows about one prefix. Times are the NATS server's, which all daemons can tell alike."""

    kind: Literal["warmth"] = "warmth"
    state: Literal["cold", "warming", "warm"]
    by: str = ""
    """The daemon's instance that writes or wrote it."""
    since: float = 0.0
    """When the one who is writing it took the lead."""
    until: float = 0.0
    """When the entry ends, unless somebody reads it before."""
    cached: bool = True
    """Whether the response that began read or wrote it; else nobody has to wait, and nobody may count on it."""


Event: TypeAlias = Annotated[Requested | AbortEvent, Field(discriminator="kind")]
Report: TypeAlias = Annotated[
    Claimed | CallStarted | Turn | ToolStarted | ToolFinished | Delivered | Asked | HandedOver | Final,
    Field(discriminator="kind"),
]

_events: TypeAdapter[Requested | AbortEvent] = TypeAdapter(Event)
_reports: TypeAdapter[
    Claimed | CallStarted | Turn | ToolStarted | ToolFinished | Delivered | Asked | HandedOver | Final
] = TypeAdapter(Report)


def new_run_id() -> str:
    """Return a run id nobody has used."""
    return str(uuid.uuid4())


def encode(message: BaseModel) -> bytes:
    """Return a message as compact JSON; what has its default value is left out, the version never is."""
    plain = message.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    for key in ("v", "kind", "id"):
        if key in type(message).model_fields:
            plain[key] = getattr(message, key)
    return _dumps(plain)


def decode_event(data: bytes) -> Requested | AbortEvent:
    """Read what a parent published.

    Raises:
        BadMessage: It is not an event this version knows.
    """
    return _decode(_events, data, "event")


def decode_report(
    data: bytes,
) -> Claimed | CallStarted | Turn | ToolStarted | ToolFinished | Delivered | Asked | HandedOver | Final:
    """Read what a daemon published.

    Raises:
        BadMessage: It is not a report this version knows.
    """
    return _decode(_reports, data, "report")


T = TypeVar("T")


def _decode(adapter: TypeAdapter[T], data: bytes, what: str) -> T:
    try:
        return adapter.validate_json(data)
    except ValidationError as exc:
        raise BadMessage(f"is not a valid {what}: {_reason(exc)}", fix=_FIX) from exc
    except RecursionError as exc:
        raise BadMessage(f"is not a valid {what}: nested too deeply", fix=_FIX) from exc


_FIX = "See docs/protocol.md for the messages of version 1."


def _reason(exc: ValidationError) -> str:
    first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the message"
    return f"{where}: {first['msg']}"


def _dumps(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
