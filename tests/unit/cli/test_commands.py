"""The list of commands, and what it costs to show it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from nexofork.cli import run_command

NEXOFORK = Path(sys.executable).with_name("nexofork")
COMMANDS = [
    *("demo", "fork", "estimate", "wait", "ps", "logs", "explain", "attach", "abort", "answer"),
    *("daemon", "serve", "provision", "simulate"),
]


def test_help_lists_every_command(capfd: pytest.CaptureFixture[str]) -> None:
    """With one line for each."""
    assert run_command(arguments=["--help"]) == 0
    shown = capfd.readouterr().out.partition("Commands:")[2].split("\n")
    assert [line.split()[0] for line in shown if line.strip()] == COMMANDS


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "daemon"])
def test_every_command_explains_itself(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Each can be loaded and has a help."""
    assert run_command(arguments=[name, "--help"]) == 0
    assert f"{name} [OPTIONS]" in capfd.readouterr().out


def test_the_daemon_explains_itself() -> None:
    """The command becomes the daemon, whose own help it is."""
    shown = subprocess.run([str(NEXOFORK), "daemon", "--help"], capture_output=True, text=True, check=True, timeout=30)
    for option in ("--nats", "--slots", "--name", "--pool", "--lease-s", "--drain-s", "--sandbox", "--config"):
        assert option in shown.stdout
    assert shown.stdout.startswith("Usage: nexofork daemon [OPTIONS]")


def test_help_is_quick() -> None:
    """A start takes under 150 ms; on a busy machine some of them do."""
    assert any(_start_s() < 0.15 for _ in range(10))


def _start_s() -> float:
    began = time.perf_counter()
    subprocess.run([str(NEXOFORK), "--help"], capture_output=True, check=True)
    return time.perf_counter() - began


def test_help_imports_nothing_heavy() -> None:
    """Neither NATS nor the provider's SDK nor the models."""
    code = (
        "import sys; from nexofork.cli import run_command; run_command(arguments=['--help']); "
        "print([name for name in ('anthropic', 'nats', 'pydantic', 'uvloop', 'asyncio') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "[]"


def test_an_unknown_command_is_bad_usage(capfd: pytest.CaptureFixture[str]) -> None:
    """One line names it."""
    assert run_command(arguments=["frok"]) == 2
    assert "frok" in capfd.readouterr().err
