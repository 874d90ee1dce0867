"""``nexofork sidecar`` and ``nexofork eval``, on the fleet and in their own process."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from tests.integration.cli.conftest import objects
from tests.support.conversation import KEY, call, says
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli.conftest import World


def files(world: World) -> list[str]:
    """The arguments that name the session."""
    return ["--request", str(world.request), "--reply", str(world.reply)]


def suite(world: World, folder: Path, *cases: dict[str, Any]) -> Path:
    """A file of evaluations beside nothing: the request is named by its path."""
    lines = [f"request = {json.dumps(str(world.request))}", f"reply = {json.dumps(str(world.reply))}"]
    for case in cases:
        lines += ["[[case]]", *(f"{key} = {json.dumps(value)}" for key, value in case.items())]
    file = folder / "suite.toml"
    file.write_text("\n".join(lines))
    return file


@pytest.mark.parametrize("where", ["fleet", "local"])
def test_btw_prints_the_answer(world: World, where: str) -> None:
    """On a daemon, or in this process without NATS; the session's cache is read either way."""
    question = says("Where is it?", "In router.py.")
    command = ["sidecar", "btw", question, *files(world), "--json"]
    done = world.ask(*command) if where == "fleet" else world.run(*command, "--local", "--nats", "nats://127.0.0.1:1")

    (said,) = objects(done.stdout)
    assert done.returncode == 0, done.stderr
    assert said["text"] == "In router.py."
    assert said["result"]["daemon"] == (None if where == "local" else "d1")
    assert said["result"]["usage"]["cache_read_input_tokens"] >= 5_000


def test_people_get_words_and_nothing_else(world: World) -> None:
    """An answer is one line on stdout; a suggestion that is none prints nothing."""
    answer = world.ask("sidecar", "btw", says("Well?", "Yes \x1b[31m."), *files(world))
    assert (answer.returncode, answer.stdout) == (0, "Yes ?[31m.\n")
    away = world.ask("sidecar", "away", "--since", says("an hour", "NOTHING"), *files(world))
    assert (away.returncode, away.stdout) == (0, "")
    suggested = world.ask("sidecar", "suggest", *files(world))
    assert suggested.returncode == 0
    assert suggested.stdout.startswith("Scope: A task beside the conversation")
    assert len(suggested.stdout.splitlines()) == 1


def test_session_memory_keeps_a_file(world: World, tmp_path: Path) -> None:
    """It is written, and said to be."""
    notes = tmp_path / "session.md"
    notes.write_text(says("Old.", "# Task\nnew"))
    done = world.ask("sidecar", "session-memory", "--notes", notes, *files(world))

    assert (done.returncode, done.stdout) == (0, "The notes were written.\n")
    assert notes.read_text() == "# Task\nnew\n"


@pytest.mark.parametrize("where", ["fleet", "local"])
def test_a_dream_is_dreamed_once(world: World, tmp_path: Path, where: str) -> None:
    """The second time there is nothing new; held by somebody else, it is left alone. None of that is an error."""
    command = ["sidecar", "dream", "--memory", str(tmp_path), *files(world)]
    first = world.run(*command, "--json", "--local") if where == "local" else world.ask(*command, "--json")
    second = world.ask(*command, "--json")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert [objects(done.stdout)[0]["outcome"] for done in (first, second)] == ["ran", "nothing_new"]
    (tmp_path / ".dream.lock").write_text('{"owner": "night", "host": "h", "pid": 1}')
    held = world.ask(*command)
    assert held.returncode == 0
    assert held.stdout.startswith("Not dreamed: another dream has the folder: night, last heard of")


def test_ctrl_c_ends_a_sidecar(own_pool: World, tmp_path: Path) -> None:
    """Nobody took it yet; the lock is given back."""
    arguments = ["--memory", str(tmp_path), *files(own_pool), *own_pool.at]
    with own_pool.start("sidecar", "dream", *arguments) as process:
        while not (tmp_path / ".dream.lock").exists() or not (tmp_path / ".dream.lock").read_text():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert (tmp_path / ".dream.lock").read_text() == ""


