"""How a fork ended and what it cost, and the notice that tells a parent's model so in its conversation."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from nexofork.core.report import Report, parse_report
from nexofork.core.usage import Usage
from nexofork.errors import BadMessage
from nexofork.run.abort import Abort, AbortReason
from nexofork.run.cache_check import CacheCheck
from nexofork.wire.workspace import WorkspaceWork

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["CallRecord", "ForkResult", "ForkStatus", "in_xml", "task_notification"]

_SUMMARY_CHARS = 80
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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
    ABORTING_NO_DAEMON = "aborting (no daemon)"
    """It was aborted after a daemon took it; that daemon is gone, and no other is there to end the run."""

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self not in (ForkStatus.RUNNING, ForkStatus.ABORTING_NO_DAEMON)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One finished model call."""

    turn: int
    """From 1; 0 for a pre-warm."""
    message_id: str
    usage: Usage
    stop_reason: str | None
    retries: int
    complete: bool = True
    """False for a call that began, and was billed, and whose answer never came to its end."""
    summary: bool = False
    """Whether it summarised the conversation before the turn it is counted under, and is no turn itself."""

    def to_json(self) -> dict[str, Any]:
        """Return the call as JSON values."""
        return {
            "turn": self.turn,
            "message_id": self.message_id,
            "stop_reason": self.stop_reason,
            "retries": self.retries,
            "complete": self.complete,
            "summary": self.summary,
            **self.usage.to_wire(),
        }

    def to_wire(self) -> dict[str, Any]:
        """Return what is not empty, as JSON values."""
        plain = {**self.to_json(), **dict.fromkeys(self.usage.to_wire()), **self.usage.to_compact_wire()}
        plain["complete"] = None if self.complete else False
        plain["summary"] = self.summary or None
        return {key: value for key, value in plain.items() if value is False or value not in (None, "", 0)}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> CallRecord:
        """Read what `to_wire` wrote."""
        return cls(
            turn=data.get("turn", 0),  # a pre-warm is turn 0, which is left out as empty
            message_id=data.get("message_id", ""),
            usage=Usage.from_wire(data),
            stop_reason=data.get("stop_reason"),
            retries=data.get("retries", 0),
            complete=data.get("complete", True),
            summary=data.get("summary", False),
        )


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
    final_text: str = ""
    """The last text the model said, whatever the status."""
    calls: tuple[CallRecord, ...] = ()
    cost_usd: float | None = None
    """None where the model's price is not known; `cost_note` says so."""
    cost_note: str = ""
    cache: CacheCheck | None = None
    """What the first call read, against what it should have."""
    decision: dict[str, Any] | None = None
    """How the fan-out it was part of started: the plan, the numbers behind it, and this child's place in it."""
    tool_uses: int = 0
    duration_ms: int = 0
    """From the first claim to the end, whichever daemons had it; the wait for a daemon is not in it."""
    error: str | None = None
    """Why it failed, with what to do."""
    budget: dict[str, Any] | None = None
    """Which budget ended it, and how far it was: group (empty for its own), unit, limit, spent, held, needed."""
    audit: tuple[dict[str, str], ...] = ()
    """What changed although the fork's filter does not let it: path, and whether it was added, changed or removed."""
    abort: Abort | None = None
    attempts: int = 1
    """How many daemons had the run, the last one included."""
    daemon: str | None = None
    """Who ran it; None in process."""
    sandbox: str | None = None
    """What its commands ran in there: ``bwrap``, or ``none`` for bare; None in process."""
    undelivered: tuple[str, ...] = ()
    """Messages of the parent's that the child never read, because it ended first."""
    workspace: WorkspaceWork | None = None
    """What it did to its git workspace, and how to get it."""

    @property
    def ok(self) -> bool:
        """Whether the fork completed."""
        return self.status is ForkStatus.COMPLETED

    @property
    def turns(self) -> int:
        """How many replies the model gave."""
        return sum(call.complete and call.turn > 0 and not call.summary for call in self.calls)

    @property
    def usage(self) -> Usage:
        """The sum over all calls that were billed."""
        return sum((call.usage for call in self.calls), Usage())

    @property
    def report(self) -> Report:
        """The final text, read as a report."""
        return parse_report(self.final_text)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values, in the form the command line prints."""
        return {
            "run_id": self.run_id,
            "label": self.label,
            "directive": self.directive,
            "model": self.model,
            "status": self.status.value,
            "end": self.end,
            "final_text": self.final_text,
            "report": self.report.to_json(),
            "usage": self.usage.to_wire(),
            "calls": [call.to_json() for call in self.calls],
            "cost_usd": self.cost_usd,
            "cost_note": self.cost_note,
            "expected_read": self.cache.expected_read if self.cache else None,
            "miss_cause": self.cache.cause if self.cache else None,
            "cache": asdict(self.cache) if self.cache else None,
            "decision": self.decision,
            "budget": self.budget,
            "audit": list(self.audit),
            "attempts": self.attempts,
            "turns": self.turns,
            "tool_uses": self.tool_uses,
            "duration_ms": self.duration_ms,
            "daemon": self.daemon,
            "sandbox": self.sandbox,
            "workspace": self.workspace.model_dump(mode="json") if self.workspace else None,
            "abort": asdict(self.abort) if self.abort else None,
            "error": self.error,
            "undelivered": list(self.undelivered),
        }

    def to_wire(self) -> bytes:
        """Return the result as compact JSON: nothing that can be worked out, nothing that is empty."""
        plain = {
            "status": self.status.value,
            **{key: getattr(self, key) for key in _PLAIN},
            "calls": [call.to_wire() for call in self.calls],
            "cache": self.cache.to_wire() if self.cache else None,
            "abort": asdict(self.abort) if self.abort else None,
            "audit": list(self.audit),
            "undelivered": list(self.undelivered),
            "workspace": _compact(self.workspace),
        }
        kept = {key: value for key, value in plain.items() if value != _PLAIN.get(key) and value not in (None, [])}
        return json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")

    @classmethod
    def from_wire(cls, data: bytes) -> ForkResult:
        """Read what `to_wire` wrote; what a later version added is ignored.

        Raises:
            BadMessage: It is not a result.
        """
        try:
            plain = json.loads(data)
            cache, abort, work = plain.get("cache"), plain.get("abort"), plain.get("workspace")
            calls = tuple(CallRecord.from_wire(call) for call in plain.get("calls", []))
            return cls(
                **{key: plain.get(key, default) for key, default in _PLAIN.items()},
                status=ForkStatus(plain["status"]),
                calls=calls,
                cache=_check(cache, calls),
                audit=tuple(dict(change) for change in plain.get("audit", [])),
                abort=Abort(reason=AbortReason(abort["reason"]), note=abort["note"]) if abort else None,
                undelivered=tuple(map(str, plain.get("undelivered", ()))),
                workspace=WorkspaceWork.model_validate(work) if work else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as exc:
            raise BadMessage(f"is not a fork's result ({exc!r})", fix="Update nexofork.") from exc


def _compact(work: WorkspaceWork | None) -> dict[str, Any] | None:
    return work.model_dump(mode="json", exclude_defaults=True) if work else None


def _check(cache: Mapping[str, Any] | None, calls: Sequence[CallRecord]) -> CacheCheck | None:
    """Read the verdict on the first turn, which goes by the last attempt at it."""
    first = [call.usage for call in calls if call.turn == 1]
    return None if cache is None else CacheCheck.from_wire(cache, first[-1] if first else Usage())


_PLAIN: dict[str, Any] = {
    "run_id": "",
    "label": "fork",
    "directive": "",
    "model": "",
    "end": "",
    "final_text": "",
    "cost_usd": None,
    "cost_note": "",
    "decision": None,
    "tool_uses": 0,
    "duration_ms": 0,
    "error": None,
    "budget": None,
    "attempts": 1,
    "daemon": None,
    "sandbox": None,
}


_STATUS = {
    ForkStatus.COMPLETED: "completed",
    ForkStatus.ABORTED: "killed",
    ForkStatus.TIMED_OUT: "timeout",
}


def task_notification(result: ForkResult) -> str:
    """Return the ``<task-notification>`` of a finished child; everything in it is escaped, or a question mark."""
    return (
        "<task-notification>\n"
        f"<task-id>{_escaped(result.run_id)}</task-id>\n"
        f"<status>{_STATUS.get(result.status, 'failed')}</status>\n"
        f"<summary>{_escaped(_summary(result))}</summary>\n"
        f"<result>{_escaped(result.final_text or result.error or '')}</result>\n"
        f"<usage><total_tokens>{_total(result.usage)}</total_tokens><tool_uses>{result.tool_uses}</tool_uses>"
        f"<duration_ms>{result.duration_ms}</duration_ms></usage>\n"
        "</task-notification>"
    )


def in_xml(text: str) -> str:
    """Return a text as XML can hold it: control characters and halves of surrogate pairs are question marks."""
    return _NOT_XML.sub("?", text)


def _escaped(text: str) -> str:
    return escape(in_xml(text))


def _summary(result: ForkResult) -> str:
    text = result.final_text if result.ok else (result.error or result.final_text)
    lines = text.strip().splitlines()
    first = lines[0].strip() if lines else ""
    return first[:_SUMMARY_CHARS] or ("completed" if result.ok else result.status.value)


def _total(usage: Usage) -> int:
    return usage.prompt_tokens + usage.output_tokens
