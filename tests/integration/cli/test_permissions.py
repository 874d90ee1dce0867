"""What a run asks permission for, on the command line: shown everywhere, answered by `answer` and at a terminal."""

from __future__ import annotations

import re
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli.conftest import World, objects, until
from tests.support.conversation import call, says
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.nats import AccountsServer


def runs(*commands: str) -> str:
    """A directive whose child runs one command per turn."""
    return says("Work.", *({"tools": [call(command=command)]} for command in commands), "Scope: all\nResult: done")


def asking(world: World, *commands: str, **more: str) -> tuple[str, str]:
    """Fork a child that asks, and return run and question once it has asked."""
    (run_id,) = world.detached(runs(*commands), permissions="bubble", **more)
    world.until_logged(run_id, "asked")
    return run_id, logged(world, run_id, "asked")[0]["ask_id"]


def logged(world: World, run_id: str, event: str) -> list[dict[str, Any]]:
    """The entries of a kind on a run's log."""
    entries = objects(world.ask("logs", run_id, "--json", *world.at).stdout)
    return [entry for entry in entries if entry["event"] == event]


def test_answer_allows_and_denies(world: World, tmp_path: Path) -> None:
    """With a note for the model and a rule for the rest of the run; the log tells it all."""
    commands = [f"touch {tmp_path}/{name}" for name in "abc"]
    run_id, first = asking(world, *commands, f"rm {tmp_path}/a", "git commit -m x")

    done = world.ask("answer", run_id, first, "allow", "--rule", "Bash(touch *)", "--json")
    wait_for(lambda: len(logged(world, run_id, "asked")) == 2)
    again = world.ask("answer", run_id, first, "deny")
    second = logged(world, run_id, "asked")[1]["ask_id"]
    denied = world.ask("answer", run_id, second, "deny", "--note", "keep it")
    wait_for(lambda: len(logged(world, run_id, "asked")) == 3)
    third = logged(world, run_id, "asked")[2]["ask_id"]
    remembered = world.ask("answer", run_id, third, "deny", "--remember")
    assert world.ask("wait", run_id).returncode == 0

    assert objects(done.stdout) == [
        {"run_id": run_id, "ask_id": first, "outcome": "answered", "answer": "allow", "rules": ["Bash(touch *)"]}
    ]
    assert (again.returncode, "was allowed before" in again.stderr) == (2, True)
    assert (denied.returncode, "answered deny" in denied.stdout) == (0, True)
    assert "for the rest of the run: Bash(git commit *)" in remembered.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]
    decided = logged(world, run_id, "permitted")
    assert [(one["allowed"], one["note"], one["rules"], one["by"]) for one in decided] == [
        (True, "", ["Bash(touch *)"], "nexofork answer"),
        (False, "keep it", [], "nexofork answer"),
        (False, "", ["Bash(git commit *)"], "nexofork answer"),
    ]
    assert logged(world, run_id, "asked")[1]["arguments"] == {"command": f"rm {tmp_path}/a"}
    text = world.ask("logs", run_id).stdout
    assert f"permission {second}: Bash rm {tmp_path}/a" in text
    assert f"{second}: Bash denied: keep it" in text


def wait_for(holds: Any) -> None:
    """Return when a fact holds."""
    give_up = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up


def test_an_answer_that_does_not_fit_is_refused(world: World, tmp_path: Path) -> None:
    """Neither allow nor deny, no such question, a rule that is none, nothing to remember, or after the end: by name."""
    run_id, ask_id = asking(world, f"echo $(ls) > {tmp_path}/x")

    for arguments, words in (
        ([ask_id, "maybe"], "answer it with allow or deny"),
        ([ask_id, "--data", '{"payload": {"text": "x"}}'], "answer it with allow or deny"),
        (["permission-1-0", "allow"], "no open ask 'permission-1-0'"),
        ([ask_id, "allow", "--rule", "Bash("], "The rule 'Bash(' cannot be read"),
        ([ask_id, "allow", "--remember"], "suggests nothing to remember"),
    ):
        done = world.ask("answer", run_id, *arguments)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert world.ask("answer", run_id, ask_id, "allow").returncode == 0
    world.ask("wait", run_id)
    late = world.ask("answer", run_id, ask_id, "allow")

    assert (late.returncode, "is over" in late.stderr) == (2, True)
    assert (tmp_path / "x").exists()


