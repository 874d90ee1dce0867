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

from nexofork.engine.shell import redirections_problem
from nexofork.errors import BadPermissions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.engine.shell import SimpleCommand, Word

__all__ = ["BASH", "PATH_TOOLS", "Rule", "parse_rule", "parse_rules"]

BASH = "Bash"
PATH_TOOLS = frozenset(("FileRead", "FileWrite", "FileEdit"))
CONFIGURES = frozenset((".git", ".gitconfig"))
"""Who may write there and run `git status` may run anything, so no wildcard reaches into them."""

_RULE = re.compile(r"([A-Za-z0-9_.-]{1,128})(?:\((.*)\))?", re.DOTALL)
_NOT_IN_WORDS = re.compile(r"""[;&|<>()$`"'\\\x00-\x1f\x7f]""")
_FORM = "Write it as Tool or Tool(pattern), as in Bash(git commit *) or FileWrite(src/**)."
_LONGEST = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule, checked."""

    tool: str
    pattern: str | None = None
    """None means every call of the tool."""

    def __str__(self) -> str:
        return self.tool if self.pattern is None else f"{self.tool}({self.pattern})"

    def covers_command(self, simple: SimpleCommand) -> bool:
        """Whether a simple command is certainly meant: its words fit, and no redirection of its own writes."""
        if self.pattern is None:
            return True
        words, (fixed, open_end) = simple.words, _words(self.pattern)
        if not words or not words[0].literal or redirections_problem(simple) is not None:
            return False
        if len(words) < len(fixed) or (len(words) > len(fixed) and not open_end):
            return False
        return all(word.literal and _fits(part, word.text) for part, word in zip(fixed, words, strict=False))

    def may_mean_command(self, simple: SimpleCommand) -> bool:
        """Whether a simple command may be meant: a wildcard or a variable in it may become any word."""
        if self.pattern is None:
            return True
        fixed, open_end = _words(self.pattern)
        for at, part in enumerate(fixed):
            if at >= len(simple.words):
                return False
            word = simple.words[at]
            if word.many:
                return True
            if word.literal and not _fits(part, word.text) and not (at == 0 and _fits(part, _program(word))):
                return False
        rest = simple.words[len(fixed) :]
        return open_end or not rest or all(word.many for word in rest)

    def covers_path(self, path: str, *, cwd: str) -> bool:
        """Whether a canonical path is certainly meant; `cwd` is canonical too."""
        if self.pattern is None:
            return True
        full = _absolute(self.pattern, cwd)
        if _compiled(full).fullmatch(path) is None:
            return False
        return all(part in full.split("/") for part in path.split("/") if part.casefold() in CONFIGURES)

    def may_mean_path(self, paths: Sequence[str], *, cwd: str) -> bool:
        """Whether one of the names of a file may be meant, by the pattern as it is written or without its links."""
        if self.pattern is None:
            return True
        full = _absolute(self.pattern, cwd)
        return any(_compiled(one).fullmatch(path) for one in (full, _resolved(full)) for path in paths)


def parse_rule(text: object) -> Rule:
    """Read a rule.

    Raises:
        BadPermissions: It is none, or its pattern could never be meant.
    """
    if not isinstance(text, str):
        raise BadPermissions(f"The rule {text!r} is not a text.", fix=_FORM)
    found = _RULE.fullmatch(text.strip())
    if found is None or len(text) > _LONGEST:
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


@lru_cache(maxsize=1024)
def _word(part: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(piece) for piece in part.split("*")), re.DOTALL)


def _fits(part: str, text: str) -> bool:
    return _word(part).fullmatch(text) is not None


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


@lru_cache(maxsize=1024)
def _compiled(full: str) -> re.Pattern[str]:
    parts = full.split("/")[1:]
    pieces = []
    for at, part in enumerate(parts):
        last = at == len(parts) - 1
        if part == "**":
            pieces.append("/.+" if last else "(?:/[^/]+)*")
        else:
            pieces.append("/" + "".join(_piece(char) for char in _tokens(part)))
    return re.compile("".join(pieces), re.DOTALL)


def _tokens(part: str) -> list[str]:
    return re.findall(r"\0[sm]|.", part, re.DOTALL)


def _piece(token: str) -> str:
    return {"*": "[^/]*", "?": "[^/]", _STAR: r"\*", _MARK: r"\?"}.get(token) or re.escape(token)
