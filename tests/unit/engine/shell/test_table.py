from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from nexofork.engine.shell import classify
from tests.unit.engine.shell.scratch import listing, make, run
from tests.unit.engine.shell.table import HARMFUL, HARMLESS

if TYPE_CHECKING:
    from pathlib import Path


def test_the_table_is_as_long_as_promised() -> None:
    """At least 150 of each, all different."""
    assert len(set(HARMFUL)) >= 150
    assert len(set(HARMLESS)) >= 150


# What a classifier by first word lets through, or refuses, though it should not.
KNOWN_HOLES = (
    *("find . -delete", "find . -exec rm {} +", "sort -o f a.txt", "uniq a b", "ls & dd if=a of=b", "ls\nrm x"),
    *("env python3 x", "command bash x", "date -s 2020-01-01", "hostname x", "ip link set lo down", "xxd -r a.hex b"),
    *("rg --pre ./evil x", "tree -o out", "LD_PRELOAD=./evil.so ls"),
)
KNOWN_REFUSALS = ("git status", "sed -n 1,5p a.txt", "echo 'warm bread'")


def test_the_known_holes_are_closed() -> None:
    """Each of them, in the words they were found by."""
    assert [command for command in KNOWN_HOLES if classify(command).allowed] == []
    assert [command for command in KNOWN_REFUSALS if not classify(command).allowed] == []


@pytest.mark.parametrize("command", HARMFUL, ids=range(len(HARMFUL)))
def test_what_does_more_than_read_is_refused(command: str) -> None:
    """However it is disguised; and the model is told why, in a sentence."""
    verdict = classify(command)

    assert not verdict.allowed, command
    assert verdict.reason
    assert verdict.reason.endswith(".")


@pytest.mark.parametrize("command", HARMLESS, ids=range(len(HARMLESS)))
def test_what_only_reads_is_allowed(command: str) -> None:
    """Also where its words look dangerous."""
    assert classify(command).reason is None, command


def test_nothing_changes_when_the_harmless_ones_run(tmp_path: Path) -> None:
    """The verdict is held against bash itself: every allowed command runs, and the folder stays as it was."""
    folder = make(tmp_path)
    before = listing(folder)
    for command in HARMLESS:
        shown = run(command, folder)
        assert b"syntax error" not in shown.stderr, command
        assert listing(folder) == before, command


def test_a_repository_that_a_commit_can_carry_runs_nothing(tmp_path: Path) -> None:
    """A folder that is a bare repository may name programs in its configuration; the environment shuts it out."""
    folder = make(tmp_path)
    carried = folder / "src" / "carried"
    for name in ("objects", "refs"):
        (carried / name).mkdir(parents=True)
    (carried / "HEAD").write_text("ref: refs/heads/main\n")
    evil = folder / "evil"
    (carried / "config").write_text(
        f"[core]\nrepositoryformatversion = 0\nworktree = {folder}\nfsmonitor = {evil}\npager = {evil}\n"
        f"[diff]\nexternal = {evil}\n"
    )
    before = listing(folder)
    for command in ("git status", "git diff", "git log -p", "git show"):
        for where in ("cd src/carried && ", "cd src/carried/refs && "):
            assert classify(where + command).allowed
            run(where + command, folder)
            assert listing(folder) == before, where + command


@pytest.mark.parametrize("where", [".gitconfig", ".config/git/config"])
def test_the_configuration_of_a_home_runs_nothing(tmp_path: Path, where: str) -> None:
    """Whoever can write to the home of commands must not be able to name a program for git."""
    folder = make(tmp_path)
    config = folder / where  # the home of commands here
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(f"[diff]\nexternal = {folder / 'evil'}\n[core]\nfsmonitor = {folder / 'evil'}\n")
    before = listing(folder)
    for command in ("git diff", "git status", "git log -p --ext-diff"):
        run(command, folder)
        assert listing(folder) == before, command


def test_the_name_of_a_folder_is_no_script(tmp_path: Path) -> None:
    """A folder called like a command of sed would have been run by it."""
    folder = make(tmp_path)
    (folder / "b,e;s,x,y").mkdir()
    command = "cd 'b,e;s,x,y' && sed -n -e \"s,.*,$PWD,\" ../a.txt"

    verdict = classify(command)

    assert verdict.reason == "Write out what a flag of sed is given; $PWD, $HOME and ~ are for its operands."


@pytest.mark.parametrize("piece", ["(", "'", '"', "$(", "${", "<<E\n", "[", "{", "ls;", "|", "\\", "s/[", "*"])
def test_a_verdict_takes_no_time(piece: str) -> None:
    """However often a construct is repeated, up to the longest command there may be."""
    for command in (piece * (9_990 // len(piece)), f"sed -n '{piece * 900}' a.txt", f"printf '{piece * 900}'"):
        begun = time.perf_counter()
        classify(command)
        assert time.perf_counter() - begun < 2.0
