"""Tell a parent's model that a child is done, in the form it can read in its conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from nexofork.engine.result import ForkResult, ForkStatus

if TYPE_CHECKING:
    from nexofork.core.usage import Usage

__all__ = ["task_notification"]

_SUMMARY_CHARS = 80
_STATUS = {
    ForkStatus.COMPLETED: "completed",
    ForkStatus.ABORTED: "killed",
    ForkStatus.TIMED_OUT: "timeout",
}


def task_notification(result: ForkResult) -> str:
    """Return the ``<task-notification>`` of a finished child; everything in it is escaped."""
    return (
        "<task-notification>\n"
        f"<task-id>{escape(result.run_id)}</task-id>\n"
        f"<status>{_STATUS.get(result.status, 'failed')}</status>\n"
        f"<summary>{escape(_summary(result))}</summary>\n"
        f"<result>{escape(result.final_text or result.error or '')}</result>\n"
        f"<usage><total_tokens>{_total(result.usage)}</total_tokens><tool_uses>{result.tool_uses}</tool_uses>"
        f"<duration_ms>{result.duration_ms}</duration_ms></usage>\n"
        "</task-notification>"
    )


def _summary(result: ForkResult) -> str:
    text = result.final_text if result.ok else (result.error or result.final_text)
    lines = text.strip().splitlines()
    first = lines[0].strip() if lines else ""
    return first[:_SUMMARY_CHARS] or ("completed" if result.ok else result.status.value)


def _total(usage: Usage) -> int:
    return usage.prompt_tokens + usage.output_tokens
