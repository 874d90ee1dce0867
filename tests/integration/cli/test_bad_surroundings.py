"""What is wrong around a command or daemon is called by its name: streams, certificates, disks, ports, keys."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from nexofork.bus.jetstream import call
from nexofork.bus.provisioning import provision
from nexofork.wire.streams import log_stream
from tests.support.certificates import make_authority, make_certificate
from tests.support.nats import SMALL, AccountsServer, ServerProcess, connected, running

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli.conftest import World

BARE = ("--sandbox", "none")
BARE_DAEMON = ("daemon", *BARE, "--allow-root")


def checks(world: World, folder: Path, *options: str | Path, **more: Any) -> dict[str, dict[str, str]]:
    """What the doctor says, by check."""
    shown = world.run("doctor", *BARE, "--state-dir", folder, "--json", *options, **more)
    return {check["name"]: check for check in json.loads(shown.stdout)["checks"]}


def test_a_stream_that_differs_is_named_and_changed_only_when_told(own_pool: World, tmp_path: Path) -> None:
    """By the doctor, by a daemon that does not start, and by `provision`, until it is told to apply."""

    async def spoil() -> None:
        async with connected(own_pool.nats) as bus:
            await provision(bus, pool=own_pool.pool, max_bytes=SMALL)
            info = await call(bus, f"STREAM.INFO.{log_stream(own_pool.pool)}")
            await call(
                bus,
                f"STREAM.UPDATE.{log_stream(own_pool.pool)}",
                {**info["config"], "discard": "old", "discard_new_per_subject": False},
            )

    asyncio.run(spoil())
    difference = f'stream {log_stream(own_pool.pool)} has discard "old" and needs "new"'
    for _ in range(2):
        found = checks(own_pool, tmp_path, *own_pool.at)["streams"]
        assert (found["state"], f"provision --pool {own_pool.pool} --apply" in found["fix"]) == ("wrong", True)
        assert difference in found["said"]
    for command in ("daemon", "provision", "ps"):
        bare = BARE_DAEMON[1:] if command == "daemon" else ()
        refused = (own_pool.run if bare else own_pool.ask)(command, *own_pool.at, *bare)
        assert (refused.returncode, difference in refused.stderr) == (3, True)
        assert "Nothing was changed" in refused.stderr

    assert own_pool.ask("provision", "--apply", *own_pool.at).returncode == 0
    assert checks(own_pool, tmp_path, *own_pool.at)["streams"]["state"] == "ok"


@pytest.mark.parametrize(
    "command",
    [
        ["ps"],
        ["ps", "--watch"],
        ["logs", "r1"],
        ["wait", "r1"],
        ["attach", "r1"],
        ["abort", "r1"],
        ["fetch", "r1"],
        ["cost"],
    ],
    ids=" ".join,
)
def test_a_mistyped_pool_is_named_and_not_made(own_pool: World, command: list[str]) -> None:
    """A command that only uses a pool says that there is none of that name, whatever else it was asked for."""

    async def streams() -> list[str]:
        async with connected(own_pool.nats) as bus:
            return list((await call(bus, "STREAM.NAMES"))["streams"])

    before = asyncio.run(streams())

    refused = own_pool.ask(*command, *own_pool.at)

    assert refused.returncode == 2, refused.stdout
    assert f"There is no pool {own_pool.pool!r}" in refused.stderr
    assert asyncio.run(streams()) == before


def test_an_expired_certificate_is_named(world: World, tmp_path: Path) -> None:
    """By the doctor and by the daemon, with who has to renew it."""
    ca = make_authority(tmp_path)
    pair = make_certificate(tmp_path, ca, not_after="20210101000000Z")
    tls = f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}" }}'
    server = ServerProcess(f'host: 127.0.0.1\nport: -1\nhttp: "127.0.0.1:-1"\n{tls}\n', folder=tmp_path / "server")
    with running(server):
        found = checks(world, tmp_path, "--nats", server.url, "--nats-ca", ca.cert)
        refused = world.run(*BARE_DAEMON, "--nats", server.url, "--nats-ca", ca.cert)

    assert found["nats"]["state"] == "wrong"
    assert "certificate has expired" in found["nats"]["said"]
    assert "renew" in found["nats"]["fix"]
    assert (refused.returncode, "certificate has expired" in refused.stderr) == (3, True)


def test_a_server_without_room_is_named(world: World, tmp_path: Path) -> None:
    """A quota too small for the streams: neither a daemon nor an admin is left with a bare error number."""
    store = f'jetstream {{ domain: fork, store_dir: "{tmp_path / "store"}", max_file: 8MB }}'
    server = ServerProcess(f'host: 127.0.0.1\nport: -1\nhttp: "127.0.0.1:-1"\n{store}\n', folder=tmp_path / "server")
    with running(server):
        for command in (BARE_DAEMON, ("provision",)):
            refused = world.run(*command, "--nats", server.url)
            assert (refused.returncode, len(refused.stderr.splitlines()) <= 2) == (3, True)
            assert "no room" in refused.stderr
            assert "Give it more storage" in refused.stderr


def test_a_full_log_is_named_by_doctor_and_fork(own_pool: World, tmp_path: Path) -> None:
    """At 80% of its limit; new requests are refused with what to do."""

    async def fill() -> None:
        async with connected(own_pool.nats) as bus:
            await provision(bus, pool=own_pool.pool, max_bytes=1 << 20)
            for number in range(14):
                await bus.request(f"agent.{own_pool.pool}.full-{number}.reports", b"x" * (64 << 10))

    asyncio.run(fill())
    found = checks(own_pool, tmp_path, *own_pool.at)["streams"]
    assert (found["state"], "full and new requests are refused" in found["said"]) == ("wrong", True)
    refused = own_pool.run(*own_pool.forking("Look."))
    assert refused.returncode == 3
    assert "full" in refused.stderr
    assert "--max-bytes" in refused.stderr


def test_a_port_in_use_is_named(world: World) -> None:
    """By the server and by the simulator, with what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for command in ("serve", "simulate"):
            refused = world.run(command, "--port", port)
            assert refused.returncode == 3
            assert "address already in use" in refused.stderr
            assert port in refused.stderr
            assert "another port" in refused.stderr


