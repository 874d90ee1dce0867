"""Metrics are written so that Prometheus reads exactly what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from nexofork.telemetry.prometheus import exposition
from tests.support.scraping import parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import Meter


def shown(measure: Callable[[Meter], None], constant: dict[str, str] | None = None) -> str:
    """What a process that measured this shows."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    measure(provider.get_meter("test"))
    return exposition(reader.get_metrics_data(), constant)


def test_a_counter_is_written_as_prometheus_wants_it() -> None:
    """To the byte."""
    content = shown(
        lambda meter: meter.create_counter("nexofork.cost", "usd", "Dollars.").add(1.5, {"a.b": 'x"\\\n'}),
        {"pool": "fork"},
    )

    assert content == (
        "# HELP nexofork_cost_usd_total Dollars.\n"
        "# TYPE nexofork_cost_usd_total counter\n"
        'nexofork_cost_usd_total{pool="fork",a_b="x\\"\\\\\\n"} 1.5\n'
    )


def test_buckets_add_up() -> None:
    """Each holds those below it, the last one all."""

    def measure(meter: Meter) -> None:
        histogram = meter.create_histogram("wait", "s", explicit_bucket_boundaries_advisory=(0.5, 1))
        for value in (0.25, 0.75, 9):
            histogram.record(value)

    found = parse(shown(measure))

    assert found.kinds == {"wait_seconds": "histogram"}
    assert [(labels["le"], value) for name, labels, value in found.samples if name.endswith("_bucket")] == [
        ("0.5", 1),
        ("1.0", 2),
        ("+Inf", 3),
    ]
    assert (found.sum("wait_seconds_sum"), found.sum("wait_seconds_count")) == (10, 3)


def test_what_can_fall_is_a_gauge() -> None:
    """And is not called a total."""

    def measure(meter: Meter) -> None:
        slots = meter.create_up_down_counter("slots", "{slot}")
        slots.add(4)
        slots.add(-1)

    found = parse(shown(measure))

    assert found.kinds == {"slots": "gauge"}
    assert found.samples == [("slots", {}, 3)]


@given(value=st.text(), number=st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_any_label_and_number_come_back(value: str, number: float) -> None:
    """Whatever is in them."""
    found = parse(shown(lambda meter: meter.create_counter("c").add(number, {"label": value})))

    assert found.samples == [("c_total", {"label": value}, number)]


def test_nothing_measured_is_nothing_shown() -> None:
    """An empty answer is valid."""
    assert exposition(None) == ""