def test_events_show_what_is_asked_and_decided(world: World, tmp_path: Path) -> None:
    """`fork --events` and `attach --json` alike; a deadline that passes is told as such."""
    options = ["--permissions", "bubble", "--permission-deadline", "0.5", "--events"]
    forked = world.ask(*world.forking(runs(f"touch {tmp_path}/x")), *options)
    events = objects(forked.stdout)
    run_id = events[0]["run_id"]
    attached = objects(world.ask("attach", run_id, "--json").stdout)

    for shown in (events, attached):
        (asked,) = [event for event in shown if event["event"] == "asked"]
        (decided,) = [event for event in shown if event["event"] == "permitted"]
        assert (asked["name"], asked["arguments"]) == ("Bash", {"command": f"touch {tmp_path}/x"})
        assert (asked["deadline_s"], asked["rules"]) == (0.5, [f"Bash(touch {tmp_path}/x)"])
        assert (decided["ask_id"], decided["allowed"], decided["how"]) == (asked["ask_id"], False, "deadline")
    assert not (tmp_path / "x").exists()


def test_progress_says_how_to_answer(world: World, tmp_path: Path) -> None:
    """Who reads along is given the command; `attach` without a terminal only shows the question."""
    with world.start(*world.forking(runs(f"touch {tmp_path}/x")), "--permissions", "bubble") as process:
        assert process.stderr is not None
        advice = next(found for line in process.stderr if (found := re.search(r"nexofork answer (\S+) (\S+)", line)))
        run_id, ask_id = advice[1], advice[2]
        with world.start("attach", run_id, stdin=subprocess.PIPE) as watching:
            assert watching.stderr is not None
            assert any("asks for permission: Bash touch" in line for line in watching.stderr)
            assert world.ask("answer", run_id, ask_id, "allow").returncode == 0
            assert process.wait(PATIENCE_S) == 0
            assert watching.wait(PATIENCE_S) == 0
    assert (tmp_path / "x").exists()


def test_a_policy_file_is_what_the_child_goes_by(world: World, tmp_path: Path) -> None:
    """With further rules from the command line; what neither allows is denied and nobody asked."""
    policy = tmp_path / "policy.toml"
    policy.write_text(f'mode = "deny"\nallow = ["Bash(touch {tmp_path}/a)"]\ndeny = ["FileWrite"]\ndeadline_s = 5\n')
    commands = [f"touch {tmp_path}/{name}" for name in "abc"]

    (run_id,) = world.detached(runs(*commands), permissions=str(policy), allow=f"Bash(touch {tmp_path}/b)")
    world.ask("wait", run_id)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "policy.toml"]
    assert logged(world, run_id, "asked") == []


