"""Rules for tool calls, as people write them: ``Tool`` or ``Tool(pattern)``.

A rule without a pattern means every call of the tool. A pattern of ``Bash`` is words that are compared with the words
of one simple command, after quotes are taken away; ``*`` in a word stands for any text, and as the last word for any
further words, or none. A pattern of ``FileRead``, ``FileWrite`` and ``FileEdit`` is a path: ``*`` and ``?`` stay within
one name, ``**`` is any number of folders, and one that is relative starts at the working folder. No other tool takes a
pattern.

A rule answers two questions. Whether it *covers* a call is answered with yes only if that is certain; whether it *may
mean* a call, with no only if that is certain. The first is what allows, the second what denies.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from nexofork.errors import BadPermissions
from nexofork.policy.paths import CONFIGURES
from nexofork.policy.shell import redirections_problem
from nexofork.policy.wrappers import TooMuch, option_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.policy.shell import SimpleCommand, Word
    from nexofork.policy.wrappers import Candidate, Steps

__all__ = ["BASH", "PATH_TOOLS", "Rule", "parse_rule", "parse_rules"]

BASH = "Bash"
PATH_TOOLS = frozenset(("FileRead", "FileWrite", "FileEdit"))

_RULE = re.compile(r"([A-Za-z0-9_.-]{1,128})(?:\((.*)\))?", re.DOTALL)
_NOT_IN_WORDS = re.compile(r"""[;&|<>()$`"'\\\x00-\x1f\x7f]""")
_FORM = "Write it as Tool or Tool(pattern), as in Bash(git commit *) or FileWrite(src/**)."
_WILD = re.compile(r"[*?\[\]]")
_LONGEST = 1_000
LONGEST_PATH = 4_096
"""Characters; the kernel opens no longer path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule, checked."""

    tool: str
    pattern: str | None = None
    """None means every call of the tool."""

    def __str__(self) -> str:
        return self.tool if self.pattern is None else f"{self.tool}({self.pattern})"

    @property
    def exact(self) -> bool:
        """Whether it has no wildcard."""
        return self.pattern is not None and "*" not in self.pattern

    @property
    def program(self) -> str | None:
        """The program of a command that is meant; None where it may be any."""
        fixed = _words(self.pattern)[0] if self.pattern is not None else ()
        return fixed[0] if fixed and "*" not in fixed[0] else None

    def covers_command(self, simple: SimpleCommand, steps: Steps) -> bool:
        """Whether a simple command is certainly meant: its words fit, and no redirection of its own writes.

        Raises:
            TooMuch: It takes too many steps to tell.
        """
        if self.pattern is None:
            return True
        steps.take()
        words, (fixed, open_end) = simple.words, _words(self.pattern)
        if not words or not words[0].literal:
            return False
        if len(words) < len(fixed) or (len(words) > len(fixed) and not open_end):
            return False
        fits = all(word.literal and _fits(part, word.text, steps) for part, word in zip(fixed, words, strict=False))
        return fits and redirections_problem(simple) is None

    def may_mean_command(self, found: Candidate, steps: Steps) -> bool:
        """Whether words that may be a command may be meant: a wildcard or a variable in them may become any word.

        Raises:
            TooMuch: It takes too many steps to tell.
        """
        if self.pattern is None:
            return True
        steps.take()
        fixed, open_end = _words(self.pattern)
        if not fixed:
            return True
        if found.weak and (len(fixed) < 2 or "*" in fixed[0]):
            return False
        if not found.inside and _word_by_word(fixed, open_end, found.words, steps):
            return True
        return _past_options(fixed, open_end, found, steps)

    def covers_path(self, path: str, *, cwd: str, steps: Steps) -> bool:
        """Whether a canonical path is certainly meant; `cwd` is canonical too.

        Raises:
            TooMuch: It takes too many steps to tell.
        """
        if self.pattern is None:
            return True
        full = _absolute(self.pattern, cwd)
        if not _path_fits(full, path, steps):
            return False
        # No wildcard reaches into what configures git.
        return all(part in full.split("/") for part in path.split("/") if part.casefold() in CONFIGURES)

    def may_mean_path(self, paths: Sequence[str], *, cwd: str, steps: Steps) -> bool:
        """Whether one of the names of a file may be meant, by the pattern as it is written or without its links.

        Raises:
            TooMuch: It takes too many steps to tell.
        """
        if self.pattern is None:
            return True
        full = _absolute(self.pattern, cwd)
        return any(_path_fits(one, path, steps) for one in {full, _resolved(full)} for path in set(paths))


def parse_rule(text: object) -> Rule:
    """Read a rule.

    Raises:
        BadPermissions: It is none, or its pattern could never be meant.
    """
    if not isinstance(text, str):
        raise BadPermissions(f"The rule {text!r} is not a text.", fix=_FORM)
    found = _RULE.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if found is None:
        raise BadPermissions(f"The rule {text[:80]!r} cannot be read.", fix=_FORM)
    tool, pattern = found[1], found[2]
    if pattern is None:
        return Rule(tool=tool)
    if tool == BASH:
        _check_words(text, pattern)
        return Rule(tool=tool, pattern=" ".join(pattern.split()))
    if tool not in PATH_TOOLS:
        takers = ", ".join((BASH, *sorted(PATH_TOOLS)))
        raise BadPermissions(f"The rule {text!r} has a pattern, which only {takers} take.", fix=f"Write {tool} alone.")
    _check_path(text, pattern)
    return Rule(tool=tool, pattern=pattern)


def parse_rules(texts: Sequence[object]) -> tuple[Rule, ...]:
    """Read rules.

    Raises:
        BadPermissions: One of them is none.
    """
    return tuple(parse_rule(text) for text in texts)


def _check_words(text: str, pattern: str) -> None:
    if not pattern.split():
        raise BadPermissions(f"The rule {text!r} names no command.", fix=f"Write Bash alone for every command. {_FORM}")
    if _NOT_IN_WORDS.search(pattern):
        raise BadPermissions(
            f"The pattern of {text!r} holds shell syntax, and it is compared with the words of one simple command.",
            fix="Write the words without quotes and operators, with * for any text, one rule per command.",
        )


def _check_path(text: str, pattern: str) -> None:
    parts = pattern.split("/")
    problem = ""
    if not pattern.strip("/"):
        problem = "names no file"
    elif "\0" in pattern or pattern != pattern.strip():
        problem = "holds a character that is no part of a path, or a space at its end"
    elif pattern.startswith("~"):
        problem = "begins with ~, which is expanded for nobody"
    elif pattern.endswith("/") or "" in parts[1:]:
        problem = "holds an empty name"
    elif any(part in (".", "..") for part in parts):
        problem = "holds . or .., and paths are compared without them"
    elif any("**" in part and part != "**" for part in parts):
        problem = "has ** inside a name"
    if problem:
        raise BadPermissions(
            f"The pattern of {text!r} {problem}.",
            fix="Write a path that is absolute or starts at the working folder, as in src/** or /srv/data/*.csv.",
        )


@lru_cache(maxsize=1024)
def _words(pattern: str) -> tuple[tuple[str, ...], bool]:
    """Return the words before the end, and whether further words may follow."""
    words = tuple(pattern.split())
    return (words[:-1], True) if words[-1] == "*" else (words, False)


def _fits(part: str, text: str, steps: Steps) -> bool:
    """Whether a word fits a part of a pattern. Each piece is searched once, from left to right."""
    steps.take(1 + len(text) // 64)
    first, *pieces = part.split("*")
    if not pieces:
        return text == part
    last, at, end = pieces.pop(), len(first), len(text)
    if not text.startswith(first) or not text.endswith(last) or len(first) + len(last) > end:
        return False
    end -= len(last)
    for piece in pieces:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


def _word_by_word(fixed: Sequence[str], open_end: bool, words: Sequence[Word], steps: Steps) -> bool:
    for at, part in enumerate(fixed):
        if at >= len(words):
            return False
        word = words[at]
        if word.many:
            return True
        if word.literal and not _fits(part, word.text, steps) and not (at == 0 and _fits(part, _program(word), steps)):
            return False
    rest = words[len(fixed) :]
    return open_end or not rest or all(word.many for word in rest)


def _past_options(fixed: Sequence[str], open_end: bool, found: Candidate, steps: Steps) -> bool:
    """Whether words fit with options left out, each with a value or without where that is not known."""
    program = _program(found.words[found.at]) if found.at < len(found.words) else ""
    # How many parts are found, and whether the next word is an option's value.
    states: set[tuple[int, bool | None]] = {(0, False)}
    for at in range(found.at, len(found.words)):
        word, after = found.words[at], set[tuple[int, bool | None]]()
        for count, value in states:
            steps.take(2)
            if value is not False:
                after.add((count, False))
            if word.many and count and (value is not False or _may_be(fixed[count], word, steps)):
                return not found.weak
            if value is True:
                continue
            if _may_be(fixed[count], word, steps, program=count == 0) and (word.literal or not found.weak):
                after.add((count + 1, False))
            if count and word.text.startswith("-"):
                after.add((count, option_value(program, word.text)))
        if (len(fixed), False) in after:
            rest = () if found.inside or open_end else found.words[at + 1 :]
            if all(word.many for word in rest):
                return True
            after.discard((len(fixed), False))
        states = after
        if not states:
            return False
    return found.grows


def _may_be(part: str, word: Word, steps: Steps, *, program: bool = False) -> bool:
    """Whether a word may become one that fits a part of a pattern."""
    text = word.text
    if word.before_glob is not None:
        steps.take(1 + len(text) // 64)
        # From the first wildcard to the last, any text may stand.
        name = _program(word) if program else text
        wild = f"{re.split(_WILD, name, maxsplit=1)[0]}*{re.split(_WILD, name)[-1]}"
        return "*" in part or _fits(wild, part, steps)
    if word.varies:
        return True
    return _fits(part, text, steps) or (program and "/" in text and _fits(part, _program(word), steps))


def _program(word: Word) -> str:
    return word.text.rpartition("/")[2]


def _absolute(pattern: str, cwd: str) -> str:
    """Return the pattern from the root on; what is wild in the working folder's own name is not meant as such."""
    if pattern.startswith("/"):
        return pattern
    return f"{_quoted(cwd.rstrip('/'))}/{pattern}"


def _quoted(path: str) -> str:
    return path.replace("*", _STAR).replace("?", _MARK)


_STAR, _MARK = "\0s", "\0m"
"""Stand for the characters themselves; no path and no pattern holds a NUL."""


def _resolved(full: str) -> str:
    """Return the pattern with the links before its first wildcard resolved."""
    parts = full.split("/")
    wild = next((at for at, part in enumerate(parts) if "*" in part or "?" in part), len(parts))
    literal = "/".join(parts[:wild]).replace(_STAR, "*").replace(_MARK, "?")
    return "/".join([_quoted(os.path.realpath(literal or "/").rstrip("/")), *parts[wild:]])


def _path_fits(full: str, path: str, steps: Steps) -> bool:
    """Whether a path fits a pattern. Between two ``**``, the first place that fits is taken; no other need be tried."""
    if len(path) > LONGEST_PATH:
        raise TooMuch
    steps.take(1 + (len(path) + len(full)) // 32)
    names = [name for name in path.split("/") if name]
    groups: list[list[str]] = [[]]
    for part in full.split("/")[1:]:
        if part == "**":
            groups.append([])
        else:
            groups[-1].append(part)
    first, *others = groups
    if not others:
        return len(names) == len(first) and _names_fit(first, names, 0, steps)
    last, at = others.pop(), len(first)
    # A ** at the end stands for at least one name.
    end = len(names) - (len(last) or 1)
    if at > end or not _names_fit(first, names, 0, steps):
        return False
    if last and not _names_fit(last, names, end, steps):
        return False
    for group in others:
        while at + len(group) <= end and not _names_fit(group, names, at, steps):
            at += 1
        if at + len(group) > end:
            return False
        at += len(group)
    return True


def _names_fit(parts: Sequence[str], names: Sequence[str], at: int, steps: Steps) -> bool:
    if at + len(parts) > len(names):
        return False
    return all(_name_fits(part, names[at + number], steps) for number, part in enumerate(parts))


def _name_fits(part: str, name: str, steps: Steps) -> bool:
    steps.take(1 + len(part) * len(name) // 4096)
    return _name(part).fullmatch(name) is not None


@lru_cache(maxsize=4096)
def _name(part: str) -> re.Pattern[str]:
    """Return the expression for one name. Its groups are atomic, so a star never gives back what it has matched."""
    first, *pieces = ("".join(_piece(token) for token in _tokens(text)) for text in part.split("*"))
    if not pieces:
        return re.compile(first, re.DOTALL)
    middle = "".join(f"(?>.*?{piece})" for piece in pieces[:-1] if piece)
    return re.compile(f"{first}{middle}.*{pieces[-1]}", re.DOTALL)


def _tokens(part: str) -> list[str]:
    return re.findall(r"\0[sm]|.", part, re.DOTALL)


def _piece(token: str) -> str:
    return {"?": ".", _STAR: r"\*", _MARK: r"\?"}.get(token) or re.escape(token)
