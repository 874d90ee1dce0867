"""``nexofork doctor`` says of each thing a daemon needs whether it is there, and what to do where it is not."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

from nexofork.bus.jetstream import call
from nexofork.wire.streams import inbox_stream, stream_settings
from tests.integration.cli.conftest import _NEXOFORK
from tests.support.nats import SMALL, connected
from tests.support.sandboxes import BWRAP, needs_bubblewrap

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli.conftest import World

HOST = ["python", "git", "sandbox", "ripgrep", "disk", "settings", "key", "prices"]
NAMES = [*HOST, "nats", "streams", "durability", "storing", "clock", "roles"]


def states(shown: str) -> dict[str, str]:
    """The state of each check, from JSON."""
    return {check["name"]: check["state"] for check in json.loads(shown)["checks"]}


@needs_bubblewrap
def test_a_host_that_can_run_forks_is_told_so(world: World, tmp_path: Path) -> None:
    """One line per check, or one JSON object; the key is not shown."""
    shown = world.run("doctor", "--state-dir", tmp_path)
    assert shown.returncode == 0, shown.stdout
    assert [line.split()[1] for line in shown.stdout.splitlines()] == NAMES
    assert "bwrap works, without network" in shown.stdout
    assert world.environment["ANTHROPIC_API_KEY"] not in shown.stdout

    as_json = world.run("doctor", "--state-dir", tmp_path, "--json")
    assert json.loads(as_json.stdout)["ok"]
    assert list(states(as_json.stdout)) == NAMES


def test_what_is_wrong_is_named_with_its_fix(world: World, tmp_path: Path) -> None:
    """NATS that is not there, a missing key, a price file that is none: exit code 1; bare commands are only noted."""
    prices = tmp_path / "prices.toml"
    prices.write_text("nonsense")
    environment = {**world.environment, "NEXOFORK_PRICES": str(prices), "NATS_URL": "nats://me:pw-81fa@127.0.0.1:9"}
    del environment["ANTHROPIC_API_KEY"]
    shown = world.run("doctor", "--sandbox", "none", "--state-dir", tmp_path, "--json", env=environment)

    assert shown.returncode == 1
    found = states(shown.stdout)
    assert [name for name in found if found[name] == "wrong"] == ["key", "prices", "nats"]
    assert found["sandbox"] == "note"
    assert all(check["fix"] for check in json.loads(shown.stdout)["checks"] if check["state"] == "wrong")
    assert "pw-81fa" not in shown.stdout


def test_a_pool_without_streams_is_wrong_and_stays_without(own_pool: World, tmp_path: Path) -> None:
    """Looking makes nothing."""
    for _ in range(2):
        shown = own_pool.run("doctor", *own_pool.at, "--sandbox", "none", "--state-dir", tmp_path)
        assert shown.returncode == 1
        assert "missing: stream" in shown.stdout
        assert f"nexofork provision --pool {own_pool.pool}" in shown.stdout


async def test_streams_in_memory_are_neither_as_they_have_to_be_nor_durable(own_pool: World, tmp_path: Path) -> None:
    """Whatever else is in place: a server that stops would take every run with it."""
    async with connected(own_pool.nats) as bus:
        for wanted in stream_settings(own_pool.pool, max_bytes=SMALL)[:2]:
            await call(bus, f"STREAM.CREATE.{wanted['name']}", {**wanted, "storage": "memory"})

    shown = own_pool.run("doctor", *own_pool.at, "--sandbox", "none", "--state-dir", tmp_path, "--json")

    found = states(shown.stdout)
    assert (found["streams"], found["durability"]) == ("wrong", "wrong")


async def test_streams_without_limits_are_wrong_until_provision_sets_them(own_pool: World, tmp_path: Path) -> None:
    """The doctor and `provision` name each; `provision --apply` limits them, and then the doctor is content."""
    doctor: list[str | Path] = ["doctor", *own_pool.at, "--sandbox", "none", "--state-dir", tmp_path]
    assert own_pool.run("provision", "--max-bytes", str(SMALL), *own_pool.at).returncode == 0
    inbox = inbox_stream(own_pool.pool)
    async with connected(own_pool.nats) as bus:
        config = (await call(bus, f"STREAM.INFO.{inbox}"))["config"]
        await call(bus, f"STREAM.UPDATE.{inbox}", {**config, "max_bytes": -1, "max_msg_size": -1})

    lacking, noted = own_pool.run(*doctor), own_pool.run("provision", *own_pool.at)
    applied, healed = own_pool.run("provision", "--apply", *own_pool.at), own_pool.run(*doctor)

    said = f"stream {inbox} has no max_bytes, max_msg_size: one daemon's key can fill the store until aborts fail"
    assert (lacking.returncode, said in lacking.stdout) == (1, True)
    assert (noted.returncode, said in noted.stderr) == (0, True)
    assert f"nexofork provision --pool {own_pool.pool} --apply" in lacking.stdout
    assert (applied.returncode, applied.stderr) == (0, "")
    assert "has no max_bytes" not in healed.stdout


@needs_bubblewrap
def test_a_missing_bubblewrap_is_wrong(world: World, tmp_path: Path) -> None:
    """With the command that installs it; here it is hidden from the check by itself."""
    assert BWRAP is not None
    hidden = [BWRAP, "--dev-bind", "/", "/", "--ro-bind", "/dev/null", BWRAP]
    shown = subprocess.run(
        [*hidden, _NEXOFORK, "doctor", "--state-dir", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        env=world.environment,
    )

    assert shown.returncode == 1
    assert "bubblewrap is not installed. Install bubblewrap (apt install bubblewrap)" in shown.stdout