def test_attach_asks_at_the_terminal(world: World, tmp_path: Path) -> None:
    """One question after the other: what is no answer is asked again, no with a reason, always, yes."""
    names = [f"{tmp_path}/{name}" for name in ("a", "b", "c", "d")]
    repositories = [f"git init -q {tmp_path}/{name}" for name in ("x", "y")]
    run_id, _ = asking(world, f"touch {names[0]}", f"touch {names[1]}", *repositories, f"touch {names[3]}")

    with world.at_terminal("attach", run_id) as terminal:
        terminal.until(f"command: touch {names[0]}")
        terminal.until("Allow? y(es), n(o), n REASON, a(lways): ")
        terminal.type("what?\n")
        terminal.until("Allow?")
        terminal.type("y\n")
        terminal.until(f"command: touch {names[1]}")
        terminal.until("Allow?")
        terminal.type("n not there\n")
        terminal.until("always means: Bash(git init *)")
        terminal.until("Allow?")
        terminal.type("a\n")
        terminal.until(f"command: touch {names[3]}")
        terminal.until("Allow?")
        terminal.type("yes\n")
        terminal.until("Result: done")
        assert terminal.ended() == 0

    assert sorted(str(path) for path in tmp_path.iterdir()) == [names[0], names[3], f"{tmp_path}/x", f"{tmp_path}/y"]
    decided = logged(world, run_id, "permitted")
    assert [(one["allowed"], one["note"], one["rules"]) for one in decided] == [
        (True, "", []),
        (False, "not there", []),
        (True, "", ["Bash(git init *)"]),
        (True, "", []),
    ]


def test_ctrl_c_leaves_the_run_and_its_question_alone(world: World, tmp_path: Path) -> None:
    """And an answer from elsewhere ends the asking at the next terminal."""
    run_id, ask_id = asking(world, f"touch {tmp_path}/x")
    with world.at_terminal("attach", run_id) as terminal:
        terminal.until("Allow?")
        terminal.type("\x03")
        assert terminal.ended() == 130
    assert logged(world, run_id, "permitted") == []

    with world.at_terminal("attach", run_id) as terminal:
        terminal.until("Allow?")
        assert world.ask("answer", run_id, ask_id, "allow").returncode == 0
        terminal.until("Bash allowed")
        terminal.until("Result: done")
        assert terminal.ended() == 0
    assert (tmp_path / "x").exists()


def test_only_parents_answer(world: World, accounts_server: AccountsServer, tmp_path: Path) -> None:
    """The server itself keeps daemons and observers from it."""
    environment = {**world.environment, "NATS_URL": accounts_server.url}
    locked = World(nats=accounts_server.url, sim=world.sim, folder=world.folder, environment=environment)
    parent, daemon, observer = (
        ["--nkey", str(accounts_server.seeds[role])] for role in ("parent", "daemon", "observer")
    )
    with locked.daemon(*daemon, "--name", "locked"):
        forking = [*locked.forking(runs(f"touch {tmp_path}/x")), "--permissions", "bubble", "--events", *parent]
        with locked.start(*forking) as process:
            asked = until(process, "asked")[-1]
            for wrong in (daemon, observer):
                refused = locked.ask("answer", asked["run_id"], asked["ask_id"], "allow", *wrong)
                assert (refused.returncode, "permit" in refused.stderr) == (3, True)
            assert not (tmp_path / "x").exists()
            assert locked.ask("answer", asked["run_id"], asked["ask_id"], "allow", *parent).returncode == 0
            assert until(process, "final")[-1]["status"] == "completed"
    assert (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mode = ", "cannot be read"),
        ('allow = ["Bash"]', "names no mode"),
        ('mode = "maybe"', "no permission mode 'maybe'"),
        ('mode = "deny"\nallow = "Bash"', "not a list of rules"),
        ('mode = "deny"\nallow = ["Bash(a; b)"]', "shell syntax"),
        ('mode = "deny"\nalow = []\nx = 1', "unknown keys: alow, x"),
        ('mode = "bubble"\ndeadline_s = 0', "no time to wait"),
        ("", "names no mode"),
    ],
)
def test_a_policy_file_that_cannot_be_used_is_named(world: World, tmp_path: Path, text: str, words: str) -> None:
    """With its name and what is wrong, before NATS is asked for anything."""
    policy = tmp_path / "policy.toml"
    policy.write_text(text)
    done = world.ask(*world.forking("Look."), "--permissions", policy, "--nats", "nats://127.0.0.1:9")

    assert (done.returncode, words in done.stderr, str(policy) in done.stderr) == (2, True, True), done.stderr
