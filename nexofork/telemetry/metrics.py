"""What is counted and measured, as instruments of the OpenTelemetry API: without an SDK they do nothing.

Labels are few and bounded: never a run's id, and of names that come from outside only the first so many.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from opentelemetry import metrics

from nexofork.economics.prices import cost_usd
from nexofork.errors import UnknownModelPrice
from nexofork.telemetry import names
from nexofork.telemetry.names import exportable_count, exportable_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nexofork.core.usage import Usage

__all__ = [
    "abort_took",
    "agent_ended",
    "call_began",
    "call_billed",
    "call_ended",
    "expect_runs",
    "first_call_read",
    "permission_decided",
    "redelivered",
    "run_ended",
    "slots_changed",
    "slots_used_changed",
    "tool_ended",
    "waited_in_queue",
]

_MOST_NAMES = 100
_NAME_CHARS = 100
_OTHER = "other"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
_COUNTS = tuple(float(4**power) for power in range(14))
_RATIOS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_PROVIDER = {names.PROVIDER: "anthropic"}

_meter = metrics.get_meter(names.SCOPE)


def _seconds(name: str, description: str) -> metrics.Histogram:
    return _meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=_SECONDS)


_runs = _meter.create_counter(names.RUNS, "{run}", "Runs that ended here, by how.")
_queue_wait = _seconds(names.QUEUE_WAIT, "From the storing of a request to its first claim.")
_first_byte = _seconds(names.FIRST_BYTE, "From the sending of a model call to the beginning of its response.")
_tokens = _meter.create_counter(names.TOKENS, "{token}", "Tokens billed: fresh, cache_read, cache_write_*, output.")
_hit_ratio = _meter.create_histogram(
    names.CACHE_HIT_RATIO,
    "",
    "The share of the prompt that a run's first call read from the cache.",
    explicit_bucket_boundaries_advisory=_RATIOS,
)
_cost = _meter.create_counter(names.COST, "usd", "Dollars billed by the prices in force.")
_slots = _meter.create_up_down_counter(names.SLOTS, "{slot}", "How many forks may run at once.")
_slots_used = _meter.create_up_down_counter(names.SLOTS_USED, "{slot}", "How many forks run now.")
_abort_latency = _seconds(names.ABORT_LATENCY, "From an abort on the log to the end of its run.")
_redeliveries = _meter.create_counter(names.REDELIVERIES, "{delivery}", "Requests that were delivered again.")
_asks = _meter.create_counter(names.PERMISSION_ASKS, "{ask}", "Permissions asked for, by what they came to.")
_call_duration = _seconds(names.CALL_DURATION, "Model calls, retries included.")
_token_usage = _meter.create_histogram(
    names.TOKEN_USAGE,
    "{token}",
    "Tokens of a model call; the input is the whole prompt.",
    explicit_bucket_boundaries_advisory=_COUNTS,
)
_agent_duration = _seconds(names.AGENT_DURATION, "Runs, from their beginning here to their end.")
_tool_duration = _seconds(names.TOOL_DURATION, "Tool calls.")


class _Few:
    """Takes the first so many names as they are, and calls all others the same."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def __call__(self, name: str) -> str:
        if name not in self._known:
            if len(self._known) >= _MOST_NAMES:
                return _OTHER
            self._known.add(name := exportable_text(name, most_chars=_NAME_CHARS))
        return name


_model_name = _Few()
_tool_name = _Few()
_error_name = _Few()


def run_ended(status: str) -> None:
    """Count a run that is over for good."""
    _runs.add(1, {names.STATUS_LABEL: status})


def expect_runs(statuses: Iterable[str]) -> None:
    """Show counts at zero from the start: the first event is seen as an increase, and an idle daemon as idle."""
    for status in statuses:
        _runs.add(0, {names.STATUS_LABEL: status})
    _redeliveries.add(0)
    _slots_used.add(0)


def waited_in_queue(seconds: float) -> None:
    """Measure how long a request waited for a daemon."""
    _queue_wait.record(max(seconds, 0.0))


def redelivered() -> None:
    """Count a request that came again."""
    _redeliveries.add(1)


def slots_changed(by: int) -> None:
    """Say that more or fewer forks may run."""
    _slots.add(by)


def slots_used_changed(by: int) -> None:
    """Say that more or fewer forks run."""
    _slots_used.add(by)


def abort_took(seconds: float) -> None:
    """Measure an abort."""
    _abort_latency.record(max(seconds, 0.0))


def call_began(model: str, seconds: float) -> None:
    """Measure how long the first byte of a response took."""
    _first_byte.record(max(seconds, 0.0), {names.MODEL_LABEL: _model_name(model)})


def first_call_read(model: str, ratio: float) -> None:
    """Measure what a run's first call found in the cache."""
    _hit_ratio.record(ratio, {names.MODEL_LABEL: _model_name(model)})


def call_billed(model: str, usage: Usage) -> None:
    """Count what one attempt of a call was billed for, as it is booked in the ledger."""
    name = _model_name(model)
    counts = {
        "fresh": usage.input_tokens,
        "cache_read": usage.cache_read_tokens,
        "cache_write_5m": usage.cache_write_5m_tokens,
        "cache_write_1h": usage.cache_write_1h_tokens,
        "output": usage.output_tokens,
    }
    for kind, count in counts.items():
        _tokens.add(exportable_count(count), {names.MODEL_LABEL: name, names.KIND_LABEL: kind})
    labels = {names.OPERATION: names.CHAT, names.REQUEST_MODEL: name, **_PROVIDER}
    _token_usage.record(exportable_count(usage.prompt_tokens), {**labels, names.TOKEN_TYPE: "input"})
    _token_usage.record(exportable_count(usage.output_tokens), {**labels, names.TOKEN_TYPE: "output"})
    with suppress(UnknownModelPrice):  # `nexofork cost` says which one is missing
        _cost.add(max(cost_usd(usage, model), 0.0), {names.MODEL_LABEL: name})


def call_ended(model: str, seconds: float, *, error: str = "") -> None:
    """Measure a model call with all its attempts."""
    labels = {names.OPERATION: names.CHAT, names.REQUEST_MODEL: _model_name(model), **_PROVIDER}
    _call_duration.record(seconds, {**labels, names.ERROR_TYPE: _error_name(error)} if error else labels)


def agent_ended(seconds: float, *, failed: bool, status: str) -> None:
    """Measure a run's time on this host."""
    labels = {names.OPERATION: names.INVOKE_AGENT, **_PROVIDER}
    _agent_duration.record(seconds, {**labels, names.ERROR_TYPE: status} if failed else labels)


def tool_ended(tool: str, seconds: float, *, error: str = "") -> None:
    """Measure a tool call."""
    labels = {names.OPERATION: names.EXECUTE_TOOL, names.TOOL_NAME: _tool_name(tool)}
    _tool_duration.record(seconds, {**labels, names.ERROR_TYPE: _error_name(error)} if error else labels)


def permission_decided(decision: str) -> None:
    """Count a question: ``allowed``, ``denied`` or ``deadline``."""
    _asks.add(1, {names.DECISION_LABEL: decision})
