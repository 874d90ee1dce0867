"""`nexofork auth` from the first key to a fork on the server it describes, and what it says when it cannot."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from nexofork.cli import run_command
from tests.integration.cli.conftest import World, objects
from tests.support.certificates import make_authority, make_certificate
from tests.support.nats import ServerProcess, free_port, running

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.nats import AccountsServer


def run(*arguments: str | Path) -> int:
    """Run a subcommand in this process."""
    return run_command(arguments=["auth", *map(str, arguments)])


def test_from_init_to_a_fork_in_a_pool_of_another_name(
    world: World, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The printed steps work as printed; a fork runs with TLS, an observer sees it, and every attack is refused."""
    ca = make_authority(tmp_path)
    pair = make_certificate(tmp_path, ca, not_after="20990101000000Z")
    made = tmp_path / "auth"
    tls: list[str | Path] = ["--tls-cert", pair.cert, "--tls-key", pair.key, "--tls-ca", ca.cert]
    assert run("init", made, "--pool", "gpu", "--listen", f"127.0.0.1:{free_port()}", *tls) == 0
    shown = capfd.readouterr().out
    assert "SU" not in shown
    steps = [line.split()[1:] for line in shown.splitlines() if line.startswith("  nexofork ")]
    url = steps[0][steps[0].index("--nats") + 1]
    at = ["--nats", url, "--nats-ca", str(ca.cert), "--pool", "gpu"]
    seeds = made / "seeds" / "default"

    with running(ServerProcess('include "../auth/nats-server.conf"', folder=tmp_path / "server")):
        assert world.ask(*steps[0]).returncode == 0
        fleet = World(nats=url, sim=world.sim, folder=world.folder, pool="gpu", environment=world.environment)
        named = ["--nats", url, "--nats-ca", str(ca.cert), "--nkey"]
        with fleet.daemon("--name", "tls", *named, str(seeds / "daemon" / "default.nk")):
            forked = fleet.ask(*fleet.forking("Look."), "--json", *named, str(seeds / "parent" / "default.nk"))
            (child,) = objects(forked.stdout)
            watching = [*at, "--nkey", str(seeds / "observer" / "default.nk")]
            (seen,) = objects(fleet.ask("ps", "--json", *watching).stdout)
            log = objects(fleet.ask("logs", child["run_id"], "--json", *watching).stdout)
            checked = fleet.ask(*steps[-1], "--json")

    assert (child["status"], child["daemon"]) == ("completed", "tls")
    assert child["run_id"] in [one["run_id"] for one in seen["runs"]]
    assert log[-1]["status"] == "completed"
    assert checked.returncode == 0, checked.stdout
    *attacks, summary = objects(checked.stdout)
    assert summary == {"attacks": len(attacks), "succeeded": 0, "left_behind": []}


def test_check_says_what_could_be_done(world: World, accounts_server: AccountsServer) -> None:
    """On a server that lets everybody in: one line for each attack, and exit code 1."""
    done = world.ask("auth", "check", "--nats", world.nats, "--seeds", accounts_server.folder)

    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith("FAILED  nobody could connect without a key: the server asks nobody who they are")
    assert lines[-1] == "2 attacks, 2 succeeded."


