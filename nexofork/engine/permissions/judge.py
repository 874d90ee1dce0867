"""Judge a tool call by a fork's permissions, and by what was remembered of the answers it got.

A Bash command is allowed only if all of its simple commands are: each only reads, or a rule covers it. What the parser
cannot read is covered by no pattern. What is let through because it only reads has to run in the environment that this
verdict depends on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from nexofork.engine.filters.kinds import READERS
from nexofork.engine.permissions.rules import BASH, CONFIGURES, PATH_TOOLS, Rule, parse_rule, parse_rules
from nexofork.engine.shell import READ_ONLY_ENVIRONMENT, Unreadable, problem_of, readable
from nexofork.engine.tool_names import AGENT_TOOL
from nexofork.errors import BadPermissions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from nexofork.engine.permissions.policy import Permissions
    from nexofork.engine.shell import SimpleCommand

__all__ = ["Judge", "Verdict"]

_HARMLESS = READERS | {AGENT_TOOL}
"""Whoever runs them: by their name these only look, and an agent that is started has permissions of its own."""
_WITH_SUBCOMMANDS = frozenset(
    ("cargo", "docker", "gh", "git", "go", "kubectl", "npm", "pip", "pnpm", "podman", "poetry", "uv", "yarn")
)
"""Programs whose second word says what they do: remembering one does not remember the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of a call."""

    kind: Literal["run", "ask", "deny"]
    reason: str = ""
    """Why it is denied, in words the model can act on."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What a command must be run with for the verdict to hold."""
    path: str | None = None
    """The canonical path the verdict is about."""
    rules: tuple[str, ...] = ()
    """Where it is asked: what would cover it from now on; none where nothing narrow would."""


@dataclass(slots=True)
class _Seen:
    """A call as the rules see it."""

    name: str
    commands: list[SimpleCommand] | None = None
    """Of a Bash call that can be read."""
    unreadable: str = ""
    path: str | None = None
    given: str | None = None
    """The path as it was named, made absolute, links and all."""


