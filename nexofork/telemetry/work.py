"""Trace and measure the work of a fork: its model calls and its tools."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry.trace import SpanKind

from nexofork.telemetry import metrics, names
from nexofork.telemetry.names import exportable_text
from nexofork.telemetry.spans import error_name, message, open_span, set_content, set_error, usage_attributes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.trace import Span

    from nexofork.core.reply import Reply

__all__ = ["ChatTrace", "ToolTrace", "chat_span", "tool_span"]


class ChatTrace:
    """One model call, however often it is sent."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def began(self, model: str, message_id: str) -> None:
        """Say that a response began."""
        answered = {names.RESPONSE_MODEL: exportable_text(model), names.RESPONSE_ID: exportable_text(message_id)}
        self._span.set_attributes(answered)

    def retried(self, error: Exception, delay_s: float) -> None:
        """Say that an attempt failed and is made again."""
        self._span.add_event(names.CALL_RETRIED, {names.ERROR_TYPE: type(error).__name__, names.DELAY_S: delay_s})

    def finished(self, reply: Reply, *, attempts: int) -> None:
        """Say what came of it."""
        self._span.set_attributes(
            {
                names.ATTEMPTS: attempts,
                names.FINISH_REASONS: [exportable_text(reply.stop_reason or "")],
                **usage_attributes(reply.usage),
            }
        )
        set_content(self._span, names.OUTPUT_MESSAGES, [message("assistant", reply.text)])


@contextmanager
def chat_span(model: str, *, run_id: str, turn: int, summary: bool) -> Iterator[ChatTrace]:
    """Trace a model call as ``chat {model}``, and measure it."""
    attributes = {
        names.OPERATION: names.CHAT,
        names.PROVIDER: "anthropic",
        names.REQUEST_MODEL: model,
        names.CONVERSATION_ID: run_id,
        names.TURN: turn,
        **({names.SUMMARY: True} if summary else {}),
    }
    started, error = time.monotonic(), ""
    try:
        with open_span(f"{names.CHAT} {model}", attributes, kind=SpanKind.CLIENT) as span:
            yield ChatTrace(span)
    except BaseException as exc:
        error = error_name(exc)
        raise
    finally:
        metrics.call_ended(model, time.monotonic() - started, error=error)


class ToolTrace:
    """One tool call."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.error = ""

    def answered(self, content: object, *, is_error: bool) -> None:
        """Say what came of it."""
        if is_error:
            self.error = "tool_error"
            set_error(self._span, self.error)
        set_content(self._span, names.TOOL_RESULT, content)


@contextmanager
def tool_span(tool: str, call_id: str, *, run_id: str, arguments: object) -> Iterator[ToolTrace]:
    """Trace a tool call as ``execute_tool {tool}``, and measure it."""
    attributes = {
        names.OPERATION: names.EXECUTE_TOOL,
        names.TOOL_NAME: tool,
        names.TOOL_CALL_ID: call_id,
        names.TOOL_TYPE: "function",
        names.CONVERSATION_ID: run_id,
    }
    started, error = time.monotonic(), ""
    try:
        with open_span(f"{names.EXECUTE_TOOL} {tool}", attributes) as span:
            set_content(span, names.TOOL_ARGUMENTS, arguments)
            traced = ToolTrace(span)
            yield traced
        error = traced.error
    except BaseException as exc:
        error = error_name(exc)
        raise
    finally:
        metrics.tool_ended(tool, time.monotonic() - started, error=error)
