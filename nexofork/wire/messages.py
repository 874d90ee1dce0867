"""The messages of a run: what a parent asks for and what a daemon reports.

Decoders ignore fields they do not know and refuse kinds and versions they do not know; what a daemon must not ignore,
a request names (`nexofork.wire.needs`). Every message carries an id of its own: after a publish whose answer was lost,
the writer finds out by it whether the message had landed.
"""

from __future__ import annotations

import json
import uuid
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from nexofork.errors import BadMessage, NewerMessage
from nexofork.wire.contents import (
    REQUEST_VERSION,
    VERSION,
    Amount,
    BlobRef,
    BudgetLimit,
    CallBudget,
    Delta,
    FilterSpec,
    Message,
    Payload,
    WireModel,
)
from nexofork.wire.parent_tools import ParentTools
from nexofork.wire.permissions import PermissionPolicy
from nexofork.wire.request import Parent, Requested
from nexofork.wire.workspace import TreeState  # noqa: TC001 - the models are built with it

__all__ = [
    "INLINE_BYTES",
    "REQUEST_VERSION",
    "VERSION",
    "AbortEvent",
    "Amount",
    "Answer",
    "AnyReport",
    "Asked",
    "BlobRef",
    "BudgetLimit",
    "CallBudget",
    "CallStarted",
    "Checkpoint",
    "Claimed",
    "Compacted",
    "Daemon",
    "Delivered",
    "Delta",
    "Event",
    "FilterSpec",
    "Final",
    "FirstCall",
    "HandedOver",
    "Message",
    "Parent",
    "ParentTools",
    "Payload",
    "PermissionPolicy",
    "Permitted",
    "Presence",
    "Report",
    "Requested",
    "ToolFinished",
    "ToolStarted",
    "Turn",
    "Warming",
    "WorkspaceReady",
    "announced_call",
    "answered_call",
    "decode_event",
    "decode_report",
    "encode",
    "new_run_id",
]

INLINE_BYTES = 32 * 1024
"""Payloads above this travel as blobs, so that the log never fills up with content."""


class AbortEvent(Message):
    """End the run. Only a parent can say this; it exists only as an event."""

    kind: Literal["abort"] = "abort"
    note: str = ""
    """Why; the child's result says it."""
    by: str = ""
    """Who, for people."""


class Answer(Message):
    """What a parent puts in a run's inbox."""

    kind: Literal["answer", "message", "abort", "alive"]
    """`alive` is a parent's heartbeat; `abort` is for a log that is full."""
    text: str = ""
    """For a message, what the child reads; for a permission, a note for the model."""
    data: dict[str, Any] = Field(default_factory=dict)
    """For an answer: what was asked for."""


class Daemon(WireModel):
    """Which daemon speaks."""

    nkey: str = "local"
    """Its public key; `local` on a server without accounts."""
    instance: str = ""
    """Names this start of it."""
    host: str = ""
    """Its host's name."""
    name: str = ""
    """What people call it."""


class _Report(Message):
    epoch: int = Field(ge=1)


class FirstCall(WireModel):
    """The model call that goes out along with a claim; see `CallStarted`, whose place it takes."""

    model: str = ""
    """The model that is called."""
    prefix: str = ""
    """Names the prefix that the call's siblings share."""
    decision: dict[str, Any] | None = None
    """How the fan-out was started, and by which numbers."""


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
    """Which attempt of the turn's call."""
    model: str = ""
    """The model that is called."""
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
    """How many attempts came before the one that was answered."""
    truncated_tool: str | None = None
    """The tool whose call the reply was cut off in; the call is not among the content."""
    cache: dict[str, Any] | None = None
    """On the first turn: what was read, against what should have been."""
    notes: list[str] = Field(default_factory=list)
    """On the first turn: what the daemon told the child behind the request's own notes."""


class ToolStarted(_Report):
    """A tool is about to run; said before it does, so that nobody runs it twice."""

    kind: Literal["tool_started"] = "tool_started"
    turn: int
    call_id: str
    name: str
    read_only: bool = False
    """Whether it changes nothing, so that whoever takes the run over may run it again."""
    bubbled: bool = False
    """Whether the parent runs it, once per question: whoever takes the run over may ask again."""