def test_check_says_what_it_lacks(
    world: World, accounts_server: AccountsServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No seeds, a role without one, a seed that is none, a tenant that is not there."""
    bad = tmp_path / "seeds" / "default"
    for role in ("admin", "parent", "daemon"):
        (bad / role).mkdir(parents=True)
        (bad / role / "x.nk").write_text("rubbish")
    for seeds, more, words in (
        (tmp_path / "none", (), "none cannot be read"),
        (tmp_path, (), "has no seed of observer"),
        (accounts_server.folder, ("--tenant", "blue"), "has no seed of admin"),
    ):
        assert run("check", "--nats", accounts_server.url, "--seeds", seeds, *more) == 2
        assert words in capfd.readouterr().err
    (bad / "observer").mkdir()
    (bad / "observer" / "x.nk").write_text("rubbish")
    done = world.ask("auth", "check", "--nats", accounts_server.url, "--seeds", tmp_path)
    assert done.returncode == 3
    assert "holds no nkey seed" in done.stderr


def test_users_are_added_rotated_listed_and_removed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each change says where the seed is and what to reload; the list shows public keys only."""
    made = tmp_path / "auth"
    assert run("init", made) == 0
    for arguments in (("add", made, "daemon", "host2"), ("rotate", made, "daemon", "host2", "--grace")):
        assert run(*arguments) == 0
    said = capfd.readouterr().out
    assert f"{made}/seeds/default/daemon/host2.nk" in said
    assert "host2.next.nk" in said
    assert said.count("nats-server --signal reload") == 2

    assert run("list", made, "--json") == 0
    (tenant,) = objects(capfd.readouterr().out)
    (user,) = [user for user in tenant["users"] if user["name"] == "host2"]
    assert (user["role"], len(user["keys"])) == ("daemon", 2)
    assert run("rotate", made, "daemon", "host2", "--finish") == 0
    assert run("remove", made, "daemon", "host2") == 0
    assert run("extend", made, "--tenant", "blue") == 0
    capfd.readouterr()
    assert run("list", made) == 0
    shown = capfd.readouterr().out
    assert "host2" not in shown
    assert [line.split()[:3] for line in shown.splitlines()[-2:-1]] == [["blue", "observer", "default"]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cluster", "n1=10.0.0.1"], "3 or 5 servers"),
        (["--cluster", "n1=a,n1=b,n3=c"], "a name and addresses of its own"),
        (["--cluster", "n1,n2,n3"], "is not a server"),
        (["--replicas", "3"], "--cluster"),
        (["--listen", "a b"], "is not an address"),
        (["--tls-cert", "x.pem"], "--tls-key"),
        (["--tls-cert", "x.pem", "--tls-key", "x.key"], "cannot be read"),
        (["--pool", "presence"], "presence"),
        (["--tenant", "a.b"], "subject"),
    ],
)
def test_what_init_cannot_do_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """One line, exit code 2, and nothing is made."""
    assert run("init", tmp_path / "auth", *arguments) == 2
    error = capfd.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "auth").exists()


def test_an_open_address_and_a_short_certificate_are_warned_of(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is done all the same."""
    assert run("init", tmp_path / "open", "--cluster", "n1=10.0.0.1,n2=10.0.0.2,n3=10.0.0.3") == 0
    warned = capfd.readouterr().err
    assert "without TLS" in warned
    assert "route port" in warned
    assert len(list((tmp_path / "open").glob("nats-server-n?.conf"))) == 3

    soon = (datetime.now(UTC) + timedelta(days=9.2)).strftime("%Y%m%d%H%M%SZ")
    pair = make_certificate(tmp_path, make_authority(tmp_path), not_after=soon)
    assert run("init", tmp_path / "short", "--tls-cert", pair.cert, "--tls-key", pair.key) == 0
    assert "is good for 9 days only" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("hosts", "address", "warned"),
    [
        pytest.param("IP:10.9.9.9", ["--listen", "127.0.0.1:4222"], "names 10.9.9.9, and not 127.0.0.1", id="listen"),
        pytest.param("IP:10.9.9.9", ["--listen", "0.0.0.0:4222"], "", id="any address"),
        pytest.param("IP:10.9.9.9", ["--listen", "10.9.9.9"], "", id="its own"),
        pytest.param("DNS:nats.example.com", ["--listen", "10.9.9.9"], "and not 10.9.9.9", id="another way in"),
        pytest.param("DNS:a", ["--cluster", "n1=a,n2=b,n3=c"], "names a, and not b, c", id="one server of three"),
        pytest.param("DNS:a,DNS:b,DNS:c", ["--cluster", "n1=a,n2=b,n3=c"], "", id="all three"),
    ],
)
def test_a_certificate_for_other_hosts_is_warned_of(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], hosts: str, address: list[str], warned: str
) -> None:
    """Clients may have another name for the server, so it is made all the same; the warning says which hosts fit."""
    ca = make_authority(tmp_path)
    pair = make_certificate(tmp_path, ca, hosts=hosts, not_after="20990101000000Z")

    tls = ("--tls-cert", pair.cert, "--tls-key", pair.key, "--tls-ca", ca.cert)
    assert run("init", tmp_path / "auth", *address, *tls) == 0

    said = capfd.readouterr().err
    assert warned in said if warned else said == ""


def test_a_certificate_that_cannot_work_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Every client refuses one that names no host; servers that it does not name refuse each other."""
    ca = make_authority(tmp_path)
    for name, hosts, address, words in (
        ("nobody", "", ["--listen", "0.0.0.0"], "names no host"),
        ("others", "IP:10.9.9.9", ["--cluster", "n1=a,n2=b,n3=c"], "names 10.9.9.9, and not a, b, c"),
    ):
        pair = make_certificate(tmp_path, ca, name=name, hosts=hosts, not_after="20990101000000Z")
        tls = ("--tls-cert", pair.cert, "--tls-key", pair.key, "--tls-ca", ca.cert)

        assert run("init", tmp_path / name / "auth", *address, *tls) == 2

        error = capfd.readouterr().err
        assert (words in error, len(error.splitlines())) == (True, 1), error
        assert not (tmp_path / name / "auth").exists()
