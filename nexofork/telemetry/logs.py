"""Tie log lines to traces and runs."""

from __future__ import annotations

import logging

from opentelemetry import trace

from nexofork.telemetry.spans import current_run

__all__ = ["TraceFields"]


class TraceFields(logging.Filter):
    """Gives each record ``trace_id``, ``span_id`` and ``run_id``, empty where there is none; lets all of them pass.

    Add it to a handler, not to a logger: a logger's filters do not see what its children log.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields."""
        context = trace.get_current_span().get_span_context()
        record.trace_id = trace.format_trace_id(context.trace_id) if context.is_valid else ""
        record.span_id = trace.format_span_id(context.span_id) if context.is_valid else ""
        if not hasattr(record, "run_id"):
            record.run_id = current_run.get()
        return True
