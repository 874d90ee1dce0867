"""Tell whether a script of ``sed`` only prints.

Read by hand, as ``sed`` itself does: ``w``, ``e`` and ``s///e`` hide behind addresses, in blocks and in the flags of a
substitution. What is not in this short grammar is refused.
"""

from __future__ import annotations

import re

__all__ = ["script_problem"]

_SPACE = re.compile(r"[ \t]*")
_SEPARATORS = re.compile(r"[ \t\n;]*")
_ADDRESS = re.compile(r"\d+(?:~\d+)?|\$|[+~]\d+|/(?:[^/\\\n]|\\[^\n])*/I?")
_SUBSTITUTION = re.compile(r"s([/|,#:@!%_+])((?:(?!\1)[^\\\n]|\\[^\n])*)\1(?:(?!\1)[^\\\n]|\\[^\n])*\1([gpIi0-9]*)")
_BRACKETS = re.compile(r"\\.|\[\^?+\]?+(?:\[:[a-z]+:\]|[^\[\]])*\]")
_PLAIN = "p=dDnNPgGhHxl"
_QUIT = re.compile(r"[qQ][ \t]*\d*")


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
