"""What happens to a command before its work has begun: signals while it is loaded, streams that are closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.integration.cli.conftest import World

NEXOFORK = str(Path(sys.executable).with_name("nexofork"))
NOWHERE = ("--nats", "nats://127.0.0.1:9")
SAYS_IMPORTS = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}


@pytest.mark.parametrize("module", ["click.core", "uvloop.loop", "nexofork.bus.connection"])
@pytest.mark.parametrize(
    "words",
    [
        pytest.param((NEXOFORK, "ps", *NOWHERE), id="nexofork"),
        pytest.param((sys.executable, "-m", "nexofork", "ps", *NOWHERE), id="module"),
        pytest.param((f"{NEXOFORK}d", *NOWHERE), id="nexoforkd"),
        pytest.param((sys.executable, "-m", "nexofork_daemon", *NOWHERE), id="daemon"),
    ],
)
def test_an_interrupt_while_modules_load_is_death_by_signal(words: tuple[str, ...], module: str) -> None:
    """A shell sees 130; nothing is said, and the signal is not lost in a callback of an import."""
    with subprocess.Popen(
        words, env=SAYS_IMPORTS, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert any(line.endswith(f" {module}\n") for line in process.stderr)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()

    assert process.wait(PATIENCE_S) == -signal.SIGINT
    assert [line for line in said.splitlines() if not line.startswith("import time:")] == []


def test_an_ignored_interrupt_stays_ignored_while_modules_load(world: World) -> None:
    """A job that a shell put into the background is not for the Ctrl-C of the terminal."""
    words = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", NEXOFORK, "ps"]
    environment = {**world.environment, "PYTHONPROFILEIMPORTTIME": "1"}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(line.endswith(" click.core\n") for line in process.stderr)
        process.send_signal(signal.SIGINT)
        process.stderr.read()

    assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_does_not_break_a_command(world: World, closed: str) -> None:
    """What it would say goes nowhere; the loop's own files do not take the place of a stream."""
    words = ["sh", "-c", f'exec "$@" {closed}', "sh", NEXOFORK, "logs", "nobody"]
    done = subprocess.run(words, env=world.environment, capture_output=True, text=True, timeout=PATIENCE_S)

    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert ("There is no run 'nobody'" in done.stderr) == ("2>&-" not in closed)


def test_a_daemon_with_closed_streams_serves(own_pool: World) -> None:
    """It becomes another program on the way, which finds them closed again."""
    words = [
        "sh",
        "-c",
        'exec "$@" <&- >&-',
        "sh",
        NEXOFORK,
        "daemon",
        "--pool",
        own_pool.pool,
        "--sandbox",
        "none",
        "--allow-root",
    ]
    with subprocess.Popen(words, env=own_pool.environment, stderr=subprocess.DEVNULL) as process:
        done = own_pool.ask(*own_pool.forking("Look."))
        process.terminate()

    assert done.returncode == 0, done.stderr
    assert process.wait(PATIENCE_S) == 0
