"""Runs may be named by the beginning of their ids."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli.conftest import objects

if TYPE_CHECKING:
    from tests.integration.cli.conftest import World


def test_a_beginning_that_one_run_has_is_its_name(world: World) -> None:
    """For every command that takes a run, and what they print has the whole id."""
    name = uuid.uuid4().hex
    (run_id,) = world.detached("Look around.", run_id=f"{name}-whole")
    short = name[:10]

    waited = world.ask("wait", short, "--json")
    logged = world.ask("logs", short, "--json")
    attached = world.ask("attach", short, "--json")
    aborted = world.ask("abort", short, run_id, "--json")
    explained = world.ask("explain", short, "--json")
    billed = world.ask("cost", "--run", short, "--by", "run", "--json")
    woken = world.ask("wake", short, "-d", "Go on.", "--detach", "--json")
    late = world.ask("message", short, "Hello?")
    answered = world.ask("answer", short, "nothing", "allow")

    for done in (waited, logged, attached, explained):
        assert objects(done.stdout)[0]["run_id"] == run_id, done.stderr
    assert objects(aborted.stdout) == [{"run_id": run_id, "outcome": "already_over"}]
    assert [row["key"] for row in objects(billed.stdout)[0]["rows"]] == [run_id]
    assert objects(woken.stdout)[0]["continues"] == run_id
    assert (late.returncode, run_id in late.stderr) == (2, True)
    assert (answered.returncode, run_id in answered.stderr) == (2, True)


def test_a_beginning_that_several_have_is_none(own_pool: World) -> None:
    """They are named, nothing is done; a whole id is that run although another one begins with it."""
    own_pool.detached("One.", run_id="ab1")
    own_pool.detached("Two.", run_id="ab1-again")
    own_pool.detached("Three.", run_id="ab2")

    unclear = own_pool.ask("abort", "ab", "--note", "no", *own_pool.at)
    whole = own_pool.ask("abort", "ab1", "--json", *own_pool.at)

    assert (unclear.returncode, unclear.stdout) == (2, "")
    assert "'ab' is the beginning of 3 runs" in unclear.stderr
    assert "ab1, ab1-again, ab2. Give more of it." in unclear.stderr
    assert len(unclear.stderr.splitlines()) == 1
    assert objects(whole.stdout) == [{"run_id": "ab1", "outcome": "aborted"}]
    listed = objects(own_pool.ask("ps", "--json", *own_pool.at).stdout)[0]["runs"]
    assert {run["run_id"]: run["status"] for run in listed} == {
        "ab1": "aborted",
        "ab1-again": "queued",
        "ab2": "queued",
    }


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_run_ids(own_pool: World, shell: str) -> None:
    """Of the pool and the server that the line names; zsh is shown what they are at."""
    own_pool.detached("Look around.", run_id="abc")
    own_pool.detached("Look away.", run_id="abd")
    line = ["nexofork", "logs", "--pool", own_pool.pool, "--nats", own_pool.nats, "ab"]
    asked = {"_NEXOFORK_COMPLETE": f"{shell}_complete", "COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(line) - 1)}

    shown = own_pool.run(env={**own_pool.environment, "NATS_URL": "nats://127.0.0.1:9", **asked}).stdout.splitlines()

    wanted = {
        "bash": ["plain,abc", "plain,abd"],
        "zsh": ["plain", "abd", "queued: Look away.", "plain", "abc", "queued: Look around."],
    }[shell]
    assert sorted(shown) == sorted(wanted)


def test_completing_without_nats_is_silent(own_pool: World) -> None:
    """And over in a moment; the shell shows nothing instead of an error."""
    asked = {"_NEXOFORK_COMPLETE": "bash_complete", "COMP_WORDS": "nexofork logs ab", "COMP_CWORD": "2"}
    environment = {**os.environ, "NATS_URL": "nats://127.0.0.1:9", **asked}

    done = own_pool.run(env=environment)

    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