def test_a_daemons_key_is_tried_and_a_wrong_role_is_told(
    world: World, accounts_server: AccountsServer, tmp_path: Path
) -> None:
    """On a server with accounts; a stranger is not let in."""
    at = ("--nats", accounts_server.url)
    right = checks(world, tmp_path, *at, "--nkey", accounts_server.seeds["daemon"])
    assert (right["roles"]["state"], right["streams"]["state"]) == ("ok", "ok"), right
    wrong = checks(world, tmp_path, *at, "--nkey", accounts_server.seeds["admin"])["roles"]
    assert (wrong["state"], "daemon's key" in wrong["fix"]) == ("wrong", True)
    assert checks(world, tmp_path, *at)["nats"]["state"] == "wrong"


def test_the_key_is_tried_only_when_asked(world: World, tmp_path: Path) -> None:
    """`--live` makes one call; a refused key is said, and a model without a price noted."""
    before = len(world.sim.log)
    checks(world, tmp_path)
    assert len(world.sim.log) == before
    live = checks(world, tmp_path, "--live")
    assert (live["key"]["state"], "workspace" in live["key"]["said"]) == ("ok", True), live["key"]
    assert len(world.sim.log) == before + 1
    bad = {**world.environment, "ANTHROPIC_API_KEY": "nonsense-5512"}
    refused = checks(world, tmp_path, "--live", "--model", "claude-nobody-1", env=bad)
    assert refused["key"]["state"] == "wrong"
    assert "nonsense-5512" not in json.dumps(refused)
    assert refused["prices"]["state"] == "note"


def test_a_git_that_hangs_is_wrong_and_ended(world: World, tmp_path: Path) -> None:
    """The doctor goes on with its other checks."""
    git = tmp_path / "bin" / "git"
    git.parent.mkdir()
    git.write_text("#!/bin/sh\nsleep 3600\n")
    git.chmod(0o755)
    hanging = {**world.environment, "PATH": f"{git.parent}:{world.environment['PATH']}"}
    found = checks(world, tmp_path / "state", env=hanging)

    assert (found["git"]["state"], found["git"]["said"]) == ("wrong", f"{git} said nothing for 10 s")
    assert found["git"]["fix"]
    assert found["nats"]["state"] == "ok"


@pytest.mark.parametrize("command", [["ps"], ["ps", "--json", "--watch"], ["config", "show"], ["--help"]], ids=" ".join)
def test_output_that_cannot_be_written_is_one_line(world: World, command: list[str]) -> None:
    """A full disk behind stdout is no defect of ours."""
    with open("/dev/full", "w") as full:
        refused = world.run(*command, capture_output=False, stdout=full, stderr=subprocess.PIPE)

    assert refused.returncode == 1
    assert refused.stderr == (
        "Error: The output could not be written (No space left on device). Make room where it goes.\n"
    )


def test_a_broken_price_file_is_told_with_one_remedy(world: World, tmp_path: Path) -> None:
    """It names the file and what is wrong with it, and says once what to do."""
    prices = tmp_path / "prices.toml"
    prices.write_text("nonsense")
    found = checks(world, tmp_path, env={**world.environment, "NEXOFORK_PRICES": str(prices)})["prices"]

    assert str(prices) in found["said"]
    assert f"{found['said']}. {found['fix']}".count("Correct the file") == 1


def test_a_daemon_imports_nothing_from_the_folder_it_is_started_in(world: World, tmp_path: Path) -> None:
    """A checkout, or a folder that somebody else can write to, does not become part of the program."""
    for name in ("nexofork_daemon", "nexofork", "click"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the folder')")

    shown = world.run("daemon", "--help", cwd=tmp_path)

    assert (shown.returncode, shown.stderr) == (0, "")
    assert "--slots" in shown.stdout
