"""Say metrics in the text format that Prometheus scrapes.

Names are made as OpenTelemetry's collectors make them, so that a query reads the same however its data came.
Invariant: a metric's name appears in one block, and every line parses whatever its labels hold.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics.export import AggregationTemporality, Histogram, HistogramDataPoint, NumberDataPoint, Sum

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opentelemetry.sdk.metrics.export import Metric, MetricsData

__all__ = ["CONTENT_TYPE", "exposition", "metric_name"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_UNITS = {"s": "seconds", "By": "bytes", "ms": "milliseconds"}
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]+")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


def exposition(data: MetricsData | None, constant: Mapping[str, str] | None = None) -> str:
    """Return all metrics.

    Args:
        data: What a reader collected, cumulative.
        constant: Labels that every sample gets.
    """
    found: dict[str, list[str]] = {}
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                lines = _block(metric, constant or {})
                if lines:
                    found.setdefault(metric_name(metric), lines)
    return "".join(f"{line}\n" for name in sorted(found) for line in found[name])


def metric_name(metric: Metric) -> str:
    """Return what Prometheus calls a metric."""
    unit = "" if (metric.unit or "").startswith("{") else _UNITS.get(metric.unit or "", metric.unit or "")
    parts = [_name(metric.name)]
    if unit and not parts[0].endswith(f"_{unit}"):
        parts.append(_name(unit))
    if _kind(metric) == "counter":
        parts.append("total")
    return "_".join(parts)


def _kind(metric: Metric) -> str:
    if isinstance(metric.data, Histogram):
        return "histogram"
    if isinstance(metric.data, Sum) and metric.data.is_monotonic:
        return "counter"
    return "gauge"


def _block(metric: Metric, constant: Mapping[str, str]) -> list[str]:
    data = metric.data
    if isinstance(data, (Histogram, Sum)) and data.aggregation_temporality is not AggregationTemporality.CUMULATIVE:
        return []  # differences cannot be scraped
    name, kind = metric_name(metric), _kind(metric)
    lines = [f"# HELP {name} {(metric.description or '').translate(_HELP_ESCAPES)}", f"# TYPE {name} {kind}"]
    for point in data.data_points:
        labels = {**constant, **{_name(key): str(value) for key, value in (point.attributes or {}).items()}}
        if isinstance(point, HistogramDataPoint):
            lines += _buckets(name, labels, point)
        elif isinstance(point, NumberDataPoint):
            lines.append(_sample(name, labels, point.value))
    return lines


def _buckets(name: str, labels: Mapping[str, str], point: HistogramDataPoint) -> Iterator[str]:
    count = 0
    for bound, inside in zip((*point.explicit_bounds, math.inf), point.bucket_counts, strict=True):
        count += inside
        yield _sample(f"{name}_bucket", {**labels, "le": _number(float(bound))}, count)
    yield _sample(f"{name}_sum", labels, point.sum)
    yield _sample(f"{name}_count", labels, point.count)


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inner = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items())
    return f"{name}{{{inner}}} {_number(value)}" if inner else f"{name} {_number(value)}"


def _number(value: Any) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def _name(text: str) -> str:
    name = _NOT_IN_NAMES.sub("_", text)
    return f"_{name}" if name[:1].isdigit() or not name else name
