"""The list of commands, and what it costs to show it."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nexofork.cli import run_command

NEXOFORK = Path(sys.executable).with_name("nexofork")
COMMANDS = [
    *("demo", "fork", "estimate", "wait", "ps", "logs", "cost", "explain", "attach", "abort", "delete"),
    *("message", "wake", "fetch", "answer", "sidecar", "eval", "agents", "daemon", "config", "doctor", "serve"),
    *("provision", "auth", "simulate", "completion"),
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


@pytest.mark.parametrize("words", [[], ["auth"], ["config"], ["sidecar"]])
def test_a_group_alone_shows_its_help(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """As `--help` does, and not as an error."""
    assert run_command(arguments=[*words, "--help"], name="nexofork") == 0
    wanted = capfd.readouterr()

    assert run_command(arguments=words, name="nexofork") == 0
    assert capfd.readouterr() == wanted


def test_the_daemon_explains_itself() -> None:
    """The command becomes the daemon, whose own help it is."""
    shown = subprocess.run([str(NEXOFORK), "daemon", "--help"], capture_output=True, text=True, check=True, timeout=30)
    for option in ("--nats", "--slots", "--name", "--pool", "--lease-s", "--drain-s", "--sandbox", "--config"):
        assert option in shown.stdout
    assert shown.stdout.startswith("Usage: nexofork daemon [OPTIONS]")


@pytest.mark.alone
def test_help_is_quick() -> None:
    """It costs less processor time than twice the start of Python with click, on the same machine at the same time."""
    ours = min(_start_s([str(NEXOFORK), "--help"]) for _ in range(5))
    assert ours < 2 * min(_start_s([sys.executable, "-c", "import click"]) for _ in range(5))


def _start_s(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("words", ["'--help'", "'--version'", "'frok'", "'completion', 'bash'"])
def test_what_needs_no_fleet_imports_nothing_heavy(words: str) -> None:
    """Of all that is installed, click and a few modules of our own; no library that a fleet needs, and no asyncio."""
    code = (
        "import sys; before = set(sys.modules); from nexofork.cli import run_command; "
        f"run_command(arguments=[{words}]); "
        "new = set(sys.modules) - before; print(); "
        "ours = sorted(name for name in new if name.startswith('nexofork')); "
        "others = {name.partition('.')[0] for name in new} - set(sys.stdlib_module_names) - {'nexofork'}; "
        "print(sorted(others), 'asyncio' in new, len(ours) < 8, len(new) < 130)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "['click'] False True True"


def test_names_are_completed_without_loading_commands() -> None:
    """A shell asks at every press of the key."""
    code = (
        "import os, sys; from nexofork.cli import run_command\n"
        "try: run_command(name='nexofork')\n"
        "finally: print('|'.join(name for name in sys.modules if name in ('pydantic', 'nats', 'asyncio')) + '.')"
    )
    asked = {"_NEXOFORK_COMPLETE": "bash_complete", "COMP_WORDS": "nexofork a", "COMP_CWORD": "1"}
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **asked})
    assert shown.stdout.split() == [*(f"plain,{name}" for name in ("attach", "abort", "answer", "agents", "auth")), "."]


@pytest.mark.parametrize(
    ("words", "completed"),
    [("ps --wa", "--watch"), ("daemon --sl", "--slots"), ("auth ro", "rotate"), ("cost --by mo", "model")],
)
def test_options_and_their_values_are_completed(words: str, completed: str) -> None:
    """Those of the daemon, which is another program, too."""
    asked = {"_NEXOFORK_COMPLETE": "bash_complete", "COMP_WORDS": f"nexofork {words}"}
    asked["COMP_CWORD"] = str(len(words.split()))
    shown = subprocess.run([str(NEXOFORK)], capture_output=True, text=True, env={**os.environ, **asked}, check=True)
    assert shown.stdout.splitlines() == [f"plain,{completed}"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_read_its_completion(shell: str, tmp_path: Path) -> None:
    """What is printed is a script of that shell, as far as the shell is installed here to say so."""
    shown = subprocess.run([str(NEXOFORK), "completion", shell], capture_output=True, text=True, check=True)
    script = tmp_path / "script"
    script.write_text(shown.stdout)

    assert f"_NEXOFORK_COMPLETE={shell}_complete" in shown.stdout
    assert shown.stderr == ""
    if found := shutil.which(shell):
        subprocess.run([found, "-n", str(script)], check=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("frok", "No such command 'frok'. Did you mean `nexofork fork`?"),
        ("kill", "Did you mean `nexofork abort`?"),
        ("top", "Did you mean `nexofork ps --watch`"),
        ("auth lst", "Did you mean `nexofork auth list`?"),
        ("agents sohw", "Did you mean `nexofork agents show`?"),
        ("xyzzy", "No such command 'xyzzy'. See `nexofork --help`."),
        ("ps --jsn", "--json"),
        ("attach r1 --josn", "--json"),
        ("--json ps", "Options of a command stand behind it"),
        ("completion tcsh", "'bash', 'zsh', 'fish'"),
    ],
)
def test_what_is_mistyped_is_named_with_the_nearest(words: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Commands, commands of groups, names that other programs have for them, and options; in one line."""
    assert run_command(arguments=words.split(), name="nexofork") == 2
    shown = capfd.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1
