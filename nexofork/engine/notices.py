"""Tell a parent's model that a child is done, in the form it can read in its conversation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from nexofork.engine.result import ForkResult, ForkStatus

if TYPE_CHECKING:
    from nexofork.core.usage import Usage

__all__ = ["in_xml", "task_notification"]

_SUMMARY_CHARS = 80
_STATUS = {
    ForkStatus.COMPLETED: "completed",
    ForkStatus.ABORTED: "killed",
    ForkStatus.TIMED_OUT: "timeout",
}
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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
