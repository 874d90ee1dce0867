"""Judge ``find`` and ``test``, whose arguments are an expression of their own and not flags."""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

from nexofork.engine.shell.flags import listed

if TYPE_CHECKING:
    from nexofork.engine.shell.words import Word

__all__ = ["judge_find", "judge_test"]

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
