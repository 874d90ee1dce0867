"""The verdict compared with what bash does: generated commands are judged, and those that are allowed run in a jail."""

from __future__ import annotations

import os
import random
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from nexofork.policy.shell import Unreadable, classify, readable
from nexofork.policy.shell.find_sed import script_problem
from nexofork.policy.shell.programs import PROGRAMS
from tests.support.jail import Violation, run_jailed
from tests.support.sandboxes import needs_bubblewrap
from tests.support.shell_commands import ShellCommands, kinds_of_nodes, nodes_of
from tests.unit.engine.shell.table import HARMFUL, HARMLESS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

SHORT = 2_500
LONG = int(os.environ.get("NEXOFORK_FUZZ_COMMANDS", "200000"))
BATCH = 250
CORES = os.cpu_count() or 1


def allowed(command: str) -> bool:
    """The judge that is tested."""
    return classify(command).allowed


def blind_to_variables(command: str) -> bool:
    """A judge that takes ``{name}>`` for a plain redirection."""
    return allowed(re.sub(r"\{[^{}<>]*\}(?=[<>])", "", command))


def blind_to_arguments(command: str) -> bool:
    """A judge that only looks at the names of programs."""
    try:
        return all(simple.words and simple.words[0].text in PROGRAMS for simple in readable(command))
    except Unreadable:
        return False


def violations(judge: Callable[[str], bool], commands: Iterable[str], folder: Path) -> list[Violation]:
    """Run what a judge allows and return what was seen to do more than read."""
    chosen = [command for command in dict.fromkeys(commands) if judge(command)]
    assert chosen
    batches = [chosen[at : at + BATCH] for at in range(0, len(chosen), BATCH)]
    folders = [folder / str(number) for number in range(len(batches))]
    for one in folders:
        one.mkdir()
    with ThreadPoolExecutor(CORES) as pool:
        return [found for batch in pool.map(run_jailed, batches, folders) for found in batch]


def test_every_kind_of_node_of_the_grammar_is_generated() -> None:
    """What the grammar can tell apart is tried; a kind that a newer grammar brings fails this test."""
    seen = frozenset[str]().union(*(nodes_of(command) for command in islice(ShellCommands(1), 6_000)))

    assert kinds_of_nodes() - seen == set()


def test_every_allowed_program_is_generated() -> None:
    """Each listed program is called, some of the time in a way that is allowed."""
    commands = [command for command in islice(ShellCommands(1), 12_000) if "\n" not in command]
    called = {command.split(" ")[0] for command in commands if allowed(command)}

    assert set(PROGRAMS) - called == set()


@needs_bubblewrap
def test_what_is_allowed_changes_nothing_in_a_jail(tmp_path: Path) -> None:
    """Some thousand generated commands, the same every time."""
    commands = [*HARMLESS, *HARMFUL, *islice(ShellCommands(2, HARMLESS), SHORT)]

    assert violations(allowed, commands, tmp_path) == []


@needs_bubblewrap
@pytest.mark.fuzz
def test_what_is_allowed_changes_nothing_in_a_jail_at_length(tmp_path: Path) -> None:
    """As many as ``NEXOFORK_FUZZ_COMMANDS`` says, others every time; ``NEXOFORK_FUZZ_SEED`` repeats a run."""
    seed = int(os.environ.get("NEXOFORK_FUZZ_SEED", random.SystemRandom().randrange(2**32)))

    found = violations(allowed, islice(ShellCommands(seed, HARMLESS), LONG), tmp_path)

    assert [str(one) for one in found] == [], f"seed {seed}"


@needs_bubblewrap
def test_a_judge_that_misses_variable_redirections_is_caught(tmp_path: Path) -> None:
    """The jail sees both what an index runs and a variable that is set."""
    weak = (command for command in islice(ShellCommands(3), 10_000) if "}>" in command or "}<" in command)
    commands = [command for command in weak if blind_to_variables(command) and not allowed(command)]

    found = violations(blind_to_variables, commands[:60], tmp_path)

    assert any("executed" in one.what for one in found)
    assert any("changed the shell" in one.what for one in found)


@needs_bubblewrap
def test_a_judge_that_misses_arguments_is_caught(tmp_path: Path) -> None:
    """The jail sees what the flags of programs do that read without them."""
    wanted = {"find", "sed", "sort", "uniq", "git", "tar", "date", "hostname", "printf", "command"}
    by_program: dict[str, list[str]] = {name: [] for name in wanted}
    for command in islice(ShellCommands(4), 8_000):
        some = by_program.get(command.split(" ")[0])
        if some is not None and len(some) < 12 and blind_to_arguments(command) and not allowed(command):
            some.append(command)

    found = violations(blind_to_arguments, [one for some in by_program.values() for one in some], tmp_path)

    assert {one.command.split(" ")[0] for one in found} >= wanted


SED_PARTS = ("[", "]", "[]", "[^]", "[^", r"\[", r"\]", "[:alpha:]", "[[:alpha:]]", "e;", "w x", "a", r"\\", r"\/", "^")


def sed_scripts(seed: int) -> Iterable[str]:
    """Scripts of two commands with lists in their patterns, where delimiters may or may not be delimiters."""
    draw = random.Random(seed)

    def part() -> str:
        return "".join(draw.choices(SED_PARTS, k=draw.randrange(3)))

    while True:
        yield f"s/{part()}/{part()}/;{draw.choice(('s/{}/{}/p', '/{}/,/{}/p')).format(part(), part())}"


def test_sed_finds_nothing_to_run_in_what_only_prints() -> None:
    """In its sandbox, sed refuses a script that would run a program or write a file, and says so."""
    scripts = [script for script in islice(sed_scripts(5), 6_000) if script_problem(script) is None]
    called = [("sed", "--sandbox", "-n", "-e", script) for script in dict.fromkeys(scripts)][:500]

    with ThreadPoolExecutor(CORES) as pool:
        said = list(
            pool.map(lambda words: subprocess.run(words, input=b"", capture_output=True, check=False).stderr, called)
        )

    assert [words[-1] for words, told in zip(called, said, strict=True) if b"sandbox" in told] == []
    assert len(called) == 500
