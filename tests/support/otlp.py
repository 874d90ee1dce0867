"""A collector for tests: takes OTLP over HTTP, as a real one would, and keeps everything."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

__all__ = ["Collector", "ExportedSpan", "collector"]


@dataclass(frozen=True, kw_only=True)
class ExportedSpan:
    """A span as it arrived."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    service: str
    process: str
    """Its ``service.instance.id``, or the service's name where it has none."""
    attributes: dict[str, Any]
    events: dict[str, dict[str, Any]]
    status: str
    """The words of the status."""


@dataclass
class Collector:
    """What arrived."""

    url: str = ""
    raw: list[bytes] = field(default_factory=list)
    spans: list[ExportedSpan] = field(default_factory=list)
    metrics: set[str] = field(default_factory=set)

    @property
    def env(self) -> dict[str, str]:
        """The environment of a process that exports here, at once."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_BSP_SCHEDULE_DELAY": "20",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
        }

    def named(self, name: str) -> list[ExportedSpan]:
        """All spans of a name."""
        return [span for span in list(self.spans) if span.name == name]

    def one(self, name: str, service: str = "") -> ExportedSpan:
        """The only span of a name, of that service if one is given."""
        (span,) = (span for span in self.named(name) if not service or span.service == service)
        return span

    def parent_of(self, span: ExportedSpan) -> ExportedSpan | None:
        """The span that another was started in; None for the first of a trace."""
        if not span.parent_id:
            return None
        (parent,) = (other for other in list(self.spans) if other.span_id == span.parent_id)
        return parent

    def take(self, path: str, body: bytes) -> None:
        """Keep an export."""
        self.raw.append(body)
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                about = _values(resource.resource.attributes)
                self.spans += [_span(span, about) for scope in resource.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            for measured in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.metrics |= {metric.name for scope in measured.scope_metrics for metric in scope.metrics}


def _span(span: Any, about: dict[str, Any]) -> ExportedSpan:
    return ExportedSpan(
        name=span.name,
        kind=span.kind,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        service=about["service.name"],
        process=about.get("service.instance.id", about["service.name"]),
        attributes=_values(span.attributes),
        events={event.name: _values(event.attributes) for event in span.events},
        status=span.status.message,
    )


def _values(attributes: Sequence[KeyValue]) -> dict[str, Any]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _value(value: AnyValue) -> Any:
    if value.HasField("array_value"):
        return [_value(one) for one in value.array_value.values]
    return getattr(value, value.WhichOneof("value") or "string_value")


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector that ends with the test."""
    kept = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kept.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
