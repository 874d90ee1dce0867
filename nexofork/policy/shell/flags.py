"""Judge a program's arguments by a list of the flags that only read.

Only what is listed passes. A long flag must be written out: programs take any unique beginning of one, and which
beginnings are unique differs between versions.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from nexofork.policy.shell.words import Unreadable, Word

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Arguments", "Judge", "Rule", "judge", "listed", "read_arguments"]

Judge: TypeAlias = "Callable[[list[Word]], str | None]"
"""Says why a program may not run with these arguments, or None."""

_NUMBER = re.compile(r"-\d+")
_PATTERN = re.compile(r"--(?:glob|iglob|exclude|match|refs|branches|tags|remotes)=")
"""Flags that take patterns. A wildcard in another may become the name of a file that is a script of sed."""


@dataclass(slots=True)
class Arguments:
    """What a program was given, told apart."""

    flags: list[tuple[str, str | None]] = field(default_factory=list)
    """Names with their dashes, and values."""
    operands: list[Word] = field(default_factory=list)

    def has(self, *names: str) -> bool:
        """Whether one of these flags was given."""
        return any(name in names for name, _ in self.flags)

    def values(self, *names: str) -> list[str]:
        """The values these flags were given."""
        return [value for name, value in self.flags if name in names and value is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Which flags a program may be given. Long flags are listed without dashes, separated by spaces."""

    short: str = ""
    """Letters that take no value."""
    short_value: str = ""
    """Letters that take a value, in the same word or the next."""
    short_attached: str = ""
    """Letters that may have a value in the same word, and never take the next."""
    long: str = ""
    long_value: str = ""
    """With a value, after = or in the next word."""
    long_optional: str = ""
    """With or without a value, which only stands after =."""
    values_apart: bool = False
    """Whether a short flag's value must be a word of its own: some programs read on in the cluster instead."""
    numeric: bool = False
    """Whether -5 is a flag."""
    operands: int | None = None
    """The most there may be; then flags must stand before them, and wildcards are refused."""
    tame: bool = False
    """Whether *no* flag the program knows can do harm, so that a wildcard may match a file with the name of one."""
    check: Callable[[Arguments], str | None] | None = None
    """Looks at what the flags cannot say."""


def judge(program: str, rule: Rule, words: list[Word]) -> str | None:
    """Return why the program may not run with these words, or None."""
    try:
        arguments = read_arguments(program, rule, words)
    except Unreadable as exc:
        return str(exc)
    if rule.operands is not None and len(arguments.operands) > rule.operands:
        return f"{program} takes at most {rule.operands} operands here: the next one would be written to or set."
    return rule.check(arguments) if rule.check else None


def read_arguments(program: str, rule: Rule, words: list[Word]) -> Arguments:
    """Tell flags from operands.

    Raises:
        Unreadable: A flag is not listed, or a wildcard could become one.
    """
    found = Arguments()
    left = deque(words)
    ended = False
    while left:
        word = left.popleft()
        if rule.operands is not None and word.many:
            raise Unreadable(f"A wildcard may become several words, and {program} takes few; name the file.")
        if word.text == "--" and not ended:
            ended = True
        elif word.text.startswith("-") and word.text != "-" and not (ended and rule.tame):
            if ended:
                raise Unreadable(f"{word.text!r} after -- looks like a flag; write ./{word.text} instead.")
            if found.operands and rule.operands is not None:
                raise Unreadable(f"The flags of {program} must stand before its operands.")
            _flag(program, rule, word, left, found)
        else:
            if word.may_become_a_flag and not ended and not rule.tame:
                raise Unreadable(f"A file's name could become a flag of {program}: write ./{word.text}, or quote it.")
            found.operands.append(word)
    return found


def _flag(program: str, rule: Rule, word: Word, left: deque[Word], found: Arguments) -> None:
    fixed = word.before_glob is None or rule.tame or _PATTERN.match(word.before_glob)
    if not fixed or (word.many and word.varies):
        raise Unreadable(f"A wildcard in the flag {word.text!r} of {program} is not allowed; quote it.")
    _refuse_variable(program, rule, word)
    if rule.numeric and _NUMBER.fullmatch(word.text):
        found.flags.append((word.text, None))
    elif word.text.startswith("--"):
        _long(program, rule, word, left, found)
    else:
        _cluster(program, rule, word, left, found)


def _long(program: str, rule: Rule, word: Word, left: deque[Word], found: Arguments) -> None:
    name, equals, value = word.text.partition("=")
    bare = name[2:]
    if bare in listed(rule.long) and not equals:
        found.flags.append((name, None))
    elif bare in listed(rule.long_optional) or (equals and bare in listed(rule.long_value)):
        found.flags.append((name, value if equals else None))
    elif bare in listed(rule.long_value):
        found.flags.append((name, _next(program, rule, name, left)))
    else:
        raise Unreadable(_unlisted(program, name))


def _cluster(program: str, rule: Rule, word: Word, left: deque[Word], found: Arguments) -> None:
    letters = word.text[1:]
    for index, letter in enumerate(letters):
        if letter in rule.short:
            found.flags.append((f"-{letter}", None))
            continue
        rest = letters[index + 1 :]
        if letter in rule.short_attached:
            found.flags.append((f"-{letter}", rest or None))
            return
        if letter in rule.short_value and rest and rule.values_apart:
            raise Unreadable(f"Write the value of {program} -{letter} as a word of its own.")
        if letter in rule.short_value:
            found.flags.append((f"-{letter}", rest or _next(program, rule, f"-{letter}", left)))
            return
        raise Unreadable(_unlisted(program, f"-{letter}"))


def _next(program: str, rule: Rule, flag: str, left: deque[Word]) -> str | None:
    if not left:
        return None  # the program will complain
    value = left.popleft()
    _refuse_variable(program, rule, value)
    # However the program counts its values, the word can then not be a flag.
    dashed = value.text.startswith("-") and value.text != "-" and not _NUMBER.fullmatch(value.text)
    if (value.many or dashed) and not rule.tame:
        raise Unreadable(f"The value {value.text!r} of {program} {flag} could be a flag; attach or quote it.")
    return value.text


def _refuse_variable(program: str, rule: Rule, word: Word) -> None:
    """A folder can have any name, and some flags take scripts and formats."""
    if word.varies and not rule.tame:
        raise Unreadable(f"Write out what a flag of {program} is given; $PWD, $HOME and ~ are for its operands.")


@cache
def listed(names: str) -> frozenset[str]:
    """Return names that are separated by spaces as a set."""
    return frozenset(names.split())


def _unlisted(program: str, flag: str) -> str:
    return (
        f"{program} {flag} is not among the flags known to only read; leave it out, or write it in full if it was "
        "shortened."
    )
