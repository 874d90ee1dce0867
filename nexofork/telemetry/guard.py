"""Keep words that may quote prompts, arguments or results out of what is exported, whoever made the span.

Our own spans hold none unless that is switched on. Libraries beside us write errors out: an MCP client puts the
server's words into its span.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.trace import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace.export import SpanExportResult

__all__ = ["WordlessExporter"]

_WORDS = frozenset(("exception.message", "exception.stacktrace"))


class WordlessExporter(SpanExporter):
    """Another exporter, given spans without the words of errors."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export the spans without their words."""
        return self._inner.export([_wordless(span) for span in spans])

    def shutdown(self) -> None:
        """End the inner one."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the inner one."""
        return self._inner.force_flush(timeout_millis)


def _wordless(span: ReadableSpan) -> ReadableSpan:
    if not span.status.description and not any(_WORDS & set(event.attributes or ()) for event in span.events):
        return span
    return ReadableSpan(
        name=span.name,
        context=span.get_span_context(),
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=[_wordless_event(event) for event in span.events],
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _wordless_event(event: Event) -> Event:
    kept = {key: value for key, value in (event.attributes or {}).items() if key not in _WORDS}
    return Event(event.name, kept, event.timestamp)
