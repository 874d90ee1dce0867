"""`ps --watch`: a pool as it changes, at a terminal, in a pipe and as JSON."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from nexofork.cli.columns import width_of
from tests.integration.cli.conftest import objects, until
from tests.integration.cli.test_runs import ECHOES, SLEEPS
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    import subprocess

    from tests.integration.cli.conftest import World
    from tests.support.nats import AccountsServer
    from tests.support.terminals import Terminal


def row_of(terminal: Terminal, run_id: str) -> str:
    """The line of a run on the screen; empty where there is none."""
    return next((line for line in terminal.screen if line.startswith(run_id[:20])), "")


def test_a_terminal_shows_what_changes_in_place(empty_pool: World) -> None:
    """From queued to running to over, with slots, hit ratio and spending, each line written over itself."""
    with empty_pool.at_terminal("ps", "--watch", *empty_pool.at, columns=170) as terminal:
        terminal.until_holds(lambda: "No daemons. Start one with `nexofork daemon`." in terminal.screen)
        (run_id,) = empty_pool.detached(SLEEPS)
        terminal.until_holds(lambda: "queued" in row_of(terminal, run_id))
        with empty_pool.daemon("--name", "watched") as daemon:
            terminal.until_holds(lambda: "tool_started" in row_of(terminal, run_id))
            terminal.until_holds(lambda: "1 host, 1/64 slots   1 running, 0 queued, 0 ended" in terminal.screen[0])
            running, totals = row_of(terminal, run_id).split(), terminal.screen[0]
            empty_pool.ask("abort", run_id, *empty_pool.at)
            terminal.until_holds(lambda: "aborted" in row_of(terminal, run_id))
            daemon.send_signal(signal.SIGTERM)
            terminal.until_holds(lambda: "0 hosts, 0/0 slots   0 running, 0 queued, 1 ended" in terminal.screen[0])
        terminal.type("q")
        assert terminal.ended() == 0

    assert running[1:6] == ["running", "tool_started", "watched", "1", "1"]
    assert running[6].endswith("%")
    assert float(running[7]) > 0
    assert "spent $0." in totals
    assert terminal.shown.count("\x1b[2J") == 1  # nothing was ever blanked
    picture, _, after = terminal.shown.partition("\x1b[?25h\x1b[?1049l")  # the cursor and the first screen are back
    assert picture.startswith("\x1b[?1049h\x1b[?25l")
    assert run_id in after


def test_ctrl_c_leaves_the_terminal_as_it_was(empty_pool: World) -> None:
    """It is how a watch ends, so the exit code is 0; keys are echoed again and lines are lines."""
    with empty_pool.at_terminal("ps", "-w", *empty_pool.at) as terminal:
        before = terminal.modes
        terminal.until_holds(lambda: "No runs." in terminal.screen)
        during = terminal.modes
        terminal.type("\x03")
        assert terminal.ended() == 0
        assert terminal.modes == before != during


def test_a_picture_fits_the_window(own_pool: World) -> None:
    """No line is wider, none is below the last, and another size is drawn at once."""
    own_pool.detached(*(f"分支 {number} " * 20 for number in range(30)))
    with own_pool.at_terminal("ps", "--watch", *own_pool.at, columns=60, rows=12) as terminal:
        terminal.until_holds(lambda: any("q leaves" in line for line in terminal.screen))
        small = terminal.screen
        terminal.resize(170, 40)
        terminal.until_holds(lambda: len(terminal.screen) > 30)
        large = terminal.screen
        terminal.resize(30, 8)
        terminal.until_holds(lambda: 0 < len(terminal.screen) <= 8 and "q leaves" in terminal.screen[-1])
        tiny = terminal.screen

    for lines, columns, rows in ((small, 60, 12), (large, 170, 40), (tiny, 30, 8)):
        assert len(lines) <= rows
        assert max(map(width_of, lines)) < columns
        assert lines[-1].startswith(f"pool {own_pool.pool}"[: columns - 2])
    assert any(line.startswith("and ") and line.endswith(" more") for line in small)


def test_a_pipe_gets_a_line_for_each_change(empty_pool: World) -> None:
    """Without colours or movements; SIGTERM ends it in order."""
    with empty_pool.start("ps", "--watch", *empty_pool.at) as process, empty_pool.daemon("--name", "piped"):
        assert process.stdout is not None
        (run_id,) = empty_pool.detached(ECHOES)
        lines = _lines_until(process, f"{run_id}  completed")
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=PATIENCE_S)[0]

    text = "".join(lines) + rest
    assert process.returncode == 0
    assert "\x1b" not in text
    assert any("daemon piped on" in line for line in lines)
    assert "on piped, 2 turns, read " in lines[-1]


def _lines_until(process: subprocess.Popen[str], words: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if words in line:
            return lines
    raise AssertionError(lines)


def test_programs_get_an_object_for_each_change(own_pool: World) -> None:
    """First the state, then runs and daemons; what following tells is what listing tells."""
    (first,) = own_pool.detached(ECHOES)
    with own_pool.start("ps", "--watch", "--json", *own_pool.at) as process:
        (state,) = until(process, "state")
        with own_pool.daemon("--name", "told") as daemon:
            seen = [*until(process, "daemon")]
            (second,) = own_pool.detached(ECHOES)
            while {one["run_id"] for one in seen if one["event"] == "run" and one["last"] == "final"} < {first, second}:
                seen += until(process, "run")
            daemon.send_signal(signal.SIGTERM)
            until(process, "daemon_gone")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0

    assert [(run["run_id"], run["status"]) for run in state["runs"]] == [(first, "queued")]
    assert state["totals"].items() >= {"queued": 1, "running": 0, "ended": 0, "daemons": 0, "cost_usd": None}.items()
    (listed,) = objects(own_pool.ask("ps", "--json", *own_pool.at).stdout)
    for run in listed["runs"]:
        last = [one for one in seen if one.get("run_id") == run["run_id"]][-1]
        assert {key: last[key] for key in run if key != "age_s"} == {key: run[key] for key in run if key != "age_s"}
    assert seen[-1]["totals"]["ended"] == 2
    assert abs(seen[-1]["totals"]["cost_usd"] - sum(run["cost_usd"] for run in listed["runs"])) < 1e-9


def test_a_parent_sees_what_the_feed_does_not_show_it(world: World, accounts_server: AccountsServer) -> None:
    """The server shows a parent no requests of others in the feed; a run is there all the same, from its claim on."""
    environment = {**world.environment, "NATS_URL": accounts_server.url}
    locked = type(world)(nats=accounts_server.url, sim=world.sim, folder=world.folder, environment=environment)
    parent, daemon = (["--nkey", str(accounts_server.seeds[role])] for role in ("parent", "daemon"))
    with locked.daemon(*daemon, "--name", "locked"), locked.start("ps", "-w", "--json", *parent) as process:
        until(process, "state")
        forked = locked.ask(*locked.forking(ECHOES), "--detach", "--json", *parent)
        (run,) = objects(forked.stdout)
        while (seen := until(process, "run")[-1])["last"] != "final":
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0

    assert (seen["run_id"], seen["status"], seen["turns"]) == (run["run_id"], "completed", 2)
