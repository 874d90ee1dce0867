"""Carry a trace from one process to the next in the headers of NATS messages, as W3C Trace Context.

Headers come from outside: what is no trace context is ignored. Baggage does not travel, it may hold anything.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry import context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opentelemetry.context import Context

__all__ = ["continued", "trace_headers", "traced"]

_W3C = TraceContextTextMapPropagator()


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
