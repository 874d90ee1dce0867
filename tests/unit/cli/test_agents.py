"""`nexofork agents` shows what a parent in a folder can start, and what is wrong with what it cannot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from nexofork.cli import run_command

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one definition, and a user with none."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / ".nexofork" / "agents"
    folder.mkdir(parents=True)
    (folder / "release.md").write_text(
        "---\nname: Release\ndescription: Makes a release.\ntools: Bash, FileRead\nmodel: haiku\n---\n"
        "You make releases.\n"
    )
    monkeypatch.chdir(tmp_path)
    return folder


def test_list_shows_every_agent_and_where_it_comes_from(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The project's beside the built-in ones; fork is none of them."""
    assert run_command(arguments=["agents", "list"]) == 0
    lines = capfd.readouterr().out.splitlines()

    assert [line.split()[:2] for line in lines[1:]] == [
        ["Explore", "built-in"],
        ["general-purpose", "built-in"],
        ["Plan", "built-in"],
        ["Release", "project"],
    ]
    assert "Makes a release." in lines[4]


def test_list_as_json_is_one_object_per_agent(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With everything a definition says, and the id that an alias means."""
    assert run_command(arguments=["agents", "list", "--json"]) == 0
    found = {one["name"]: one for one in map(json.loads, capfd.readouterr().out.splitlines())}

    assert found["Release"] == {
        "name": "Release",
        "description": "Makes a release.",
        "prompt": "You make releases.",
        "tools": ["Bash", "FileRead"],
        "disallowed_tools": [],
        "model": "haiku",
        "max_turns": 200,
        "permission_mode": "bubble",
        "omit_project_conventions": False,
        "omit_git_status": False,
        "source": str(project / "release.md"),
        "model_id": "claude-haiku-5-5",
        "level": "project",
    }
    assert found["Explore"]["tool_filter"] == "readonly"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_show_has_the_prompt(project: Path, capfd: pytest.CaptureFixture[str], options: list[str]) -> None:
    """For people and for programs; case makes no difference."""
    assert run_command(arguments=["agents", "show", "release", *options]) == 0

    assert "You make releases." in capfd.readouterr().out


def test_an_unknown_agent_is_named_with_the_known_ones(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """On one line, with exit code 2."""
    assert run_command(arguments=["agents", "show", "Nope"]) == 2
    shown = capfd.readouterr()

    assert shown.err == "Error: There is no agent 'Nope'. Agents: Explore, general-purpose, Plan, Release.\n"
    assert shown.out == ""


def test_bad_definitions_are_named_beside_the_good_ones(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each with its file, line, key and what to do; the good ones are shown and the exit code is 2."""
    (project / "again.md").write_text("---\nname: release\ndescription: twice\n---\nYou too.\n")
    (project / "bad.md").write_text("---\ndescription: d\nmodel: hauku\n---\nx\n")
    assert run_command(arguments=["agents", "list", "--project", str(project.parent.parent)]) == 2
    shown = capfd.readouterr()

    bad, twice = sorted(shown.err.splitlines(), key=lambda line: "release.md" in line)
    assert bad.startswith(
        f"Error: {project / 'bad.md'}, line 3, `model`: 'hauku' is neither an alias nor a model's id."
    )
    assert twice.startswith(f"Error: {project / 'release.md'}, `name`: 'Release' is defined in {project / 'again.md'}")
    assert "Explore" in shown.out


def test_a_description_cannot_write_to_the_terminal(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What a stranger's file says is shown without its control characters."""
    (project / "x.md").write_text("---\ndescription: red \x1b[31m\n---\nprompt \x1b[2J\n")
    assert run_command(arguments=["agents", "list"]) == 0
    assert run_command(arguments=["agents", "show", "x"]) == 0

    assert "\x1b" not in capfd.readouterr().out


@pytest.mark.parametrize("options", [[], ["--json"], ["--project", "."]])
def test_agents_alone_lists_them(project: Path, capfd: pytest.CaptureFixture[str], options: list[str]) -> None:
    """With the options of list, and the exit code."""
    assert run_command(arguments=["agents", *options]) == 0
    alone = capfd.readouterr()
    assert run_command(arguments=["agents", "list", *options]) == 0

    assert alone == capfd.readouterr()
    assert "Release" in alone.out
    (project / "bad.md").write_text("nothing")
    assert run_command(arguments=["agents", *options]) == 2


def test_agents_still_helps_and_names_what_is_mistyped(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """--help is the group's, a wrong command and a wrong option are named."""
    assert run_command(arguments=["agents", "--help"]) == 0
    assert "show" in capfd.readouterr().out
    assert run_command(arguments=["agents", "lst"]) == 2
    assert "agents list`?" in capfd.readouterr().err
    assert run_command(arguments=["agents", "--jsn"]) == 2
    assert "No such option '--jsn'" in capfd.readouterr().err
