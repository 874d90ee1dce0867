"""``nexofork config`` and the daemon's settings file, as an operator meets them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.cli.conftest import objects
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.integration.cli.conftest import World

_KEY = "sk-sim-marked-7781"
_SAMPLE = Path(__file__).resolve().parents[3] / "daemon/systemd/nexoforkd.toml"


def test_show_names_every_source_and_no_secret(world: World, tmp_path: Path) -> None:
    """Of secrets the source alone, also of a password in a URL."""
    key, file = tmp_path / "key", tmp_path / "d.toml"
    key.write_text(_KEY)
    key.chmod(0o600)
    file.write_text("[daemon]\nslots = 3\n[provider]\napi_key_file = 'key'\n")
    environment = {**world.environment, "NATS_URL": "nats://me:pw-81fa@127.0.0.1", "NEXOFORK_DAEMON_DRAIN_S": "9"}
    del environment["ANTHROPIC_API_KEY"]
    done = world.run("config", "show", "--daemon", "--config", file, "--json", env=environment)

    found = {row["key"]: (row["value"], row["source"]) for row in json.loads(done.stdout)["settings"]}
    assert found["daemon.slots"] == (3, f"file {file}")
    assert found["daemon.drain_s"] == (9.0, "environment NEXOFORK_DAEMON_DRAIN_S")
    assert found["daemon.lease_s"] == (15.0, "default")
    assert found["nats.url"] == ("(not shown)", "environment NATS_URL")
    assert found["provider key"] == ("(not shown)", f"file {file}, {key}")
    shown = done.stdout + world.run("config", "show", "--daemon", "--config", file, env=environment).stdout
    assert "pw-81fa" not in shown
    assert _KEY not in shown
    assert re.search(r"daemon\.slots +3 ", shown)


def test_check_says_all_that_is_wrong(world: World, tmp_path: Path) -> None:
    """In lines for people, in JSON for programs; exit code 2."""
    file = tmp_path / "config.toml"
    file.write_text("[nats]\nurll = 'x'\npool = 7\n")
    shown = world.run("config", "check", "--config", file)
    assert (shown.returncode, len(shown.stderr.splitlines())) == (2, 3)
    assert "nats.urll is unknown. Did you mean url?" in shown.stderr
    (found,) = objects(world.run("config", "check", "--config", file, "--json").stdout)
    assert (found["ok"], len(found["problems"])) == (False, 2)
    assert {"where", "said", "fix"} == set(found["problems"][0])

    file.write_text("[nats]\npool = 'gpu'\n")
    assert "nothing is wrong" in world.run("config", "check", "--config", file).stdout


def test_check_opens_what_the_settings_name(world: World, tmp_path: Path) -> None:
    """A file that is there and holds something else is as wrong as one that is not; nothing of it is shown."""
    for name in ("seed", "ca.pem", "mcp.json", "key"):
        (tmp_path / name).write_text("" if name == "key" else "junk-5521")
        (tmp_path / name).chmod(0o600)
    file = tmp_path / "d.toml"
    file.write_text(
        "[nats]\nnkey_file = 'seed'\nca_file = 'ca.pem'\n[tools]\nmcp_config = 'mcp.json'\n"
        "[provider]\napi_key_file = 'key'\n"
    )
    environment = {name: value for name, value in world.environment.items() if name != "ANTHROPIC_API_KEY"}
    shown = world.run("config", "check", "--daemon", "--config", file, env=environment)

    assert (shown.returncode, len(shown.stderr.splitlines())) == (2, 5)
    for words in ("nats.nkey_file", "nats.ca_file", "tools.mcp_config", f"{tmp_path / 'key'} is empty"):
        assert words in shown.stderr
    assert "junk-5521" not in shown.stdout + shown.stderr


def test_check_warns_where_no_key_for_the_provider_is_in_sight(world: World, tmp_path: Path) -> None:
    """No error: systemd gives it to the daemon and not to who checks."""
    file = tmp_path / "d.toml"
    file.write_text("")
    environment = {name: value for name, value in world.environment.items() if name != "ANTHROPIC_API_KEY"}
    shown = world.run("config", "check", "--daemon", "--config", file, env=environment)

    assert shown.returncode == 0
    assert "WARNING: There is no key for the provider" in shown.stderr


def test_the_sample_is_right_with_and_without_its_comments(world: World, tmp_path: Path) -> None:
    """Every setting of a daemon is in it, and every line of it can be used."""
    assert world.run("config", "check", "--daemon", "--config", _SAMPLE).returncode == 0
    lines = [line.removeprefix("# ") if " = " in line else line for line in _SAMPLE.read_text().splitlines()]
    text = "\n".join(line for line in lines if not line.startswith(("No ", "A ", "Check", "Every")))
    for path in ("ca.pem", "seed", "key", "mcp.toml"):
        (tmp_path / path).write_text("x")
        (tmp_path / path).chmod(0o600)
    text = text.replace("/etc/nexofork/", f"{tmp_path}/").replace("/path/to/", f"{tmp_path}/")
    used = tmp_path / "used.toml"
    used.write_text("\n".join(line for line in text.splitlines() if not line.startswith("creds_file")))
    shown = world.run("config", "show", "--daemon", "--config", used, "--json")
    assert shown.returncode == 0, shown.stderr
    rows = json.loads(shown.stdout)["settings"]
    left = [row["key"] for row in rows if not row["source"].startswith(("file", "environment"))]
    assert left == ["nats.creds_file"]


def test_commands_read_the_users_file(world: World, tmp_path: Path) -> None:
    """NEXOFORK_CONFIG, or the one in the home; a flag comes before it."""
    file = tmp_path / "nexofork" / "config.toml"
    file.parent.mkdir()
    file.write_text("[nats]\nurl = 'nats://127.0.0.1:9'\n")
    environment = {
        name: value for name, value in world.environment.items() if name not in ("NATS_URL", "NEXOFORK_CONFIG")
    }
    for more in ({"NEXOFORK_CONFIG": str(file)}, {"XDG_CONFIG_HOME": str(tmp_path)}):
        shown = world.run("ps", env={**environment, **more})
        assert (shown.returncode, "127.0.0.1:9" in shown.stderr) == (3, True)
        assert world.run("ps", "--nats", world.nats, env={**environment, **more}).returncode == 0


def test_a_daemon_takes_new_slots_at_sighup(own_pool: World, tmp_path: Path) -> None:
    """What takes a restart is said; a file that became wrong changes nothing."""
    file = tmp_path / "d.toml"
    file.write_text("[daemon]\nslots = 2\n")
    arguments = (
        "daemon",
        "--config",
        file,
        "--pool",
        own_pool.pool,
        "--sandbox",
        "none",
        "--allow-root",
        "--name",
        "reloaded",
    )
    with own_pool.start(*arguments, "--log-format", "json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        file.write_text("[daemon]\nslots = 5\nlease_s = 3\n")
        process.send_signal(signal.SIGHUP)
        _until(process, "changed now: daemon.slots = 5")
        _until(process, "these take a restart: daemon.lease_s")
        file.write_text("[daemon]\nslots = 0\n")
        process.send_signal(signal.SIGHUP)
        assert "daemon.slots is 0" in _until(process, "the settings stay as they were")
        file.unlink()
        process.send_signal(signal.SIGHUP)
        assert "cannot be read" in _until(process, "the settings stay as they were")
        give_up = time.monotonic() + 20
        while _slots(own_pool) != [5]:  # presence is said now and then
            assert time.monotonic() < give_up
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def _slots(world: World) -> list[int]:
    (shown,) = objects(world.ask("ps", *world.at, "--json").stdout)
    return [daemon["slots"] for daemon in shown["daemons"]]


def _until(process: subprocess.Popen[str], words: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("{") and words in (said := json.loads(line)["message"]):
            return str(said)
    raise AssertionError(f"it ended without {words}")


def test_help_starts_at_once() -> None:
    """The list of commands loads nothing of the settings."""
    code = "import sys, nexofork.cli; print([m for m in sys.modules if m.startswith('nexofork.config')])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
