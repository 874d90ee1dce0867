"""``nexofork fork``: the contract that other languages rely on."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli.conftest import objects, until
from tests.support.conversation import call, says
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.integration.cli.conftest import World

FIELDS = {
    "run_id",
    "directive",
    "status",
    "final_text",
    "report",
    "usage",
    "calls",
    "cost_usd",
    "expected_read",
    "miss_cause",
    "decision",
    "attempts",
    "turns",
    "tool_uses",
    "duration_ms",
    "daemon",
    "error",
}
USAGE = {"input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens"}
SLEEPS = says("Sleep.", {"tools": [call(command="sleep 60")]})
ECHOES = says("Echo.", {"tools": [call(command="echo hello")]}, "Scope: echo\nResult: it said hello")


def test_json_is_one_object_per_finished_child(world: World) -> None:
    """Each has every field of the contract, and read the parent's prefix from the cache."""
    done = world.run(*world.forking("Look at the router.", "Look at the schema."), "--json")

    children = objects(done.stdout)
    assert done.returncode == 0, done.stderr
    assert {child["directive"] for child in children} == {"Look at the router.", "Look at the schema."}
    for child in children:
        assert set(child) >= FIELDS
        assert set(child["usage"]) >= USAGE
        assert (child["status"], child["daemon"], child["attempts"], child["turns"]) == ("completed", "d1", 1, 1)
        assert child["usage"]["cache_read_input_tokens"] >= 5_000
        assert child["report"]["result"] == "Done."
        assert [set(one) >= USAGE for one in child["calls"]] == [True]


def test_a_tool_runs_as_what_its_name_was_said_to_mean(world: World) -> None:
    """The parent's `Bash` is our Glob here, for the daemon and in the events."""
    globs = says("Find.", {"tools": [call(pattern="*.md", path="/nowhere")]}, "Done.")

    done = world.run(*world.forking(globs), "--events", "--tool-name", "Bash=Glob")

    tools = [event for event in objects(done.stdout) if event["event"].startswith("tool_")]
    assert done.returncode == 0, done.stderr
    assert tools[0]["name"] == "Glob"
    assert tools[-1]["is_error"]


def test_events_are_everything_as_it_happens(world: World) -> None:
    """The events of a run in order; the last one is the whole result."""
    done = world.run(*world.forking(ECHOES), "--events")

    events = objects(done.stdout)
    assert done.returncode == 0, done.stderr
    names = ["requested", "claimed", "fan_out_decided", "turn", "tool_started", "tool_finished", "turn", "final"]
    assert [event["event"] for event in events] == names
    assert len({event["run_id"] for event in events}) == 1
    assert events[0]["directive"] == ECHOES
    assert (events[1]["daemon"], events[1]["epoch"]) == ("d1", 1)
    assert (events[4]["name"], events[5]["is_error"]) == ("Bash", False)
    assert set(events[-1]) >= FIELDS
    assert events[-1]["report"]["result"] == "it said hello"


def test_events_come_while_the_run_goes_on(world: World) -> None:
    """A reader sees the claim and the turn of a child that is not over."""
    with world.start(*world.forking(SLEEPS), "--events") as process:
        seen = until(process, "tool_started")
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    assert [event["event"] for event in seen] == ["requested", "claimed", "fan_out_decided", "turn", "tool_started"]


def test_people_get_progress_and_a_table(world: World) -> None:
    """Without a terminal every event is a plain line on stderr; the reports and the table are on stdout."""
    done = world.run(*world.forking("Look around.", "Look again."))

    assert done.returncode == 0
    assert "Look around." in done.stderr
    assert "claimed by d1" in done.stderr
    reports, _, table = done.stdout.rpartition("\n\nfork ")
    assert reports.count("Result: Done.") == 2
    header, first, second, *_, summary = f"fork {table}".splitlines()
    assert header.split() == ["fork", "status", "daemon", "read", "written", "fresh", "hit", "$"]
    assert first.split()[2:4] == ["completed", "d1"]
    assert second.startswith("Look again.")
    assert summary.startswith("2 of 2 completed, $")
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_has_one_changing_line_per_child(world: World, no_color: str) -> None:
    """Lines are drawn over; colours are there unless NO_COLOR is set."""
    shown = _on_a_terminal(world, [*world.forking("Look around.")], {"NO_COLOR": no_color, "TERM": "xterm"})

    assert "\x1b[1A\x1b[J" in shown
    assert "completed" in shown
    assert bool(re.search(r"\x1b\[\d+m", shown)) is not bool(no_color)