class ToolFinished(_Report):
    """What the tool answered, as the block that goes to the model."""

    kind: Literal["tool_finished"] = "tool_finished"
    turn: int
    call_id: str
    block: Payload
    """The ``tool_result``, as wire bytes."""
    is_error: bool = False
    """Whether it says so."""


class Delivered(_Report):
    """Messages of the parent's are about to be shown to the model, behind this turn."""

    kind: Literal["delivered"] = "delivered"
    turn: int
    ids: list[str]
    """The names they have in the inbox."""
    texts: list[str]
    """Empty where the run keeps no transcript."""


class Compacted(_Report):
    """The child's own turns were summarised because they no longer fit; said before the summary is used."""

    kind: Literal["compacted"] = "compacted"
    turn: int = Field(ge=1)
    """Behind which turn; what stands between the directive and here is left out of all later requests."""
    note: Payload
    """What stands in its place, as text: the summary, and how many turns it stands for."""
    left_out: int = 0
    """How many of the turns, the newest ones, did not fit the call that wrote the summary either."""
    attempt: int = Field(default=1, ge=1)
    """Which attempt of the next turn's call wrote it."""
    message_id: str = ""
    usage: dict[str, Any] = Field(default_factory=dict)
    stop_reason: str | None = None


def answered_call(reply: Turn | Compacted) -> tuple[int, int]:
    """Return which call a reply answers: its turn, and the attempt."""
    if isinstance(reply, Turn):
        return reply.turn, reply.retries + 1
    return reply.turn + 1, reply.attempt


class Asked(_Report):
    """Something only the parent can give; it answers in the run's inbox under the same id."""

    kind: Literal["asked"] = "asked"
    ask_id: str = Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")
    """For a tool call it is made from the call, so that whoever takes the run over asks the same question."""
    what: Literal["blob", "tool", "permission"] = "blob"
    """A content that is gone, a tool of the parent's, or whether a call may run."""
    payload: Payload
    """The content that could not be had; else the arguments of the tool call, as a JSON object."""
    deadline_s: float = Field(gt=0)
    """How long the answer is waited for."""
    turn: int = 0
    call_id: str = ""
    name: str = ""
    """The tool, by the name the parent's schema gives it; for a permission by the name it has here, as rules do."""
    rules: list[str] = Field(default_factory=list)
    """For a permission: what an answer that is remembered would allow, or deny, for the rest of the run."""


class Permitted(_Report):
    """Whether a call that was asked for may run; said before it does, so that whoever takes the run over knows."""

    kind: Literal["permitted"] = "permitted"
    ask_id: str = Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")
    """The question."""
    turn: int = 0
    call_id: str = ""
    name: str = ""
    allowed: bool = False
    """Whether the call runs."""
    how: Literal["answer", "deadline"] = "answer"
    """Whether somebody answered, or nobody in time."""
    note: str = ""
    """What the model is told with a denial."""
    rules: list[str] = Field(default_factory=list)
    """What is remembered of it for the rest of the run."""
    by: str = ""
    """Who answered."""


class WorkspaceReady(_Report):
    """The run's workspace is set up; said before the first turn, because its notice is part of the prompt."""

    kind: Literal["workspace"] = "workspace"
    root: str
    """Where it is now."""
    notice: str = ""
    """What the child is told of it, behind its directive: the same on every daemon, whatever the root is there."""
    mounted: bool = False
    """Whether the child sees it at the parent's own paths: then the notice says that they are right as they stand."""


class Checkpoint(_Report):
    """What the workspace is behind a turn that may have changed it; the answers before it are in force."""

    kind: Literal["checkpoint"] = "checkpoint"
    turn: int = Field(ge=0)
    state: TreeState
    """What the repository was."""
    bundle: BlobRef | None = None
    """What it needs beyond the checkpoint before it; None where nothing is new."""
    problem: str = ""
    """What of the child's work is not in it, in words; whoever takes the run over tells the child."""


class HandedOver(_Report):
    """The daemon lets go of the run in good order; the next one may take it at once."""

    kind: Literal["handed_over"] = "handed_over"
    reason: str = ""
    """Why, for people."""


class Final(_Report):
    """How the run ended; the last report of a run, exactly once."""

    kind: Literal["final"] = "final"
    status: str
    """`completed`, `failed`, `aborted`, `timed_out`, `max_turns`, `over_budget` or `refused`."""
    result: Payload
    """The whole result, as JSON text."""


