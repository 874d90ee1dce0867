"""What an operator sets about telemetry: OpenTelemetry's own variables, and whether content may leave the process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, TypeAlias

from nexofork.errors import ForkRefused

__all__ = ["CONTENT_VARIABLE", "Exporter", "TelemetrySettings", "content_wanted", "read_settings"]

CONTENT_VARIABLE = "NEXOFORK_TELEMETRY_CONTENT"
Exporter: TypeAlias = Literal["otlp", "console", "none"]

_EXPORTERS: tuple[Exporter, ...] = ("otlp", "console", "none")
_PROTOCOL = "http/protobuf"


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """Where spans and metrics go; nothing said, nowhere."""

    traces: Exporter = "none"
    metrics: Exporter = "none"


def read_settings() -> TelemetrySettings:
    """Read the standard OTEL_* variables; an endpoint alone means that it is to be used.

    Raises:
        ForkRefused: One of them asks for something that is not built.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return TelemetrySettings()
    return TelemetrySettings(traces=_exporter("TRACES"), metrics=_exporter("METRICS"))


def content_wanted() -> bool:
    """Whether prompts, tool arguments and results may be exported; not unless somebody says so."""
    return os.environ.get(CONTENT_VARIABLE, "").strip().lower() in ("1", "true", "yes", "on")


def _exporter(signal: str) -> Exporter:
    name = f"OTEL_{signal}_EXPORTER"
    endpoint = _first("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    given = os.environ.get(name, "").strip() or ("otlp" if endpoint else "none")
    found = next((known for known in _EXPORTERS if known == given), None)
    if found is None:
        raise ForkRefused(f"{name} is {given!r}; give otlp, console or none.")
    protocol = _first(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL") or _PROTOCOL
    if found == "otlp" and protocol != _PROTOCOL:
        raise ForkRefused(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; only {_PROTOCOL} is spoken here (collectors take it on "
            "port 4318)."
        )
    return found


def _first(*names: str) -> str:
    return next((value for name in names if (value := os.environ.get(name, "").strip())), "")