def test_a_child_that_does_not_complete_is_exit_code_1(world: World) -> None:
    """The others' results are printed all the same."""
    done = world.ask(*world.forking(ECHOES, "Look around."), "--max-turns", "1", "--json")

    statuses = {child["directive"]: child["status"] for child in objects(done.stdout)}
    assert statuses == {ECHOES: "max_turns", "Look around.": "completed"}
    assert done.returncode == 1


def test_a_timeout_ends_the_child(world: World) -> None:
    """It is a named end, and the reason is said to people."""
    done = world.ask(*world.forking(SLEEPS), "--timeout", "0.5")

    assert done.returncode == 1
    assert "timed_out" in done.stdout
    assert "timed_out" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_aborts_the_children(world: World, number: signal.Signals) -> None:
    """The abort is on the log when the command ends, the children's ends are printed, and the exit code is 130."""
    ids = [uuid.uuid4().hex, uuid.uuid4().hex]
    given = [word for run_id in ids for word in ("--run-id", run_id)]
    with world.start(*world.forking(SLEEPS, SLEEPS), *given, "--events") as process:
        until(process, "tool_started", "tool_started")  # both: one that is not requested yet has no end to report
        process.send_signal(number)
        printed, errors = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 130
    finals = [event for event in objects(printed) if event["event"] == "final"]
    assert sorted(final["run_id"] for final in finals) == sorted(ids)
    assert {final["status"] for final in finals} == {"aborted"}
    assert errors.splitlines()[-1] == "Aborting 2 runs."
    for run_id in ids:
        assert "abort" in [entry["event"] for entry in objects(world.ask("logs", run_id, "--json").stdout)]


def test_ctrl_c_ends_what_is_requested_and_what_is_not_yet(own_pool: World) -> None:
    """Of more children than may wait for a daemon at once, those requested end as aborted, the others never begin."""
    ids = [uuid.uuid4().hex for _ in range(66)]
    given = [word for run_id in ids for word in ("--run-id", run_id)]
    with own_pool.start(*own_pool.forking(*["Look."] * 66), *given, "--events") as process:
        until(process, *["requested"] * 64)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 130, errors
    ends = {event["run_id"]: event["status"] for event in objects(printed) if event["event"] == "final"}
    assert ends == dict.fromkeys(ids[:64], "aborted")
    assert errors.splitlines()[-1] == "Aborting 66 runs."
    [seen] = objects(own_pool.ask("ps", "--all", "--json", *own_pool.at).stdout)
    assert {row["run_id"] for row in seen["runs"]} == set(ids[:64])


def test_without_a_daemon_the_wait_is_explained(own_pool: World) -> None:
    """How many daemons and requests there are, what to do, and the deadline; a queued child can be aborted."""
    run_id = uuid.uuid4().hex
    with own_pool.start(*own_pool.forking("Look."), "--run-id", run_id, "--json") as process:
        assert process.stderr is not None
        assert "anthropic-version" in process.stderr.readline()
        notice = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)

    assert "1 of 1 run, 0 daemons" in notice
    assert "about 1 request queued" in notice
    assert "nexofork daemon" in notice
    assert "given up after 300 s if no daemon is there that could take it" in notice
    assert process.returncode == 130
    log = objects(own_pool.ask("logs", run_id, "--json", *own_pool.at).stdout)
    assert [entry["event"] for entry in log] == ["requested", "abort"]


