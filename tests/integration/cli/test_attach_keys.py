"""What can be done about a run by the keys of `attach`, and what that leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.cli.conftest import objects
from tests.integration.cli.test_permissions import asking, logged
from tests.integration.cli.test_runs import SLEEPS, listed
from tests.support.conversation import call, says

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli.conftest import World


def test_a_message_is_typed_and_read(world: World, tmp_path: Path) -> None:
    """The line is edited as usual, held apart from what happens meanwhile, and reaches the child."""
    waits = call(command=f"until [ -e {tmp_path}/go ]; do sleep 0.02; done")
    (run_id,) = world.detached(says("Nap.", {"tools": [waits]}, "Scope: all\nResult: slept"))
    with world.at_terminal("attach", run_id[:13]) as terminal:
        terminal.until("Keys: m message, b background, a abort, ? help")
        terminal.until("Bash runs")
        terminal.type("m")
        terminal.until("Message (empty sends nothing): ")
        terminal.type("mind the gxp\x7f\x7fap\r")
        terminal.until("Sent")
        (tmp_path / "go").touch()
        terminal.until("reads 1 message")
        terminal.until("Result: slept")
        assert terminal.ended() == 0

    (delivered,) = logged(world, run_id, "delivered")
    assert delivered["texts"] == ["mind the gap"]


def test_background_leaves_the_run_alone(world: World) -> None:
    """By b and by Ctrl-D, with exit code 0 and the terminal as it was; an empty message is none."""
    (run_id,) = world.detached(SLEEPS)
    for key in ("b", "\x04"):
        with world.at_terminal("attach", run_id) as terminal:
            before = terminal.modes
            terminal.until("Bash runs")
            assert terminal.modes != before
            terminal.type("m")
            terminal.until("sends nothing): ")
            terminal.type("\r")
            terminal.until("Nothing was sent.")
            terminal.type(key)
            terminal.until(f"The run goes on; `nexofork attach {run_id}` watches it again.")
            assert terminal.ended() == 0
            assert terminal.modes == before

    assert listed(world)[run_id]["status"] == "running"
    assert logged(world, run_id, "delivered") == []
    world.ask("abort", run_id)


def test_an_abort_is_asked_about_first(world: World) -> None:
    """No, and keys that mean nothing, change nothing; yes with a reason is in the result."""
    (run_id,) = world.detached(SLEEPS)
    with world.at_terminal("attach", run_id) as terminal:
        terminal.until("Bash runs")
        terminal.type("?")
        terminal.until("a  abort the run, after asking")
        terminal.type("\x1b[A")  # an arrow key ends with an A
        terminal.type("x")
        terminal.until("Keys: m message")
        terminal.type("a")
        terminal.until("Abort this run? y(es), y REASON, n(o): ")
        terminal.type("n\r")
        terminal.until("Not aborted.")
        assert listed(world)[run_id]["status"] == "running"
        terminal.type("a")
        terminal.until("Abort this run?")
        terminal.type("y not needed\r")
        terminal.until("aborted after 1 turn")
        assert terminal.ended() == 1

    (ended,) = objects(world.ask("wait", run_id, "--json").stdout)
    assert (ended["status"], ended["abort"]["note"]) == ("aborted", "not needed")


def test_a_question_waits_for_the_message_that_is_being_typed(world: World, tmp_path: Path) -> None:
    """What is typed for one is not taken for the other; a question that is waved away can be answered elsewhere."""
    run_id, ask_id = asking(world, f"touch {tmp_path}/x")
    with world.at_terminal("attach", run_id) as terminal:
        terminal.until("Allow?")
        terminal.type("\x04")
        terminal.until("left to others")
        terminal.type("m")
        terminal.until("sends nothing): ")
        assert world.ask("answer", run_id, ask_id, "allow").returncode == 0
        world.until_logged(run_id, "final")
        assert terminal.ended() == 0  # the end of the run ends the typing, too

    assert terminal.shown.index("sends nothing): ") < terminal.shown.index("Bash allowed")
    assert "Result: done" in terminal.shown
    assert (tmp_path / "x").exists()
