"""``nexofork delete``: what NATS stores of a run goes, and nothing of other runs."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli.conftest import World, objects
from tests.support.conversation import call, says
from tests.support.nats import run_accounts_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.nats import AccountsServer

LONG = "pomegranate " * 5_000
"""Too long for the log, so it is stored apart."""


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[AccountsServer]:
    """A server with accounts and without streams."""
    with run_accounts_server(tmp_path, max_bytes=None) as server:
        yield server


@pytest.fixture
def deletable(world: World, guarded: AccountsServer) -> Iterator[World]:
    """A world whose admin can delete runs, with a daemon."""
    environment = {**world.environment, "NATS_URL": guarded.url}
    own = World(nats=guarded.url, sim=world.sim, folder=world.folder, environment=environment)
    made = own.ask("provision", "--deletable", "--max-bytes", str(64 << 20), *key(guarded, "admin"))
    assert made.returncode == 0, made.stderr
    with own.daemon(*key(guarded, "daemon"), "--name", "guarded"):
        yield own


def key(server: AccountsServer, role: str) -> list[str]:
    """The arguments that name a role's key."""
    return ["--nkey", str(server.seeds[role])]


def stored(server: AccountsServer, words: str) -> bool:
    """Whether the server has words on its disk."""
    folder = server.folder.parent / "store"
    return subprocess.run(["grep", "-rq", "--", words, str(folder)], check=False).returncode == 0


def test_a_deleted_run_is_gone_from_the_servers_disk(deletable: World, guarded: AccountsServer) -> None:
    """Directive, answers, messages and long results go; a sibling that shares the snapshot keeps what it needs."""
    parent, admin = key(guarded, "parent"), key(guarded, "admin")
    gone, kept = (
        says(f"quince{number} {LONG}", {"tools": [call(command=f"echo medlar{number}")]}, f"Result: loquat{number}")
        for number in (1, 2)
    )
    forked = deletable.ask(*deletable.forking(gone, kept), "--json", *parent)
    assert forked.returncode == 0, forked.stderr
    ended = {run["directive"].split()[0]: run["run_id"] for run in objects(forked.stdout)}  # as they ended
    first, second = ended["quince1"], ended["quince2"]
    assert all(stored(guarded, words) for words in ("quince1", "medlar1", "loquat1"))

    done = deletable.ask("delete", first, "--yes", "--json", *admin)

    assert done.returncode == 0, done.stderr
    (said,) = objects(done.stdout)
    assert said["run_id"] == first
    assert said["log"] > 3
    assert said["kept"] >= 1, "the parent's snapshot is the sibling's too"
    assert not any(stored(guarded, words) for words in ("quince1", "medlar1", "loquat1"))
    assert deletable.ask("logs", first, *parent).returncode == 2
    (result,) = objects(deletable.ask("wait", second, "--json", *parent).stdout)
    assert result["status"] == "completed"
    (bill,) = objects(deletable.ask("cost", "--run", first, "--json", *parent).stdout)
    assert bill["unverified"]["calls"] + bill["total"]["calls"] == 2, "the ledger keeps the bill"

    last = deletable.ask("delete", second, "--yes", "--json", *admin)

    assert objects(last.stdout)[0]["kept"] == 0
    assert not stored(guarded, "You are the agent of a long session")


def test_only_the_admin_deletes_and_only_what_is_over(deletable: World, guarded: AccountsServer) -> None:
    """Other roles are refused by the server, a running fork by the command; both stay as they are."""
    parent, admin = key(guarded, "parent"), key(guarded, "admin")
    sleeps = says("Sleep.", {"tools": [call(command="sleep 600")]})
    started = deletable.ask(*deletable.forking(sleeps), "--detach", "--json", *parent)
    (run,) = objects(started.stdout)

    running = deletable.ask("delete", run["run_id"], "--yes", *admin)
    unknown = deletable.ask("delete", "no-such-run", "--yes", *admin)
    assert (running.returncode, unknown.returncode) == (2, 2)
    assert "abort" in running.stderr
    assert "no-such-run" in unknown.stderr
    deletable.ask("abort", run["run_id"], *parent)
    deletable.ask("wait", run["run_id"], *parent)
    for role in ("parent", "daemon", "observer"):
        refused = deletable.ask("delete", run["run_id"], "--yes", *key(guarded, role))
        assert refused.returncode == 3, role
        assert "permit" in refused.stderr
    assert deletable.ask("logs", run["run_id"], *parent).returncode == 0


def test_streams_that_protect_their_messages_are_named(world: World) -> None:
    """Where the streams were not made for it, nothing is deleted, and the error says what to know."""
    (run_id,) = world.detached("Look.")
    world.ask("wait", run_id)

    refused = world.ask("delete", run_id, "--yes")
    late = world.ask("provision", "--deletable")

    assert (refused.returncode, late.returncode) == (2, 3)
    assert "provision --deletable" in refused.stderr
    assert "cannot be changed while it exists" in late.stderr
    assert world.ask("logs", run_id).returncode == 0
