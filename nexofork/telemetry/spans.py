"""Spans and their events, and the trace context that travels in the headers of NATS messages (W3C Trace Context).

A span tells what kind of error there was and never its words: they may quote a prompt or a tool's arguments, which are
exported only where that is switched on. Headers come from outside: what is no trace context is ignored. Baggage does
not travel, because it may hold anything.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from opentelemetry import context, trace
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from nexofork.core.query_source import is_named
from nexofork.telemetry import metrics, names
from nexofork.telemetry.names import exportable, exportable_count, exportable_text
from nexofork.telemetry.settings import content_wanted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from nexofork.core.usage import Usage

__all__ = [
    "cache_break_detected",
    "changed_despite_filter",
    "continued",
    "current_run",
    "error_name",
    "fork_ended",
    "fork_span",
    "message",
    "open_span",
    "process_span",
    "send_span",
    "set_content",
    "set_error",
    "tool_denied",
    "trace_headers",
    "traced",
    "usage_attributes",
]

log = logging.getLogger(__name__)

_REASON_CHARS = 300
_SHOWN = 10
_CONTENT_CHARS = 16_000

current_run: ContextVar[str] = ContextVar("current_run", default="")
"""The run that is worked on, for log lines that do not name it."""
_W3C = TraceContextTextMapPropagator()


@contextmanager
def open_span(
    name: str,
    attributes: Mapping[str, Any],
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    context: Context | None = None,
) -> Iterator[Span]:
    """Trace a block; what it raises is named by its type."""
    tracer = trace.get_tracer(names.SCOPE)
    with tracer.start_as_current_span(
        exportable_text(name),
        context=context,
        kind=kind,
        attributes={key: exportable(value) for key, value in attributes.items()},
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except asyncio.CancelledError as exc:
            span.set_attribute(names.ERROR_TYPE, error_name(exc))
            raise
        except Exception as exc:
            set_error(span, error_name(exc))
            raise


def error_name(error: BaseException) -> str:
    """Return what an error is called; ``cancelled`` is none of the work's own, but an abort, a deadline or a drain."""
    return names.CANCELLED if isinstance(error, asyncio.CancelledError) else type(error).__name__


def set_error(span: Span, kind: str) -> None:
    """Mark a span as failed."""
    span.set_attribute(names.ERROR_TYPE, kind)
    span.set_status(StatusCode.ERROR)


def set_content(span: Span, key: str, content: object) -> None:
    """Add what was said to a span, where that is switched on; the beginning of it, if it is long."""
    if span.is_recording() and content_wanted():
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)
        span.set_attribute(key, exportable_text(text, most_chars=_CONTENT_CHARS))


def usage_attributes(usage: Usage) -> dict[str, int]:
    """Return what a call was billed for; the convention counts the whole prompt as input."""
    counts = {
        names.INPUT_TOKENS: usage.prompt_tokens,
        names.CACHE_READ_TOKENS: usage.cache_read_tokens,
        names.CACHE_WRITE_TOKENS: usage.cache_write_tokens,
        names.OUTPUT_TOKENS: usage.output_tokens,
    }
    return {name: exportable_count(count) for name, count in counts.items()}


@contextmanager
def send_span(pool: str, run_id: str) -> Iterator[Span]:
    """Trace the publishing of a request; the daemon that runs it goes on from here."""
    attributes = _messaging(pool, run_id, operation=names.SEND, kind="send")
    with open_span(f"{names.SEND} {pool}", attributes, kind=SpanKind.PRODUCER) as span:
        yield span


@contextmanager
def process_span(pool: str, run_id: str, headers: Mapping[str, str], *, attempt: int) -> Iterator[Span]:
    """Trace what a daemon does about a delivery, in the trace of whoever published it, also the second time."""
    attributes = _messaging(pool, run_id, operation=names.PROCESS, kind="process")
    attributes[names.DELIVERY_ATTEMPT] = attempt
    token = current_run.set(run_id)
    try:
        name = f"{names.PROCESS} {pool}"
        with open_span(name, attributes, kind=SpanKind.CONSUMER, context=traced(headers)) as span:
            yield span
    finally:
        current_run.reset(token)


def _messaging(pool: str, run_id: str, *, operation: str, kind: str) -> dict[str, Any]:
    return {
        names.MESSAGING_SYSTEM: "nats",
        names.MESSAGING_OPERATION: operation,
        names.MESSAGING_OPERATION_TYPE: kind,
        names.MESSAGING_DESTINATION: f"agent.{pool}.{{run_id}}.events",
        names.RUN_ID: run_id,
    }


