"""The daemon's settings on the command line: wrong ones end it before it connects to anything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from nexofork.cli import run_command
from nexofork_daemon.command import daemon
from tests.support.sandboxes import needs_bubblewrap

if TYPE_CHECKING:
    from pathlib import Path

NOWHERE = "nats://127.0.0.1:9"


@pytest.fixture
def shut_out(tmp_path: Path) -> list[str]:
    """Options of a daemon that is set up and then may not connect: its credentials are none."""
    creds = tmp_path / "empty.creds"
    creds.touch(mode=0o600)
    return ["--nats", NOWHERE, "--creds", str(creds), "--state-dir", str(tmp_path / "state")]


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


@pytest.mark.skipif(os.geteuid() != 0, reason="it is about root")
def test_root_does_not_run_commands_bare_unless_told_to(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], shut_out: list[str]
) -> None:
    """The error names the option and the other ways; the flag, the variable and the file all allow it."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-sim-team")
    bare = [*shut_out, "--sandbox", "none"]

    assert run_command(daemon, bare) == 2
    said = capfd.readouterr().err
    assert len(said.splitlines()) == 1
    assert all(word in said for word in ("--allow-root", "User=", "bubblewrap", "--sandbox is none"))
    assert run_command(daemon, [*bare, "--allow-root"]) == 3
    monkeypatch.setenv("NEXOFORK_DAEMON_ALLOW_ROOT", "yes")
    assert run_command(daemon, bare) == 3
    assert "may do all that root may" in capfd.readouterr().err


@needs_bubblewrap
def test_a_daemon_of_root_is_warned_of_even_in_the_sandbox(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], shut_out: list[str]
) -> None:
    """With what to do about it; another user's daemon starts without a warning."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-sim-team")

    assert run_command(daemon, shut_out) == 3
    warned = "WARNING: this daemon runs as root" in (said := capfd.readouterr().err)
    assert (warned, "User=" in said) == ((True, True) if os.geteuid() == 0 else (False, False))


def test_commands_that_run_bare_are_told_of(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], shut_out: list[str]
) -> None:
    """Loudly, though the operator said so; with wrong credentials for NATS the exit code is 3."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-sim-team")

    assert run_command(daemon, [*shut_out, "--sandbox", "none", "--allow-root"]) == 3
    assert "WARNING: commands run bare on this host" in capfd.readouterr().err
