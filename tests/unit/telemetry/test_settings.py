"""OpenTelemetry's own variables say where telemetry goes; what is not built is refused by name."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from nexofork.cli import run_command
from nexofork.errors import ForkRefused
from nexofork.telemetry.names import exportable_count, exportable_text
from nexofork.telemetry.settings import TelemetrySettings, content_wanted, read_settings

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ({}, TelemetrySettings()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, TelemetrySettings(traces="otlp", metrics="otlp")),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/v1/traces"}, TelemetrySettings(traces="otlp")),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_METRICS_EXPORTER": "none"}, TelemetrySettings(traces="otlp")),
        ({"OTEL_TRACES_EXPORTER": "console"}, TelemetrySettings(traces="console")),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_SDK_DISABLED": "true"}, TelemetrySettings()),
    ],
)
def test_an_endpoint_alone_is_enough(
    monkeypatch: pytest.MonkeyPatch, env: Mapping[str, str], settings: TelemetrySettings
) -> None:
    """And nothing said is nothing exported."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    assert read_settings() == settings


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER is 'zipkin'"),
        ({"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "'grpc'"),
    ],
)
def test_what_is_not_built_is_refused(monkeypatch: pytest.MonkeyPatch, env: Mapping[str, str], words: str) -> None:
    """The variable is named."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(ForkRefused, match=words):
        read_settings()


@pytest.mark.parametrize(("value", "wanted"), [("", False), ("0", False), ("no", False), ("1", True), ("true", True)])
def test_content_is_wanted_only_by_name(monkeypatch: pytest.MonkeyPatch, value: str, wanted: bool) -> None:
    """Anything but a clear yes is a no."""
    monkeypatch.setenv("NEXOFORK_TELEMETRY_CONTENT", value)

    assert content_wanted() is wanted


def test_a_command_names_a_wrong_variable(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """In one line, before it does anything."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "nowhere")

    assert run_command(arguments=["ps", "--nats", "nats://127.0.0.1:9"]) == 2
    assert "OTEL_TRACES_EXPORTER is 'nowhere'" in capfd.readouterr().err


_EXPORTS = """
from nexofork.telemetry.settings import read_settings
from nexofork.telemetry.sdk import open_telemetry
from nexofork.telemetry.spans import send_span
with open_telemetry(read_settings(), service="test"):
    with send_span("fork", "run-1"):
        pass
    print("worked", flush=True)
print("ended", flush=True)
"""


def test_a_collector_that_does_not_answer_does_not_hold_a_process() -> None:
    """What was not exported within two seconds is given up."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        process = subprocess.Popen(
            [sys.executable, "-c", _EXPORTS], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        worked, at = process.stdout.readline(), time.monotonic()
        ended, rest = process.stdout.readline(), process.wait(timeout=30)

    assert (worked, ended, rest) == ("worked\n", "ended\n", 0)
    assert time.monotonic() - at < 8
    process.stdout.close()


def test_a_command_does_not_load_the_sdk_for_nothing() -> None:
    """Where nothing is configured its start costs what it did."""
    code = "import sys, nexofork.cli.ps; print([name for name in sys.modules if name.startswith('opentelemetry.sdk')])"

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert shown.stdout.strip() == "[]"


def test_what_a_server_made_up_can_be_exported() -> None:
    """One value that cannot be encoded would lose a whole batch."""
    assert exportable_text("a\ud800b") == "a?b"
    assert exportable_text("x" * 5000) == "x" * 1000
    assert (exportable_count(10**100), exportable_count(-1)) == (2**53, 0)
