"""The command: a ready line, a line per request, a total, and a clean end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import PATIENCE_S
from tests.unit.simulator.client import request, text, user

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START = [sys.executable, "-c", "from nexofork.cli.simulate import simulate; simulate()"]


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command in a process of its own, and its URL."""
    with subprocess.Popen([*START, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            assert "ready" in said
            yield process, str(json.loads(said)["url"]) if "--json" in arguments else said.split()[1]
        finally:
            process.kill()


def send(url: str, body: object) -> None:
    """One request, its answer read."""
    head = {"x-api-key": "sk-sim-alpha", "anthropic-version": "2026-10-21"}
    message = urllib.request.Request(f"{url}/v1/messages", data=json.dumps(body).encode(), headers=head)
    with urllib.request.urlopen(message, timeout=PATIENCE_S) as answer:
        answer.read()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_the_command_reports_each_request_and_a_total(stop: signal.Signals) -> None:
    """Both signals end it in order, with exit code zero."""
    with running() as (process, url):
        for _ in range(2):
            send(url, request(user(text(600, ttl="5m")), max_tokens=0))
        process.send_signal(stop)
        output, errors = process.communicate(timeout=PATIENCE_S)

    wrote, read, total = output.splitlines()
    assert wrote.split()[1:3] == ["claude-opus-5-5", "wrkspc_alpha"]
    assert "read 0  write 600/0" in wrote
    assert "read 600  write 0/0" in read
    assert total.startswith("total 2 requests  read 600  written 600  fresh 0  output 0  $")
    assert (process.returncode, errors) == (0, "")


def test_scripts_and_settings_come_from_files(tmp_path: Path) -> None:
    """Rules and configuration are JSON files; requests can be printed as JSON."""
    script, config = tmp_path / "script.json", tmp_path / "config.json"
    script.write_text(json.dumps([{"turns": [{"text": "scripted"}]}]))
    config.write_text(json.dumps({"workspaces": {"sk-sim-alpha": "wrkspc_of_the_file"}}))
    with running("--script", str(script), "--config", str(config), "--json") as (process, url):
        send(url, request())
        process.terminate()
        output, _ = process.communicate(timeout=PATIENCE_S)

    record = json.loads(output.splitlines()[0])
    assert (record["workspace"], record["output"]) == ("wrkspc_of_the_file", 2)


@pytest.mark.parametrize("content", ['{"prot": 1}', "{"])
def test_a_bad_configuration_is_one_line_of_error(tmp_path: Path, content: str) -> None:
    """No traceback, exit code one."""
    config = tmp_path / "config.json"
    config.write_text(content)

    result = subprocess.run(
        [*START, "--config", str(config)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    assert result.returncode == 1
    assert result.stderr.startswith("Error: ")
    assert "Traceback" not in result.stderr