def test_a_sidecar_here_without_a_key_is_bad_input(world: World) -> None:
    """It is said what is missing, and nothing was sent; on the fleet the same would be the daemon's matter."""
    keyless = {name: value for name, value in world.environment.items() if name != "ANTHROPIC_API_KEY"}
    before = len(world.sim.log)
    done = world.run("sidecar", "btw", "Why?", "--local", *files(world), env=keyless)

    assert (done.returncode, done.stdout) == (2, "")
    assert "Check ANTHROPIC_API_KEY" in done.stderr
    assert len(world.sim.log) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["btw", " "], "is empty"),
        (["dream", "--memory", "/nowhere/at/all"], "is not a folder on this host"),
        (["session-memory", "--notes", "/nowhere/notes.md"], "is not a folder"),
        (["suggest", "--tool-name", "x"], "does not name two tools"),
        (["away", "--timeout", "0"], "above 0"),
    ],
)
def test_bad_input_is_exit_code_2(world: World, arguments: list[str], words: str) -> None:
    """Named in one line."""
    done = world.ask("sidecar", *arguments, *files(world))
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("where", ["fleet", "local"])
def test_an_evaluation_has_a_verdict_per_case(world: World, tmp_path: Path, where: str) -> None:
    """JSON on stdout, JUnit in a file, and exit code 1 where a case failed."""
    looks = says("Look.", {"tools": [call(command="echo hi")]}, "It says hi.")
    file = suite(
        world,
        tmp_path,
        {"name": "good", "prompt": looks, "runs": 2, "expect.contains": "hi", "expect.min_hit_ratio": 0.9},
        {"name": "bad", "prompts": ["One.", says("Two.", "two")], "expect.contains": "three"},
    )
    command = ["eval", str(file), "--json", "--junit", str(tmp_path / "out.xml")]
    done = world.ask(*command) if where == "fleet" else world.run(*command, "--local")

    good, bad = objects(done.stdout)
    assert done.returncode == 1, done.stderr
    assert (good["case"], good["passed"], good["passed_runs"]) == ("good", True, 2)
    assert good["runs"][0]["tools"] == ["Bash"]
    assert (bad["passed"], len(bad["runs"][0]["run_ids"])) == (False, 2)
    assert "does not contain 'three'" in bad["runs"][0]["failures"][0]
    root = ElementTree.fromstring((tmp_path / "out.xml").read_bytes())
    assert (root.get("tests"), root.get("failures")) == ("2", "1")


def test_people_get_a_table_of_cases(world: World, tmp_path: Path) -> None:
    """And exit code 0 where all passed."""
    file = suite(world, tmp_path, {"name": "good", "prompt": says("Say.", "hi"), "expect.contains": "hi"})
    done = world.ask("eval", file, "--runs", "3")

    assert done.returncode == 0, done.stderr
    header, row, _, summary = done.stdout.splitlines()
    assert header.split() == ["case", "verdict", "runs", "tokens", "least", "hit", "$"]
    assert row.split()[:3] == ["good", "passed", "3/3"]
    assert summary == "1 of 1 case passed"
    assert done.stderr.splitlines() == ["passed  good"] * 3


def test_an_evaluation_that_cannot_be_run_is_exit_code_2(world: World, tmp_path: Path) -> None:
    """Before anything is paid for: a wrong file, no request, a report that cannot be written."""
    asked = len(world.sim.log)
    empty = tmp_path / "empty.toml"
    empty.write_text('[[case]]\nprompt = "x"')
    good = suite(world, tmp_path, {"prompt": "x"})
    for arguments, words in (
        ([tmp_path / "none.toml"], "cannot be read"),
        ([empty], "names no `request`"),
        ([empty, "--request", tmp_path / "none"], "cannot be read"),
        ([good, "--junit", tmp_path], "cannot be written"),
    ):
        done = world.ask("eval", *arguments)
        assert done.returncode == 2
        assert words in done.stderr
    assert len(world.sim.log) == asked
    assert KEY not in done.stderr


def test_a_fleet_that_is_down_is_exit_code_3(world: World, tmp_path: Path) -> None:
    """For both."""
    good = suite(world, tmp_path, {"prompt": "x"})
    for arguments in (["eval", str(good)], ["sidecar", "suggest", *files(world)]):
        assert world.ask(*arguments, "--nats", "nats://127.0.0.1:1").returncode == 3
