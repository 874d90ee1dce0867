"""Say whether a shell command only reads.

Default deny: the grammar must hold nothing but known constructs, two readers must agree on every word, and every
program must be listed with every flag it is given. A refusal says what to write instead, because a model reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.policy.shell.flags import Rule, judge
from nexofork.policy.shell.programs import HINTS, PROGRAMS
from nexofork.policy.shell.tree import Shape, read_shape
from nexofork.policy.shell.words import Redirection, SimpleCommand, Unreadable, read_commands

if TYPE_CHECKING:
    from nexofork.policy.shell.words import Word

__all__ = ["LONGEST", "Verdict", "classify", "problem_of", "readable", "redirections_problem"]

_SINKS = ("/dev/null", "/dev/stdout", "/dev/stderr")
LONGEST = 10_000
"""Bytes. A command that only looks at something needs no more, and every later step costs time by its length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a command only reads."""

    reason: str | None = None
    """Why it is not allowed, in words a model can act on; None where it is."""

    @property
    def allowed(self) -> bool:
        """Whether it may run."""
        return self.reason is None


def classify(command: str) -> Verdict:
    """Judge a command. What is allowed only reads if it is run by bash with ``READ_ONLY_ENVIRONMENT``."""
    try:
        problems = [problem for simple in readable(command) if (problem := problem_of(simple)) is not None]
    except Unreadable as exc:
        return Verdict(reason=str(exc))
    return Verdict(reason=problems[0] if problems else None)


def readable(command: str) -> list[SimpleCommand]:
    """Return the simple commands of a command, at least one, as bash would run them.

    Raises:
        Unreadable: It holds a construct that is not known, or two readers do not agree on what it means.
    """
    if len(command) > LONGEST:
        raise Unreadable(f"The command is longer than {LONGEST} bytes; split it.")
    if any((ord(char) < 32 and char not in "\t\n") or 127 <= ord(char) < 160 for char in command):
        raise Unreadable("The command holds a control character (a carriage return, perhaps); leave it out.")
    try:
        raw = command.encode()
    except UnicodeEncodeError as exc:
        raise Unreadable("The command is not valid Unicode.") from exc
    if len(raw) > LONGEST:
        raise Unreadable(f"The command is longer than {LONGEST} bytes; split it.")
    commands, line = read_commands(raw)
    if not commands:
        raise Unreadable("There is no command.")
    if not _agree(read_shape(line), commands):
        raise Unreadable(
            "The command can be read in more than one way. Write it more simply: one command per line, "
            "special characters in single quotes."
        )
    return commands


def _agree(shape: Shape, commands: list[SimpleCommand]) -> bool:
    """Return whether both readers found the same words and redirections."""
    redirections = sorted(
        (one.start, (one.target.start, one.target.end)) for simple in commands for one in simple.redirections
    )
    words = sorted(_spans(simple) for simple in commands if simple.words)
    return shape.redirections == redirections and shape.commands == words


def _spans(simple: SimpleCommand) -> tuple[tuple[int, int], ...]:
    words = simple.words
    if words and words[0].text == "[" and words[0].bare:
        return ((words[0].start, words[-1].end),)
    return tuple((word.start, word.end) for word in words)


def problem_of(simple: SimpleCommand) -> str | None:
    """Return why a simple command does more than read, or None. Redirections of a subshell come without words."""
    problem = redirections_problem(simple)
    return problem if problem or not simple.words else _program_problem(simple.words[0], simple.words[1:])


def redirections_problem(simple: SimpleCommand) -> str | None:
    """Return why a command's redirections do more than read, or None."""
    problems = (_redirection_problem(redirection) for redirection in simple.redirections)
    return next((problem for problem in problems if problem is not None), None)


def _redirection_problem(redirection: Redirection) -> str | None:
    """Return why one redirection does more than read, or None."""
    target, operator = redirection.target, redirection.operator
    if operator.startswith("<") and redirection.descriptor not in ("", "0"):
        return "Only the standard input may be redirected from something."
    if operator in ("<<", "<<-", "<<<"):
        return None
    if redirection.descriptor not in ("", "0", "1", "2"):
        return "Only the descriptors 0, 1 and 2 may be redirected."
    if not target.literal:
        return "The target of a redirection must be written out."
    if operator == ">&":
        fine = target.text in ("1", "2", *_SINKS) and redirection.descriptor != "0" and target.bare
        return None if fine else "Only 2>&1 and >&2 are allowed of this kind."
    if operator == "<":
        special = target.text.startswith("/dev/") and target.text != "/dev/null"
        return "Reading from a device is not allowed." if special else None
    if target.text in _SINKS and redirection.descriptor != "0":
        return None
    return f"Writing to {target.text!r} is not allowed; only /dev/null is."


def _program_problem(name: Word, arguments: list[Word]) -> str | None:
    if not name.bare or not name.literal:
        return "The name of a program must be a plain word, without quotes, escapes or expansions."
    if "/" in name.text:
        return f"Call a program by its name, not by a path ({name.text})."
    if "=" in name.text:
        return "Setting a variable is not allowed; write its value where it is used."
    rule = PROGRAMS.get(name.text)
    if rule is None:
        because = HINTS.get(name.text, "is not among the programs known to only read")
        return f"{name.text} {because}."
    return judge(name.text, rule, arguments) if isinstance(rule, Rule) else rule(arguments)
