"""Names of what is traced, in one place. Library code uses the OpenTelemetry API alone; who runs it sets up the SDK."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry import trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.trace import Span

__all__ = ["cache_break_detected", "fork_span"]

log = logging.getLogger(__name__)


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
) -> Iterator[Span]:
    """Trace one fork as ``fork.subagent``."""
    tracer = trace.get_tracer("nexofork")
    attributes: dict[str, str | bool] = {
        "fork_run_id": run_id,
        "parent_agent": parent_agent,
        "fork_label": label,
        "query_source": query_source,
        "mode": mode,
        "skip_transcript": skip_transcript,
        # Hexadecimal: an attribute's integer is signed and this hash is not.
        "cache_key_hash": f"{cache_key_hash:016x}",
    }
    with tracer.start_as_current_span("fork.subagent", attributes=attributes) as span:
        yield span


def cache_break_detected(
    *, run_id: str, label: str, cache_read: int, cache_creation: int, hit_ratio: float, cause: str, detail: str
) -> None:
    """Say aloud that a first call missed the cache: an event on the current span and a warning."""
    trace.get_current_span().add_event(
        "fork.cache_break_detected",
        {
            "fork_label": label,
            "cache_read": cache_read,
            "cache_creation": cache_creation,
            "hit_ratio": hit_ratio,
            "cause": cause,
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
