"""Say whether a shell command only reads.

Default deny: the grammar must hold nothing but known constructs, two readers must agree on every word, and every
program must be listed with every flag it is given. A refusal says what to write instead, because a model reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.engine.shell.flags import Rule, judge
from nexofork.engine.shell.programs import HINTS, PROGRAMS
from nexofork.engine.shell.tree import Shape, read_shape
from nexofork.engine.shell.words import Redirection, SimpleCommand, Unreadable, read_commands

if TYPE_CHECKING:
    from nexofork.engine.shell.words import Word

__all__ = ["LONGEST", "Verdict", "classify", "problem_of", "readable", "redirections_problem"]

_SINKS = ("/dev/null", "/dev/stdout", "/dev/stderr")
LONGEST = 10_000
"""Characters; nobody needs more to look at something."""


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
        raise Unreadable(f"The command is longer than {LONGEST} characters; split it.")
    if any((ord(char) < 32 and char not in "\t\n") or 127 <= ord(char) < 160 for char in command):
        raise Unreadable("The command holds a control character (a carriage return, perhaps); leave it out.")
    try:
        raw = command.encode()
    except UnicodeEncodeError as exc:
        raise Unreadable("The command is not valid Unicode.") from exc
    shape, commands = read_shape(raw), read_commands(raw)
    if not commands:
        raise Unreadable("There is no command.")
    if not _agree(shape, commands):
        raise Unreadable(
            "The command can be read in more than one way. Write it more simply: redirections at the end, "
            "special characters in single quotes."
        )
    return commands


def _agree(shape: Shape, commands: list[SimpleCommand]) -> bool:
    redirections = sorted(
        (one.start, ((one.target.start, one.target.end),)) for simple in commands for one in simple.redirections
    )
    return shape.redirections == redirections and shape.commands == sorted(_spans(simple) for simple in commands)


def _spans(simple: SimpleCommand) -> tuple[tuple[int, int], ...]:
    words = simple.words
    if words and words[0].text == "[" and words[0].bare:
        return ((words[0].start, words[-1].end),)
    return tuple((word.start, word.end) for word in words)


def problem_of(simple: SimpleCommand) -> str | None:
    """Return why a simple command does more than read, or None."""
    if not simple.words:
        return "A redirection without a command is not allowed."
    return redirections_problem(simple) or _program_problem(simple.words[0], simple.words[1:])


def redirections_problem(simple: SimpleCommand) -> str | None:
    """Return why a command's redirections do more than read, or None."""
    problems = (_redirection_problem(redirection) for redirection in simple.redirections)
    return next((problem for problem in problems if problem is not None), None)


def _redirection_problem(redirection: Redirection) -> str | None:
    target, operator = redirection.target, redirection.operator
    if operator in ("<<", "<<-"):
        return None
    if not target.literal and operator != "<<<":
        return "The target of a redirection must be written out."
    if operator == "<<<":
        return None
    if operator == ">&":
        fine = target.text in ("1", "2", *_SINKS) and redirection.descriptor in ("", "1", "2")
        return None if fine else "Only 2>&1 and >&2 are allowed of this kind."
    if operator == "<":
        special = target.text.startswith("/dev/") and target.text != "/dev/null"
        return "Reading from a device is not allowed." if special or redirection.descriptor not in ("", "0") else None
    if target.text in _SINKS and redirection.descriptor in ("", "1", "2"):
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
