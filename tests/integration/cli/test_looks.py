"""How commands look where they are: colours, waits that are told, and JSON from all that print data."""

from __future__ import annotations

import json
import signal
import socket
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from nexofork.cli import run_command
from tests.integration.cli.conftest import objects
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli.conftest import World

COLOUR = "\x1b[32mcompleted\x1b[0m"


def test_colours_are_for_terminals(world: World) -> None:
    """On one they are there unless somebody does not want them; elsewhere only where somebody does."""
    (run_id,) = world.detached("Look around.", group="looks")
    world.ask("wait", run_id)
    command = ["ps", "--group", "looks"]

    def on_terminal(**environment: str) -> str:
        with world.at_terminal(*command, environment=environment, columns=200) as terminal:
            assert terminal.ended() == 0
            return terminal.shown

    assert COLOUR in on_terminal()
    assert COLOUR in world.run(*command, env={**world.environment, "FORCE_COLOR": "1"}).stdout
    for plain in (on_terminal(NO_COLOR="1"), on_terminal(TERM="dumb"), world.ask(*command).stdout):
        assert "\x1b" not in plain
        assert "completed" in plain


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(empty_pool: World) -> None:
    """`ps --watch` at TERM=dumb is what it is in a pipe."""
    with empty_pool.at_terminal("ps", "--watch", *empty_pool.at, environment={"TERM": "dumb"}) as terminal:
        terminal.until("No runs.")
        (run_id,) = empty_pool.detached("Look around.")
        terminal.until(f"{run_id}  queued (requested), 0 turns")
        terminal.type("\x03")
        assert terminal.ended() == 0
    assert "\x1b" not in terminal.shown


def test_a_wait_is_told_and_the_telling_is_gone(world: World) -> None:
    """A server that accepts and says nothing is waited for in sight; a pipe is not told."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with world.at_terminal("ps", "--nats", f"nats://me:secret@{address}") as terminal:
            terminal.until(f"Connecting to {address} … 1 s")
            terminal.until("\r\x1b[KError: ")
            assert terminal.ended() == 3
    told = terminal.shown.partition("Error: ")[0]
    assert "secret" not in told
    assert "\n" not in told


@pytest.mark.parametrize(("command", "url"), [(["serve", "--port", "0"], "nats://"), (["simulate"], "http://")])
def test_servers_say_as_json_that_they_are_ready(world: World, command: list[str], url: str) -> None:
    """The first line is an object with the address; every other line is one too."""
    with world.start(*command, "--json") as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=PATIENCE_S)[0]

    assert ready["event"] == "ready"
    assert ready["url"].startswith(url)
    assert all("event" in one for one in objects(rest))


def test_keys_are_made_and_changed_in_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each change names what it made, and what to do next."""
    folder = tmp_path / "auth"

    def told(*arguments: str) -> dict[str, object]:
        assert run_command(arguments=["auth", *arguments, "--json"]) == 0
        (one,) = objects(capfd.readouterr().out)
        return one

    made = told("init", str(folder))
    added = told("add", str(folder), "daemon", "d2")
    rotated = told("rotate", str(folder), "daemon", "d2", "--grace")
    removed = told("remove", str(folder), "daemon", "d2")
    extended = told("extend", str(folder), "--pool", "gpu")

    assert made["seeds"] == str(folder / "seeds")
    assert str(added["seed"]).endswith("daemon/d2.nk")
    assert rotated["old_key_valid"] is True
    assert all("reload" in str(one["next"]) for one in (added, rotated, removed, extended))
