"""A trace goes on from one process to the next, and nothing that a header holds does harm."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from nexofork.telemetry.logs import TraceFields
from nexofork.telemetry.spans import continued, process_span, trace_headers, traced

if TYPE_CHECKING:
    import pytest

CONTEXT = SpanContext(trace_id=0xABC, span_id=0xDEF, is_remote=False, trace_flags=TraceFlags(1))
TRACEPARENT = f"00-{0xABC:032x}-{0xDEF:016x}-01"


def test_a_trace_is_carried_in_headers() -> None:
    """As W3C Trace Context, and only that."""
    with trace.use_span(NonRecordingSpan(CONTEXT)):
        headers = trace_headers()

    assert headers == {"traceparent": TRACEPARENT}
    with continued(headers):
        assert trace.get_current_span().get_span_context().trace_id == 0xABC
    assert trace_headers() == {}


def test_a_message_without_a_trace_leaves_the_current_one() -> None:
    """A tool that a daemon without telemetry asks for stays in the parent's own trace."""
    with trace.use_span(NonRecordingSpan(CONTEXT)), continued({"other": "header"}):
        assert trace.get_current_span().get_span_context() == CONTEXT


@given(headers=st.dictionaries(st.sampled_from(["traceparent", "tracestate", "x"]), st.text(max_size=30)))
def test_a_header_that_is_no_trace_is_ignored(headers: dict[str, str]) -> None:
    """It comes from outside, and may be anything; what is shorter than a trace context is none."""
    with continued(headers), process_span("fork", "run-1", headers, attempt=1):
        assert not trace.get_current_span(traced(headers)).get_span_context().is_valid
        assert trace_headers() == {}


def test_log_lines_name_trace_and_run(caplog: pytest.LogCaptureFixture) -> None:
    """Also those that say nothing of either; a run that a line names itself stays."""
    caplog.handler.addFilter(fields := TraceFields())
    log = logging.getLogger("nexofork.test")
    try:
        with process_span("fork", "run-1", {"traceparent": TRACEPARENT}, attempt=1):
            log.warning("inside")
            log.warning("named", extra={"run_id": "run-2"})
        log.warning("outside")
    finally:
        caplog.handler.removeFilter(fields)

    said = [(vars(record)["trace_id"], vars(record)["run_id"]) for record in caplog.records]
    assert said == [(f"{0xABC:032x}", "run-1"), (f"{0xABC:032x}", "run-2"), ("", "")]
