"""The command line on a server with accounts: every role can do its own, and is told so where it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cli.conftest import World, objects

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.nats import AccountsServer


@pytest.fixture
def locked(world: World, accounts_server: AccountsServer) -> Iterator[World]:
    """A world whose server asks everybody who they are, with a daemon."""
    environment = {**world.environment, "NATS_URL": accounts_server.url}
    locked = World(nats=accounts_server.url, sim=world.sim, folder=world.folder, environment=environment)
    with locked.daemon("--nkey", str(accounts_server.seeds["daemon"]), "--name", "locked"):
        yield locked


def test_each_role_does_its_own(locked: World, accounts_server: AccountsServer) -> None:
    """Parents fork, abort and wait; observers look; the admin provisions; nobody else's work is done."""
    parent, daemon, observer, admin = (
        ["--nkey", str(accounts_server.seeds[role])] for role in ("parent", "daemon", "observer", "admin")
    )
    forked = locked.ask(*locked.forking("Look."), "--json", *parent)
    (child,) = objects(forked.stdout)
    run_id = child["run_id"]

    assert (child["status"], child["daemon"]) == ("completed", "locked")
    assert locked.ask("wait", run_id, *parent).returncode == 0
    (seen,) = objects(locked.ask("ps", "--json", *observer).stdout)
    assert run_id in [run["run_id"] for run in seen["runs"]]
    assert "locked" in [one["name"] for one in seen["daemons"]]
    assert objects(locked.ask("logs", run_id, "--json", *observer).stdout)[-1]["status"] == "completed"
    (bill,) = objects(locked.ask("cost", "--run", run_id, "--json", *observer).stdout)
    assert bill["total"]["confirmed"] == 1
    assert locked.ask("provision", *admin).returncode == 0
    for wrong in (daemon, observer):
        refused = locked.ask(*locked.forking("Look."), *wrong)
        assert refused.returncode == 3
        assert "permit" in refused.stderr


def test_a_stranger_is_not_let_in(accounts_server: AccountsServer, world: World, tmp_path: Path) -> None:
    """The server's refusal, not a timeout; exit code 3."""
    for who in ([], ["--nkey", str(_stranger(tmp_path))]):
        done = world.ask("ps", "--nats", accounts_server.url, *who)
        assert done.returncode == 3
        assert "did not accept the credentials" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def _stranger(folder: Path) -> Path:
    seed = folder / "stranger.nk"
    seed.write_text("SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY\n")
    seed.chmod(0o600)
    return seed


def test_a_command_whose_key_is_right_says_nothing_alarming(
    world: World, accounts_server: AccountsServer, tmp_path: Path
) -> None:
    """What the doctor must be refused, and the admin's look for its prefix, are expected: stderr stays empty."""
    at = ("--nats", accounts_server.url, "--nkey")
    bare = ("--sandbox", "none", "--state-dir", tmp_path)
    checked = world.run("doctor", *at, accounts_server.seeds["daemon"], *bare)
    provisioned = world.run("provision", *at, accounts_server.seeds["admin"])

    assert "strangers are kept out" in checked.stdout
    assert (checked.returncode, checked.stderr) == (0, "")
    assert (provisioned.returncode, provisioned.stderr) == (0, "")