class Presence(Message):
    """A daemon is there."""

    kind: Literal["presence"] = "presence"
    daemon: Daemon
    version: str = ""
    """Of nexofork."""
    pool: str = "fork"
    """Where it takes work."""
    slots: int = Field(default=0, ge=0, le=100_000)
    """How many runs it takes at once; 0 while it drains."""
    running: int = Field(default=0, ge=0, le=100_000)
    """How many it has."""
    draining: bool = False
    """Whether it takes no more."""
    workspace_id: str | None = None
    sandbox: str = "none"
    """What commands run in: `bwrap`, or `none` where they run bare."""
    reads: int = Field(default=1, ge=1, le=1_000_000)
    """The newest version of a request that it can run."""
    knows: list[str] = Field(default_factory=list, max_length=1_000)
    """What a request may need of it."""
    reads_mounted: bool = False
    """Whether it goes on with a child that sees its checkout at the parent's paths as that child was told, or leaves
    the run to a daemon that can."""


class Warming(Message):
    """What the fleet knows about one prefix. Times are the NATS server's, which all daemons can tell alike."""

    kind: Literal["warmth"] = "warmth"
    state: Literal["cold", "warming", "warm"]
    """Whether nobody has written it, somebody is writing it, or it can be read."""
    by: str = ""
    """The daemon's instance that writes or wrote it."""
    since: float = 0.0
    """When the one who is writing it took the lead."""
    until: float = 0.0
    """When the entry ends, unless somebody reads it before."""
    cached: bool = True
    """Whether the response that began read or wrote it; else nobody has to wait, and nobody may count on it."""


Event: TypeAlias = Annotated[Requested | AbortEvent, Field(discriminator="kind")]
AnyReport: TypeAlias = (
    Claimed
    | CallStarted
    | Turn
    | ToolStarted
    | ToolFinished
    | Delivered
    | Compacted
    | Asked
    | Permitted
    | WorkspaceReady
    | Checkpoint
    | HandedOver
    | Final
)
Report: TypeAlias = Annotated[AnyReport, Field(discriminator="kind")]

_events: TypeAdapter[Requested | AbortEvent] = TypeAdapter(Event)
_reports: TypeAdapter[AnyReport] = TypeAdapter(Report)


def new_run_id() -> str:
    """Return a run id nobody has used."""
    return str(uuid.uuid4())


def encode(message: BaseModel) -> bytes:
    """Return a message as compact JSON; what has its default value is left out, the version never is.

    Raises:
        BadMessage: It holds text that is not Unicode, which nobody could read.
    """
    plain = message.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    for key in ("v", "kind", "id"):
        if key in type(message).model_fields:
            plain[key] = getattr(message, key)
    return _dumps(plain)


def decode_event(data: bytes) -> Requested | AbortEvent:
    """Read what a parent published.

    Raises:
        NewerMessage: It is of a version that this one does not know.
        BadMessage: It is not an event.
    """
    return _decode(_events, data, "event", newest=REQUEST_VERSION)


def decode_report(data: bytes) -> AnyReport:
    """Read what a daemon published.

    Raises:
        NewerMessage: It is of a version that this one does not know.
        BadMessage: It is not a report.
    """
    return _decode(_reports, data, "report", newest=VERSION)


T = TypeVar("T")


def _decode(adapter: TypeAdapter[T], data: bytes, what: str, *, newest: int) -> T:
    try:
        return adapter.validate_json(data)
    except ValidationError as exc:
        if (version := _version(data)) > newest:
            raise NewerMessage(what, version=version, newest=newest) from exc
        raise BadMessage(f"is not a valid {what}: {_reason(exc)}", fix=_FIX) from exc
    except RecursionError as exc:
        raise BadMessage(f"is not a valid {what}: nested too deeply", fix=_FIX) from exc


_FIX = "See docs/protocol.md for the messages."


class _Stamp(WireModel):
    v: int = Field(default=0, le=1_000_000, strict=True)


def _version(data: bytes) -> int:
    """Return the version that a message which cannot be read says it has; 0 where it says none."""
    try:
        return _Stamp.model_validate_json(data).v
    except (ValidationError, RecursionError):
        return 0


def _reason(exc: ValidationError) -> str:
    first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the message"
    return f"{where}: {first['msg']}"


def _dumps(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as exc:
        raise BadMessage("holds text that is not Unicode", fix=_FIX) from exc
