"""The daemon's settings on the command line: wrong ones end it before it connects to anything."""

from __future__ import annotations

import pytest

from nexofork.cli import run_command
from nexofork_daemon.command import daemon

NOWHERE = "nats://127.0.0.1:9"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--slots", "0"], "--slots is '0'. Give a whole number of 1 or more"),
        (["--slots", "many"], "--slots"),
        (["--lease-s", "0.1"], "--lease-s is '0.1'"),
        (["--drain-s", "-1"], "--drain-s"),
        (["--pool", "a.b"], "a.b"),
        (["--memory-mb", "1"], "--memory-mb is '1'"),
        (["--disk-mb", "0"], "--disk-mb is '0'"),
        (["--sandbox-network=yes"], "--sandbox-network"),
        (["--sandbox", "jail"], "--sandbox"),
        (["--config", "/no/such.toml"], "/no/such.toml cannot be read"),
        (["--nats", "http://127.0.0.1"], "not a NATS URL"),
        (["--creds", "/no/such/file"], "/no/such/file"),
        (["--nope"], "--nope"),
    ],
)
def test_wrong_settings_are_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """One line names the setting."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-sim-team")
    monkeypatch.setenv("NATS_URL", NOWHERE)

    assert run_command(daemon, arguments) == 2

    shown = capfd.readouterr()
    assert words in shown.err
    assert (shown.out, len(shown.err.splitlines())) == ("", 1)


def test_a_missing_key_says_what_to_set(capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is connected to before."""
    assert run_command(daemon, ["--nats", NOWHERE]) == 2
    assert "set ANTHROPIC_API_KEY" in capfd.readouterr().err


def test_commands_that_run_bare_are_told_of(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Loudly, though the operator said so; without NATS the exit code is 3."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-sim-team")

    assert run_command(daemon, ["--nats", NOWHERE, "--sandbox", "none"]) == 3
    assert "WARNING: commands run bare on this host" in capfd.readouterr().err
