"""Whatever wraps a harmful command, it is not let through; and whatever is let through does no harm."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nexofork.policy.shell import classify, readable
from tests.unit.engine.shell.scratch import listing, make, run
from tests.unit.engine.shell.table import HARMFUL, HARMLESS

PAYLOADS = (
    "touch executed",
    "rm a.txt",
    "./evil",
    "find . -delete",
    "sort -o b.txt a.txt",
    "sed -i d a.txt",
    "echo x > written",
    "cat a.txt | tee written",
    "uniq a.txt written",
    "git branch made",
    "eval touch executed",
    "PATH=. evil",
    'python3 -c \'open("written", "w")\'',
)
BLANKS = st.sampled_from([" ", "  ", "\t", " \\\n"])
HARMLESS_ONES = st.sampled_from([command for command in HARMLESS if "\n" not in command and "#" not in command])
QUOTES = st.sampled_from(["{}", "'{}'", '"{}"', "\\{}", "''{}", '{}""', "$'{}'", '$"{}"'])
JOINS = st.sampled_from([";", "&&", "||", "|", "|&", "&", "\n", " ; ", "\n\n", ";\n", " & ", " |\n", "&&\n"])
WRAPS = st.sampled_from(
    [
        "{}",
        "({})",
        "( {} )",
        "{{ {}; }}",
        "! {}",
        "echo $({})",
        'echo "$({})"',
        "echo `{}`",
        'echo "`{}`"',
        "cat <({})",
        "cat <<EOF\n$({})\nEOF",
        "cat <<EOF\n`{}`\nEOF",
        "cat <<EOF\nx\nEOF\n{}",
        "cat <<'EOF'\nx\nEOF\n{}",
        "cat <<-E\n\tx\n\tE\n{}",
        "bash <<'EOF'\n{}\nEOF",
        "echo ${{x:-$({})}}",
        "echo $(( $({}) ))",
        "x=$({})",
        "x=1 {}",
        "if true; then {}; fi",
        "for i in 1; do {}; done",
        "f() {{ {}; }}; f",
        "alias ll='{}'\nll",
        'eval "{}"',
        "exec {}",
        "command {}",
        "env {}",
        "trap '{}' EXIT",
        'bash -c "{}"',
        "ls # {}\n{}",
        "ls >/dev/null; {}",
        "[ -f a.txt ] && {}",
        "test -v 'a[$({})]'",
        "echo 'it'\\''s'; {}",
        'echo "\\""; {}',
        "cat a.txt | xargs -I% {}",
        "coproc {}",
        "time {}",
        "\u00a0{}",
        "ls\r\n{}",
        "ls\u2028{}",
        "\ufeff{}",
    ]
)


@st.composite
def disguised(draw: st.DrawFn) -> str:
    """A harmful command, wrapped a few times, beside harmless ones."""
    command = draw(st.sampled_from(PAYLOADS))
    words = command.split(" ")
    place = draw(st.integers(0, len(words) - 1))
    words[place] = draw(QUOTES).format(words[place])
    command = draw(BLANKS).join(words) if draw(st.booleans()) else command
    for _ in range(draw(st.integers(0, 3))):
        wrap = draw(WRAPS)
        command = wrap.format(*[command] * wrap.count("{}"))
    if draw(st.booleans()):
        command = draw(HARMLESS_ONES) + draw(JOINS) + command
    if draw(st.booleans()):
        command += draw(JOINS) + draw(HARMLESS_ONES)
    return command


FRAGMENTS = st.sampled_from(
    [
        *("ls", "cat", "echo", "sort", "find", "grep", "uniq", "sed", "git", "test", "[", "]", "printf", "cd", "xxd"),
        *("touch", "rm", "tee", "evil", "./evil", "-o", "-delete", "-exec", "-n", "--output=w", "status", "diff", "-v"),
        *("a.txt", "b.txt", "w", ".", "*", "?o", "-*", "./*", "p", "'w w'", "s/a/b/w w", "x", "1", "-", "--", "src"),
        *(" ", " ", " ", "  ", "\t", "\n", "\\\n", ";", "&", "&&", "|", "||", "|&", "(", ")", "{", "}", "!", "#"),
        *("'", "'", '"', '"', "\\", "`", "$", "$(", "${", "$((", "))", "<(", ">(", "$'", '$"', "~", "=", "{a,b}", "%n"),
        *(">", ">>", "<", "<<", "<<-", "<<<", "&>", ">&", "2>", "2>&1", ">/dev/null", "EOF", "<<EOF\n", "\nEOF\n"),
        *("<<'EOF'\n", "PATH=.", "$HOME", "$?", "é", "\u00a0", "\r", "\x00"),
        *("{x}>/dev/null", "{PATH}>/dev/null", "{b[_]}<a.txt", "'a[$(touch executed)]'", "{b[_]}>", "{", "}", "a=~"),
    ]
)


@settings(max_examples=1500, deadline=None)
@given(command=disguised())
def test_no_disguise_lets_a_harmful_command_through(command: str) -> None:
    """Quotes, substitutions, here-documents, blocks, line breaks, & and look-alikes, three deep."""
    assert not classify(command).allowed or not _changes(command), command


@settings(max_examples=3000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pieces=st.lists(FRAGMENTS, min_size=1, max_size=14))
def test_whatever_is_let_through_changes_nothing(pieces: list[str]) -> None:
    """Pieces of shell in any order: what is allowed is run, in a folder where files have the names of flags."""
    command = "".join(pieces)
    if classify(command).allowed:
        assert not _changes(command), command


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(command=st.sampled_from(HARMLESS), pieces=st.lists(FRAGMENTS, min_size=1, max_size=4), data=st.data())
def test_what_is_pushed_into_a_harmless_command_is_seen(command: str, pieces: list[str], data: st.DataObject) -> None:
    """A reader with pieces of shell inserted anywhere: what is still allowed still changes nothing."""
    for piece in pieces:
        place = data.draw(st.integers(0, len(command)))
        command = command[:place] + piece + command[place:]
    assert not classify(command).allowed or not _changes(command), command


LEXEMES = st.sampled_from(
    [
        *("a", "b", "1", "=", "'", "'", '"', '"', "\\", " ", " ", "\t", "\n", "{", "}", ",", "..", "$", "~", "/", "!"),
        *("#", "]", ":", "-", "@", "^", "%", "+", "é", "2>/dev/null ", "{x}", "<<<", " \\\n", '"a b"', "'c d'", "''"),
    ]
)


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pieces=st.lists(LEXEMES, min_size=1, max_size=8))
def test_bash_gets_the_words_that_were_judged(pieces: list[str]) -> None:
    """Quotes, escapes, braces and redirections in any order: a program is given exactly what the reader reads."""
    command = "printf '%s\\0' " + "".join(pieces)
    if not classify(command).allowed:
        return
    simple, *others = readable(command)
    shown = all(one.descriptor == "2" or one.operator == "<<<" for one in simple.redirections)
    if shown and not others and all(word.literal for word in simple.words):
        with tempfile.TemporaryDirectory() as name:
            given_words = run(command, Path(name)).stdout.decode().split("\0")[:-1]
        assert given_words == ([word.text for word in simple.words[2:]] or [""]), command


@settings(max_examples=500, deadline=None)
@given(first=HARMLESS_ONES, join=st.sampled_from([" | ", "; ", " && ", " || ", "\n"]), second=HARMLESS_ONES)
def test_harmless_commands_may_be_joined(first: str, join: str, second: str) -> None:
    """A pipe or a list of readers is a reader."""
    assert classify(first + join + second).reason is None


@settings(max_examples=500, deadline=None)
@given(command=st.sampled_from(HARMFUL), word=st.sampled_from(["echo", "grep -c", "cat <<<", "printf '%s'"]))
def test_a_harmful_command_in_single_quotes_is_a_word(command: str, word: str) -> None:
    """Words that look dangerous are only words."""
    clean = "".join(char for char in command if char.isprintable())[:500].replace("'", "")
    assert classify(f"{word} '{clean}x'").reason is None


@settings(max_examples=2000, deadline=None)
@given(command=st.text(max_size=60) | st.lists(FRAGMENTS, max_size=30).map("".join))
def test_there_is_always_a_verdict(command: str) -> None:
    """No text makes the classifier fail."""
    verdict = classify(command)
    assert verdict.allowed == (verdict.reason is None)


@pytest.mark.parametrize("text", ['("!<\u1098\U000a5e40"{\U000f2dd2\u58d6\U0003c2ba)\U0001a43e', "echo {\U000f2dd2"])
def test_characters_beyond_the_grammars_table_do_no_harm(text: str) -> None:
    """Looked up past the end of a table they ended the process; a process of its own tells what happens to it."""
    code = "import sys; from nexofork.policy.shell import classify; [classify(sys.argv[1] * n) for n in range(1, 40)]"
    assert subprocess.run([sys.executable, "-c", code, text], timeout=30, check=False).returncode == 0


def _changes(command: str) -> bool:
    with tempfile.TemporaryDirectory() as name:
        folder = make(Path(name))
        before = listing(folder)
        run(command, folder)
        return listing(folder) != before