def test_without_a_daemon_a_child_is_given_up_when_the_caller_says(own_pool: World) -> None:
    """It ends as failed after --queue-limit, with what to do."""
    done = own_pool.run(*own_pool.forking("Look."), "--queue-limit", "0.3", "--json")

    [child] = objects(done.stdout)
    assert (done.returncode, child["status"]) == (1, "failed")
    assert "No daemon took the run within 0.3 s" in child["error"]
    assert "Start one with `nexofork daemon`" in child["error"]


def test_detached_children_are_waited_for_by_another_process(world: World) -> None:
    """The ids come at once; `wait` then gives the same objects, in whatever process."""
    left = world.run(*world.forking("Look around.", "Look again."), "--group", "g", "--detach", "--json")
    runs = objects(left.stdout)
    ids = [run["run_id"] for run in runs]

    done = world.run("wait", *ids, "--json")

    children = objects(done.stdout)
    assert (left.returncode, done.returncode) == (0, 0), left.stderr + done.stderr
    assert [run["directive"] for run in runs] == ["Look around.", "Look again."]
    assert sorted(child["run_id"] for child in children) == sorted(ids)
    assert all(set(child) >= FIELDS for child in children)


def test_a_flood_is_detached_without_any_daemon(own_pool: World) -> None:
    """More children than may wait at once are requested all the same: nobody stays to wait with them."""
    assert len(own_pool.detached(*(f"Part {number}." for number in range(80)))) == 80


def test_a_used_run_id_is_bad_input(world: World) -> None:
    """It names the run, and the sibling that was requested before is not left running."""
    (run_id,) = world.detached("Look around.")
    other = uuid.uuid4().hex

    done = world.ask(*world.forking(SLEEPS, "Look."), "--run-id", other, "--run-id", run_id)

    assert done.returncode == 2
    assert f"Run {run_id} was already requested; `nexofork wait {run_id}`" in done.stderr
    assert "Note:" not in done.stderr
    assert objects(world.ask("wait", other, "--json").stdout)[0]["status"] == "aborted"


def test_the_request_can_come_from_stdin(world: World) -> None:
    """``-`` is stdin, byte for byte."""
    arguments = ("fork", "--request", "-", "--reply", world.reply, "-d", "Look.", "--json")
    done = world.run(*arguments, input=world.request.read_text())

    assert done.returncode == 0, done.stderr
    assert objects(done.stdout)[0]["usage"]["cache_read_input_tokens"] >= 5_000


@pytest.mark.parametrize("how", [["--json"], ["--detach"], []])
def test_a_missing_version_is_noted(world: World, how: list[str]) -> None:
    """Once, on stderr, however many children; not if it was given."""
    silent = world.ask(*world.forking("Look."), *how, "--header", "anthropic-version:2023-06-01")
    noted = world.ask(*world.forking("Look.", "Look again."), *how)

    assert (silent.returncode, noted.returncode) == (0, 0)
    assert "anthropic-version" not in silent.stderr
    assert noted.stderr.count("pass --header anthropic-version:VALUE") == 1
    assert "anthropic-version" not in noted.stdout


def test_a_workspace_can_be_given(own_pool: World) -> None:
    """So that a miss in another one is named; headers without a meaning are still noted."""
    other = replace(own_pool, environment={**own_pool.environment, "ANTHROPIC_API_KEY": "sk-sim-other"})
    given = ["--header", "Anthropic-Workspace-Id: wrkspc_parent", "--header", "x-other:1", "--json"]
    with other.daemon():
        done = other.ask(*other.forking("Look."), *given)

    (child,) = objects(done.stdout)
    assert child["miss_cause"] == "workspace", done.stderr
    assert "header x-other takes no part in the cache" in done.stderr
    assert "header anthropic-workspace-id" not in done.stderr


