"""Judge ``find``, ``test`` and ``sed``, whose arguments are a language of their own and not flags.

Scripts of ``sed`` are read by hand, as ``sed`` itself does: ``w``, ``e`` and ``s///e`` hide after addresses, in blocks
and in the flags of a substitution. What is not in this short grammar is refused.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

from nexofork.policy.shell.flags import listed

if TYPE_CHECKING:
    from nexofork.policy.shell.words import Word

__all__ = ["judge_find", "judge_test", "script_problem"]

_OPTIONS = frozenset(("-H", "-L", "-P"))
_ALONE = (
    "-empty -readable -writable -executable -nouser -nogroup -true -false -prune -quit -print -print0 -ls -depth -d "
    "-mount -xdev -daystart -follow -noleaf -ignore_readdir_race -noignore_readdir_race -warn -nowarn "
    "-not -and -or -a -o ! ( ) ,"
)
_WITH_VALUE = (
    "-name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -type -xtype -maxdepth -mindepth "
    "-newer -anewer -cnewer -mtime -mmin -atime -amin -ctime -cmin -used -size -perm -user -group -uid -gid -links "
    "-inum -samefile -lname -ilname -fstype -printf"
)
_NEWER = re.compile(r"-newer[aBcm][aBcmt]")
_TESTS = (
    "-e -f -d -r -w -x -s -L -h -p -S -b -c -g -u -k -O -G -z -n = == != -eq -ne -lt -le -gt -ge -nt -ot -ef "
    "-a -o ! ( ) ]"
)
_SPACE = re.compile(r"[ \t]*")
_SEPARATORS = re.compile(r"[ \t\n;]*")
_ADDRESS = re.compile(r"\d+(?:~\d+)?|\$|[+~]\d+|/(?:[^/\\\n]|\\[^\n])*/I?")
_SUBSTITUTION = re.compile(r"s([/|,#:@!%_+])((?:(?!\1)[^\\\n]|\\[^\n])*)\1(?:(?!\1)[^\\\n]|\\[^\n])*\1([gpIi0-9]*)")
_BRACKETS = re.compile(r"\\.|\[\^?+\]?+(?:\[:[a-z]+:\]|[^\[\]])*\]")
_PLAIN = "p=dDnNPgGhHxl"
_QUIT = re.compile(r"[qQ][ \t]*\d*")


def judge_find(words: list[Word]) -> str | None:
    """Return why a ``find`` may not run, or None.

    Every word that looks like an expression is looked at, also where a value is due, so that no miscount lets one by.
    """
    left = deque(words)
    in_expression = False
    while left:
        word = left.popleft()
        begins = word.text.startswith("-") or word.text in ("!", "(", ")", ",")
        if not begins:
            if in_expression:
                return f"find: {word.text!r} stands where an expression is due; quote patterns."
            if word.may_become_a_flag:
                return f"A file's name could become an action of find: write ./{word.text}, or quote it."
            continue
        if not word.literal:
            return f"A wildcard in {word.text!r} could become an action of find; quote it."
        if word.text in _OPTIONS and not in_expression:
            continue
        in_expression = True
        if word.text in listed(_ALONE):
            continue
        if word.text not in listed(_WITH_VALUE) and not _NEWER.fullmatch(word.text):
            return f"find {word.text} is not among the expressions known to only read."
        if left and (problem := _value_problem(word.text, left.popleft())):
            return problem
    return None


def _value_problem(name: str, value: Word) -> str | None:
    if value.many:
        return f"The shell expands {value.text!r} before find sees it; put it in single quotes."
    if value.text.startswith("-") and not value.text[1:2].isdigit() and name not in ("-perm",):
        return f"The value {value.text!r} of find {name} looks like an action."
    if name == "-perm" and value.text.startswith("-") and value.text[1:].lstrip("0123456789ugoarwxXst=+,"):
        return f"The value {value.text!r} of find -perm looks like an action."
    return None


def judge_test(words: list[Word]) -> str | None:
    """Return why a ``test`` or ``[`` may not run, or None. ``-v`` can run a command hidden in an array's index."""
    for word in words:
        if word.many:
            return "A wildcard in a test could become an operator; quote it."
        if word.text.startswith("-") and word.text not in listed(_TESTS) and not word.text[1:].isdigit():
            return f"The test {word.text!r} is not known to only read."
    return None


def script_problem(script: str) -> str | None:
    """Return what is wrong with a script, or None if it only prints."""
    at = 0
    depth = 0
    while (at := _end(_SEPARATORS, script, at)) < len(script):
        if script[at] == "}":
            depth -= 1
            at += 1
            continue
        at = _addresses(script, at)
        command = script[at : at + 1]
        if command == "{":
            depth += 1
            at += 1
            continue
        end = _command(script, at)
        if end is None:
            return f"sed: the command {command!r} is not known to only print; use p, =, d, q or s/…/…/."
        at = _end(_SPACE, script, end)
        if at < len(script) and script[at] not in ";\n}":
            return f"sed: {script[at]!r} stands where a command should have ended."
    return None if depth == 0 else "sed: the braces do not match."


def _addresses(script: str, at: int) -> int:
    if (first := _ADDRESS.match(script, at)) is None or not _brackets_close(first[0]):
        return at
    at = _end(_SPACE, script, first.end())
    if script[at : at + 1] == "," and (second := _ADDRESS.match(script, _end(_SPACE, script, at + 1))):
        if not _brackets_close(second[0]):
            return at
        at = _end(_SPACE, script, second.end())
    if script[at : at + 1] == "!":
        at = _end(_SPACE, script, at + 1)
    return at


def _command(script: str, at: int) -> int | None:
    """Return where a command that only prints ends, or None."""
    if script[at : at + 1] and script[at] in _PLAIN:
        return at + 1
    if found := _QUIT.match(script, at):
        return found.end()
    found = _SUBSTITUTION.match(script, at)
    return found.end() if found and _brackets_close(found[2]) else None


def _brackets_close(pattern: str) -> bool:
    """Whether no delimiter can lie in a bracket expression: some versions of sed would go on reading there."""
    return "[" not in _BRACKETS.sub("", pattern)


def _end(pattern: re.Pattern[str], script: str, at: int) -> int:
    found = pattern.match(script, at)
    return found.end() if found else at