@contextmanager
def fork_span(
    *,
    run_id: str,
    parent_agent: str,
    label: str,
    query_source: str,
    mode: str,
    skip_transcript: bool,
    cache_key_hash: int,
    directive: str = "",
) -> Iterator[Span]:
    """Trace one fork as ``fork.subagent``, and a named agent, which is none, as ``invoke_agent {agent}``."""
    agent = query_source.rpartition(":")[2] if is_named(query_source) else label
    attributes: dict[str, str | bool] = {
        names.RUN_ID: run_id,
        names.PARENT_AGENT: parent_agent,
        names.LABEL: label,
        names.QUERY_SOURCE: query_source,
        names.MODE: mode,
        names.SKIP_TRANSCRIPT: skip_transcript,
        # Hexadecimal: an attribute's integer is signed and this hash is not.
        names.CACHE_KEY_HASH: f"{cache_key_hash:016x}",
        names.OPERATION: names.INVOKE_AGENT,
        names.AGENT_NAME: agent,
        names.CONVERSATION_ID: run_id,
    }
    token = current_run.set(run_id)
    try:
        with open_span(f"{names.INVOKE_AGENT} {agent}" if is_named(query_source) else names.FORK, attributes) as span:
            set_content(span, names.INPUT_MESSAGES, [message("user", directive)])
            yield span
    finally:
        current_run.reset(token)


def message(role: str, text: str) -> dict[str, Any]:
    """Return a message as the GenAI conventions write it."""
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def fork_ended(
    span: Span, *, status: str, end: str, turns: int, usage: Usage, cost_usd: float | None, duration_s: float
) -> None:
    """Say on its span how a fork ended, and what it came to; the duration is measured."""
    span.set_attributes({names.STATUS: status, names.TURNS: turns, **usage_attributes(usage)})
    if cost_usd is not None:
        span.set_attribute(names.COST_USD, cost_usd)
    if status != "completed":
        set_error(span, end)
    metrics.agent_ended(duration_s, failed=status != "completed", status=status)


def cache_break_detected(
    *, run_id: str, label: str, cache_read: int, cache_creation: int, hit_ratio: float, cause: str, detail: str
) -> None:
    """Say aloud that a first call missed the cache: an event on the current span and a warning."""
    trace.get_current_span().add_event(
        names.CACHE_BREAK,
        {
            names.LABEL: exportable_text(label),
            names.CACHE_READ: exportable_count(cache_read),
            names.CACHE_CREATION: exportable_count(cache_creation),
            names.HIT_RATIO: hit_ratio,
            names.CAUSE: cause,
        },
    )
    log.warning(
        "fork.cache_break_detected: fork %s (%s) read %d and wrote %d tokens, hit ratio %.2f: %s. %s",
        run_id,
        label,
        cache_read,
        cache_creation,
        hit_ratio,
        cause,
        detail,
    )


def tool_denied(*, run_id: str, tool: str, reason: str) -> None:
    """Say that a filter denied a tool call: an event on the current span and a log line. Arguments stay out of both.

    The reason may name a path or a command, so it is in the event only where content is exported.
    """
    reason = reason[:_REASON_CHARS]
    said = {names.REASON: exportable_text(reason)} if content_wanted() else {}
    event = {names.RUN_ID: run_id, names.TOOL: exportable_text(tool), **said}
    trace.get_current_span().add_event(names.TOOL_FILTER, event)
    log.debug(
        "fork.tool_filter: fork %s was denied %s: %s",
        run_id,
        tool,
        reason,
        extra={"run_id": run_id, "tool": tool, "reason": reason},
    )


def changed_despite_filter(*, run_id: str, changes: Sequence[tuple[str, str]]) -> None:
    """Say aloud that paths changed in a run whose filter does not let them: an event on a span of its own, a warning.

    Args:
        run_id: The run, which is over.
        changes: What happened to which path; the paths are in the event only where content is exported.
    """
    shown = [f"{what} {path}" for what, path in changes[:_SHOWN]]
    with open_span(names.AUDIT, {names.RUN_ID: run_id}) as span:
        paths = {names.PATHS: [exportable_text(path) for path in shown]} if content_wanted() else {}
        span.add_event(names.TOOL_FILTER, {names.RUN_ID: run_id, names.CHANGES: len(changes), **paths})
    more = f" and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    log.warning(
        "fork.tool_filter: during fork %s these changed although its filter does not let them: %s%s",
        run_id,
        ", ".join(shown),
        more,
        extra={"run_id": run_id},
    )


def trace_headers() -> dict[str, str]:
    """Return the headers that continue the current trace elsewhere; none where nothing is traced."""
    headers: dict[str, str] = {}
    _W3C.inject(headers)
    return headers


def traced(headers: Mapping[str, str]) -> Context:
    """Return the context that a message's headers carry; an empty one where they carry none."""
    return _W3C.extract(headers, context=context.Context())


@contextmanager
def continued(headers: Mapping[str, str]) -> Iterator[None]:
    """Go on with the trace of a message; where it has none, with the current one."""
    carried = traced(headers)
    if not carried:
        yield
        return
    token = context.attach(carried)
    try:
        yield
    finally:
        context.detach(token)