class Judge:
    """One fork's permissions."""

    def __init__(self, permissions: Permissions, *, cwd: Path | None = None) -> None:
        self._mode = permissions.mode
        self._allow = list(parse_rules(permissions.allow))
        self._deny = list(parse_rules(permissions.deny))
        self._listed = tuple(permissions.allow)
        self._cwd = cwd

    @property
    def idle(self) -> bool:
        """Whether everything runs, so that nothing need be looked at."""
        return self._mode == "allow" and not self._deny

    def judge(self, name: str, arguments: Mapping[str, Any], *, read_only: bool) -> Verdict:
        """Return what becomes of a call.

        Args:
            name: The tool, by the name it has here.
            arguments: What it is called with.
            read_only: Whether whoever runs it says that it changes nothing.
        """
        seen = self._look(name, arguments)
        if (reason := self._denied(seen)) is not None:
            return Verdict(kind="deny", reason=reason)
        # What a tool calls inside may be a command that only reads.
        usual: Mapping[str, str] = {} if self._mode == "allow" or name == BASH else READ_ONLY_ENVIRONMENT
        if self._mode == "allow":
            return Verdict(kind="run", path=seen.path if self._deny else None)
        if self._covered(seen, self._allow):
            return Verdict(kind="run", environment=usual, path=seen.path)
        if seen.commands is not None and self._covered(seen, self._allow, reading=True):
            return Verdict(kind="run", environment=READ_ONLY_ENVIRONMENT)
        if read_only or name in _HARMLESS:
            return Verdict(kind="run", environment=usual, path=seen.path)
        if self._mode == "deny":
            return Verdict(kind="deny", reason=self._headless(seen))
        return Verdict(kind="ask", environment=usual, path=seen.path, rules=self._suggested(seen))

    def denied(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Return why a rule denies a call, or None."""
        return self._denied(self._look(name, arguments))

    def remember(self, *, allowed: bool, rules: Iterable[str]) -> None:
        """Take rules from an answer, for the rest of the run."""
        (self._allow if allowed else self._deny).extend(parse_rules(list(rules)))

    def usable(self, name: str, arguments: Mapping[str, Any], texts: Sequence[str]) -> tuple[str, ...]:
        """Return the rules if they are about the call: all are its tool's, and together they cover it."""
        try:
            rules = [parse_rule(text) for text in texts]
        except BadPermissions:
            return ()
        seen = self._look(name, arguments)
        fine = all(rule.tool == name for rule in rules) and self._covered(seen, [*self._allow, *rules], reading=True)
        return tuple(str(rule) for rule in rules) if fine else ()

    def _look(self, name: str, arguments: Mapping[str, Any]) -> _Seen:
        seen = _Seen(name=name)
        if name == BASH:
            command = arguments.get("command")
            try:
                seen.commands = readable(command if isinstance(command, str) else "")
            except Unreadable as exc:
                seen.unreadable = str(exc)
        elif name in PATH_TOOLS and isinstance(given := arguments.get("file_path"), str) and given:
            try:
                seen.path = os.path.realpath(os.path.join(self._folder(), given))
                seen.given = os.path.normpath(os.path.join(self._folder(), given))
            except (OSError, ValueError):
                seen.path = seen.given = None  # no path, so no rule is about it
        return seen

    def _folder(self) -> str:
        return os.path.realpath(self._cwd or os.getcwd())

    def _denied(self, seen: _Seen) -> str | None:
        for rule in self._deny:
            if rule.tool == seen.name and self._may_mean(rule, seen):
                return (
                    f"the rule {rule} of this fork denies it. Go on without it, "
                    "or name what should be done under Issues in your report."
                )
        patterns = any(rule.tool == BASH and rule.pattern is not None for rule in self._deny)
        if seen.unreadable and patterns and self._mode == "allow":
            unsure = "some commands are denied to this fork, and whether this is one of them cannot be told."
            return f"{unsure} {seen.unreadable}"
        return None

    def _may_mean(self, rule: Rule, seen: _Seen) -> bool:
        if rule.pattern is None:
            return True
        if seen.commands is not None:
            return any(rule.may_mean_command(simple) for simple in seen.commands)
        names = [name for name in (seen.path, seen.given) if name is not None]
        return bool(names) and rule.may_mean_path(names, cwd=self._folder())

    def _covered(self, seen: _Seen, rules: Sequence[Rule], *, reading: bool = False) -> bool:
        """Whether rules cover the call, or all of a command that does more than read."""
        own = [rule for rule in rules if rule.tool == seen.name]
        if any(rule.pattern is None for rule in own):
            return True
        if seen.commands is not None:
            return all(
                (reading and problem_of(simple) is None) or any(rule.covers_command(simple) for rule in own)
                for simple in seen.commands
            )
        return seen.path is not None and any(rule.covers_path(seen.path, cwd=self._folder()) for rule in own)

    def _headless(self, seen: _Seen) -> str:
        allowed = f", and do what these rules allow: {', '.join(self._listed)}" if self._listed else ""
        why = f" {seen.unreadable}" if seen.unreadable else ""
        return (
            f"this fork may read{allowed}. Nobody is there to be asked for more, so put what should be done "
            f"into your report.{why}"
        )

    def _suggested(self, seen: _Seen) -> tuple[str, ...]:
        """Return the narrowest rules that would spare asking for the like of this call again."""
        found: list[str] = []
        if seen.commands is not None:
            rest = [
                simple
                for simple in seen.commands
                if problem_of(simple) is not None and not any(_covers(rule, simple) for rule in self._allow)
            ]
            found = [f"{BASH}({_like(simple)})" for simple in rest]
        elif seen.path is not None:
            found = [f"{seen.name}({self._beside(seen.path)})"]
        elif seen.name != BASH:
            found = [seen.name]
        try:
            rules = [parse_rule(text) for text in dict.fromkeys(found)]
        except BadPermissions:
            return ()
        covered = bool(rules) and self._covered(seen, [*self._allow, *rules], reading=True)
        return tuple(str(rule) for rule in rules) if covered else ()

    def _beside(self, path: str) -> str:
        """Return a pattern for the files of a folder, from the working folder on if it is in there."""
        folder, name = os.path.split(path)
        if not any(part.casefold() in CONFIGURES for part in path.split("/")):
            name = "*"
        cwd = self._folder()
        if folder == cwd:
            return name
        inside = folder.startswith(cwd.rstrip("/") + "/")
        return os.path.join(os.path.relpath(folder, cwd) if inside else folder, name)


def _covers(rule: Rule, simple: SimpleCommand) -> bool:
    return rule.tool == BASH and rule.covers_command(simple)


def _like(simple: SimpleCommand) -> str:
    """Return a pattern for the like of a command: the same words, or the same subcommand with any others."""
    texts = [word.text for word in simple.words]
    if len(texts) > 1 and texts[0] in _WITH_SUBCOMMANDS and texts[1].replace("-", "a").isalnum() and texts[1][0] != "-":
        return f"{texts[0]} {texts[1]} *"
    # A word with a space or a star in it would be read as another pattern: then nothing is suggested.
    whole = all(word.literal and word.text and "*" not in word.text for word in simple.words)
    return " ".join(texts) if whole and not any(" " in text for text in texts) else ""
