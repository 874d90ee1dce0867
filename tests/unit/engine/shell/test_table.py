from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from nexofork import Permissions
from nexofork.policy.filters import deny_bash
from nexofork.policy.gate import Judge
from nexofork.policy.shell import classify
from tests.support.jail import run_jailed
from tests.support.sandboxes import needs_bubblewrap
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


@pytest.mark.parametrize(
    "command",
    [
        "echo 'a[$(touch executed)]'; true {b[_]}>/dev/null",
        "true {PATH}>/dev/null; ls",
        "true {GIT_CONFIG_GLOBAL}>/dev/null; git diff",
    ],
)
def test_a_redirection_to_a_variable_passes_no_gate(command: str) -> None:
    """The filter and mode deny refuse it, mode bubble asks, and next to a deny rule it does not run."""
    given = {"command": command}

    assert deny_bash(given) is not None
    for permissions, kind in (
        (Permissions(mode="deny"), "deny"),
        (Permissions(mode="bubble"), "ask"),
        (Permissions(mode="allow", deny=["Bash(touch *)"]), "deny"),
        (Permissions(mode="deny", allow=["Bash(true *)"]), "deny"),
    ):
        assert Judge(permissions).judge("Bash", given, read_only=False).kind == kind


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


@needs_bubblewrap
@pytest.mark.parametrize("flag", ["--expression=", "-e=;"])
def test_the_name_of_a_file_is_no_script(tmp_path: Path, flag: str) -> None:
    """A wildcard after ``=`` would have become the name of a file: a script that runs a program."""
    command = f"sed '{flag}s,'*',x,' a.txt"

    assert [one.what for one in run_jailed([command], tmp_path)] == ["changed /tmp/work, /tmp/work/executed"]
    assert classify(command).reason is not None


SIZE = 9_900
WORST = {
    "braces and commas": "echo " + "{" * 3_300 + "," * 6_500,
    **{
        piece: piece * (SIZE // len(piece))
        for piece in ("(", "( ", "( ls; ", "'", '"', "$(", "${", "<<E\n", "[", "{", "\\")
    },
    **{
        f"after ls: {piece}": "ls" + piece * (SIZE // len(piece))
        for piece in (";ls", "|ls", "&&ls", " 2>&1", "\n", " ")
    },
    **{f"words: {piece}": "echo" + piece * (SIZE // len(piece)) for piece in (" {a}", "{a}", "a''", " *", "\\a", "~")},
    **{
        f"printf: {piece}": f"printf '{piece * (SIZE // len(piece))}'" for piece in ("%0", "%", "0", "%5.5", "%%", "%s")
    },
    "printf: one width": "printf '%" + "0" * SIZE + "'",
    **{
        f"sed: {piece}": f"sed -n '{piece * (SIZE // len(piece))}'"
        for piece in ("/", "s/[", "[[:", "{p;", "1,", "s/a/b/;")
    },
    "sed: one address": "sed -n '/" + "[a" * (SIZE // 2) + "/p'",
    "sed: one substitution": "sed -n 's/" + "\\/" * (SIZE // 2) + "'",
    **{f"find: {piece}": "find ." + piece * (SIZE // len(piece)) for piece in (" -o", " -name x", " !", "x")},
    **{f"git: {piece}": "git" + piece * (SIZE // len(piece)) for piece in (" -P", " -C x", " log -p", "x")},
    **{f"flags: {piece}": "ls" + piece * (SIZE // len(piece)) for piece in (" -l", " --all", " --color=x", " -")},
    "a cluster of flags": "ls -" + "l" * SIZE,
    **{f"test: {piece}": f"[{piece * (SIZE // len(piece))} ]" for piece in (" !", " a -a", " \\(", " -n")},
    **{f"others: {name}": name + " 1" * (SIZE // 2) for name in ("tar -tf", "ps", "xxd -l", "sleep", "date", "uniq")},
    "a here-document": "cat <<E\n" + "E \n" * (SIZE // 3) + "E\n",
    "beyond the size": "ls " * 1_000_000,
}


@pytest.mark.alone
def test_a_verdict_takes_time_by_the_length_of_the_command() -> None:
    """The worst command for each part of the classifier costs a few times what plain words of that length cost."""
    plain = _cost("echo" + " word" * (SIZE // 5))

    slow = {name: cost / plain for name, command in WORST.items() if (cost := _cost(command)) > 20 * plain}

    assert slow == {}


def _cost(command: str) -> float:
    """The least of three, in seconds of this process: what else runs on the machine does not count."""
    costs = []
    for _ in range(3):
        begun = time.process_time()
        classify(command)
        costs.append(time.process_time() - begun)
    return min(costs)
