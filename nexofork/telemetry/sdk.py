"""Set up the SDK for a process of ours: a daemon, or a command.

Where nothing is configured nothing is exported; a command does not even import this. An SDK that the program has set up
before is kept. The end waits a little for what is not exported yet, and not for a collector that does not answer.

Text that may quote prompts, arguments or results is kept out of every exported span. Our own spans hold none unless
that is switched on, but libraries write errors out: an MCP client puts the server's words into its span.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    ConsoleMetricExporter,
    InMemoryMetricReader,
    MetricReader,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace import Status

from nexofork import __version__
from nexofork.errors import ForkRefused
from nexofork.telemetry import names
from nexofork.telemetry.prometheus import exposition
from nexofork.telemetry.settings import content_wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from opentelemetry.sdk.trace.export import SpanExportResult

    from nexofork.telemetry.settings import Exporter, TelemetrySettings

__all__ = ["Telemetry", "WordlessExporter", "open_telemetry"]

log = logging.getLogger(__name__)

_CLOSING_S = 2.0
_WORDS = frozenset(("exception.message", "exception.stacktrace"))


class Telemetry:
    """What a process can show of itself."""

    def __init__(self, reader: InMemoryMetricReader | None = None, labels: Mapping[str, str] | None = None) -> None:
        self._reader = reader
        self._labels = dict(labels or {})

    def exposition(self) -> str:
        """Return all metrics as Prometheus reads them; nothing where they are not collected."""
        return exposition(self._reader.get_metrics_data(), self._labels) if self._reader else ""


@contextmanager
def open_telemetry(
    settings: TelemetrySettings,
    *,
    service: str,
    attributes: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    scraped: bool = False,
) -> Iterator[Telemetry]:
    """Export what the settings say, until the end of the block.

    Args:
        settings: Where to.
        service: The process's ``service.name``, unless OTEL_SERVICE_NAME says another.
        attributes: What else describes the process, for what is exported.
        labels: The same for what is scraped.
        scraped: Whether metrics are collected for `Telemetry.exposition`.

    Raises:
        ForkRefused: The exporter that the settings name is not installed.
    """
    if settings.traces == settings.metrics == "none" and not scraped:
        yield Telemetry()
        return
    described = {names.SERVICE_NAME: service, names.SERVICE_VERSION: __version__, **(attributes or {})}
    # What the environment says (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES) comes before what we say.
    resource = Resource(described).merge(Resource.create())
    if str(resource.attributes.get(names.SERVICE_NAME)).startswith("unknown_service"):
        resource = resource.merge(Resource({names.SERVICE_NAME: service}))
    closing: list[Callable[[], object]] = []
    reader = None
    try:
        if settings.traces != "none":
            closing.append(_trace(resource, _span_exporter(settings.traces)))
        if settings.metrics != "none" or scraped:
            reader, close = _measure(resource, settings.metrics, scraped=scraped)
            closing.append(close)
        yield Telemetry(reader, labels)
    finally:
        _close(closing)


def _trace(resource: Resource, exporter: SpanExporter) -> Callable[[], object]:
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        log.info("traces go where this process set them up to go")
        return _nothing
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter if content_wanted() else WordlessExporter(exporter)))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _measure(
    resource: Resource, exporter: Exporter, *, scraped: bool
) -> tuple[InMemoryMetricReader | None, Callable[[], object]]:
    if isinstance(metrics.get_meter_provider(), MeterProvider):
        log.info("metrics go where this process set them up to go")
        return None, _nothing
    reader = InMemoryMetricReader() if scraped else None
    readers: list[MetricReader] = [] if exporter == "none" else [_metric_reader(exporter)]
    if reader is not None:
        readers.append(reader)
    provider = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
    metrics.set_meter_provider(provider)
    return reader, provider.shutdown


def _span_exporter(exporter: Exporter) -> SpanExporter:
    if exporter == "console":
        return ConsoleSpanExporter()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as exc:
        raise _not_installed() from exc
    return OTLPSpanExporter()


def _metric_reader(exporter: Exporter) -> MetricReader:
    if exporter == "console":
        return PeriodicExportingMetricReader(ConsoleMetricExporter())
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError as exc:
        raise _not_installed() from exc
    return PeriodicExportingMetricReader(OTLPMetricExporter())


def _not_installed() -> ForkRefused:
    return ForkRefused(
        "The environment asks for OpenTelemetry export (OTEL_*), and its exporter is not installed. "
        "Install it with `pip install 'nexofork[otlp]'`, or set OTEL_SDK_DISABLED=true."
    )


def _nothing() -> None:
    pass


def _close(closing: Iterable[Callable[[], object]]) -> None:
    """Shut down, giving up on what cannot be exported soon: a collector that is away must not hold a process."""
    workers = [threading.Thread(target=one, daemon=True, name="telemetry-shutdown") for one in closing]
    deadline = time.monotonic() + _CLOSING_S
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
    if any(worker.is_alive() for worker in workers):
        log.warning("telemetry was not exported to its end: the collector did not answer within %g s", _CLOSING_S)


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