@pytest.mark.alone
def test_an_unreachable_nats_is_exit_code_3_and_quick(world: World) -> None:
    """One line says where it was looked for and what to do."""
    began = time.monotonic()
    done = world.run(*world.forking("Look."), "--nats", "nats://127.0.0.1:9")

    assert done.returncode == 3
    assert time.monotonic() - began < 8
    assert len(done.stderr.splitlines()) == 1
    assert "nats://127.0.0.1:9" in done.stderr
    assert "nexofork serve" in done.stderr


def test_a_reader_that_leaves_is_not_complained_about(world: World) -> None:
    """A closed stdout ends the command quietly, and its children with it."""
    run_id = uuid.uuid4().hex
    with world.start(
        *world.forking("Look.", SLEEPS), "--run-id", "x" + run_id, "--run-id", run_id, "--json"
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 1
        told = process.stderr.read()
    assert "Traceback" not in told
    assert "rror" not in told
    assert objects(world.ask("wait", run_id, "--json").stdout)[0]["status"] == "aborted"


def _on_a_terminal(world: World, arguments: list[str], environment: dict[str, str]) -> str:
    """Run a command on a terminal and return everything it showed."""
    ours, theirs = pty.openpty()
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with world.start(*arguments, env={**world.environment, **environment}, **streams) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 65536):
                shown += piece
        except OSError:  # how a terminal says that nobody is left on the other side
            pass
        os.close(ours)
        assert process.wait(PATIENCE_S) == 0, shown
    return shown.decode()


def test_the_objects_are_plain_json_lines(world: World) -> None:
    """Text beyond ASCII and line ends keep an object on one line."""
    done = world.run(*world.forking("Schau: \u00e4\u00f6\u00fc \u2603\nzweite Zeile"), "--json", text=False)

    (line,) = done.stdout.splitlines()
    assert json.loads(line)["directive"] == "Schau: \u00e4\u00f6\u00fc \u2603\nzweite Zeile"


def test_a_child_over_budget_is_shown_with_what_was_reached(world: World) -> None:
    """For programs and for people; the exit code says that not all completed."""
    told = world.ask(*world.forking("Look."), "--budget-usd", "0.01", "--json")
    shown = world.ask(*world.forking("Look."), "--budget-tokens", "100")

    (child,) = objects(told.stdout)
    assert (told.returncode, child["status"], child["end"]) == (1, "over_budget", "over_budget")
    assert (child["budget"]["unit"], child["budget"]["limit"], child["budget"]["spent"]) == ("usd", 0.01, 0)
    assert child["budget"]["needed"] > 0.01
    assert shown.returncode == 1
    assert "over_budget" in shown.stdout
    assert "The fork's budget of 100 tokens does not cover the next call" in shown.stderr


def test_children_of_several_calls_share_a_group_budget(world: World) -> None:
    """What the first call spent is not there for the second; the account is not listed as a run."""
    group = ("--group", uuid.uuid4().hex, "--group-budget-tokens", "12000")
    first = world.ask(*world.forking("Look."), *group, "--json")
    second = world.ask(*world.forking("Look again."), *group, "--json")

    assert [done.returncode for done in (first, second)] == [0, 1]
    (child,) = objects(second.stdout)
    assert (child["status"], child["budget"]["group"]) == ("over_budget", group[1])
    assert child["budget"]["spent"] > 5_000
    (listing,) = objects(world.ask("ps", "--all", "--json", *world.at).stdout)
    assert not [run["run_id"] for run in listing["runs"] if run["run_id"].startswith("budget-")]


def test_a_child_has_the_filters_it_was_given(world: World) -> None:
    """Both must allow: the profile has the shell, and read-only keeps it from writing."""
    directive = says(
        "Work.", {"tools": [call(command="touch made")]}, {"tools": [call(command="pwd")]}, {"text": "Ok."}
    )
    filters = ("--filter", "profile:shell", "--filter", "readonly")
    told = world.ask(*world.forking(directive), *filters, "--events")

    finished = [event for event in objects(told.stdout) if event["event"] == "tool_finished"]
    assert told.returncode == 0
    assert [event["is_error"] for event in finished] == [True, False]
