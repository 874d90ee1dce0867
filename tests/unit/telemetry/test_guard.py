"""The words of errors stay out of what is exported, also in spans that other libraries make."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from nexofork.telemetry.sdk import WordlessExporter

SECRET = "xyzzy-7421"


def test_an_error_is_exported_without_its_words() -> None:
    """Its kind, its place in the trace and all else come through."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(WordlessExporter(kept)))
    tracer = provider.get_tracer("another-library")

    with (
        pytest.raises(ValueError, match=SECRET),
        tracer.start_as_current_span("outer") as outer,
        tracer.start_as_current_span("inner", attributes={"error.type": "-32603"}),
    ):
        raise ValueError(f"cannot do {SECRET}")

    inner = kept.get_finished_spans()[0]
    assert SECRET not in "".join(span.to_json() for span in kept.get_finished_spans())
    assert (inner.name, inner.status.status_code) == ("inner", StatusCode.ERROR)
    assert inner.parent is not None
    assert inner.parent.span_id == outer.get_span_context().span_id
    assert (inner.attributes or {})["error.type"] == "-32603"
    assert (inner.events[0].attributes or {})["exception.type"] == "ValueError"
