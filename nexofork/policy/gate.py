"""Judge each tool call by a fork's permissions, and let through what is permitted.

The question is asked before the call is announced: a call without an answer was never begun, so a daemon that takes the
run over asks again instead of calling it interrupted.

A Bash command is allowed only if all of its simple commands are: each only reads, or a rule covers it. What the parser
cannot read is covered by no pattern, and neither is a command that runs something that cannot be seen. What is let
through because it only reads has to run in the environment that this verdict depends on. The work on one call is
bounded. A call that needs more is denied where a deny rule may mean it, and no rule allows it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from nexofork.errors import BadPermissions
from nexofork.policy.filters import READERS
from nexofork.policy.paths import CONFIGURES
from nexofork.policy.permissions import Asker, Decision, NobodyToAsk, PermissionAsk, Permissions, shortened
from nexofork.policy.rules import BASH, LONGEST_PATH, PATH_TOOLS, Rule, parse_rule, parse_rules
from nexofork.policy.shell import READ_ONLY_ENVIRONMENT, Unreadable, problem_of, readable
from nexofork.policy.shell.classify import LONGEST
from nexofork.policy.wrappers import Sight, Steps, TooMuch, look_inside, rough_look
from nexofork.telemetry import metrics
from nexofork.tools.arguments import Unable
from nexofork.tools.threads import in_thread
from nexofork.tools.tool_names import AGENT_TOOL
from nexofork.wire.permissions import ask_id_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from nexofork.policy.permissions import PermissionAnswer
    from nexofork.policy.shell import SimpleCommand
    from nexofork.tools.dispatch import ToolCall, ToolDispatcher

__all__ = ["Gate", "Judge", "Passage", "Verdict"]

_ASK_AGAIN_BY_NAME = frozenset(("FileRead", "FileWrite", "FileEdit", "Glob", "Grep"))
"""Tools that ask once more about themselves, with the canonical path."""
_JUDGED_S = 30.0
_INSTEAD = "Go on without it, or name what should be done under Issues in your report."
_HARMLESS = READERS | {AGENT_TOOL}
"""Whoever runs them: by their name these only look, and an agent that is started has permissions of its own."""
_WITH_SUBCOMMANDS = frozenset(
    ("cargo", "docker", "gh", "git", "go", "kubectl", "npm", "pip", "pnpm", "podman", "poetry", "uv", "yarn")
)
"""Programs whose second word says what they do: remembering one does not remember the others."""

_MOST_SUGGESTED = 16
"""Simple commands of one call that rules are suggested for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """Whether a call may run, and under which conditions."""

    denial: str | None = None
    """Why not, in words the model can act on."""
    environment: Mapping[str, str] = field(default_factory=dict)
    path: str | None = None
    """The canonical path it was permitted for; it may lead nowhere else when it is opened."""


class Gate:
    """The permissions of one run."""

    def __init__(
        self,
        permissions: Permissions | None = None,
        *,
        tools: ToolDispatcher,
        asker: Asker | None = None,
        cwd: Path | None = None,
        decided: Mapping[str, Decision] | None = None,
    ) -> None:
        """Make a gate.

        Args:
            permissions: What it goes by; None lets everything through.
            tools: Says which calls change nothing.
            asker: Gets questions answered; None answers none.
            cwd: Where relative paths start; None leaves it to the tools to say, else it is where this process runs.
            decided: By ask id, what earlier daemons of the run were told.
        """
        permissions = permissions or Permissions()
        self._deadline_s = permissions.deadline_s
        self._judge = Judge(permissions, cwd=cwd or getattr(tools, "cwd", None))
        self._tools = tools
        self._asker: Asker = asker or NobodyToAsk()
        self._decided = dict(decided or {})
        for decision in self._decided.values():
            self._judge.remember(allowed=decision.allowed, rules=decision.rules)

    async def permit(self, call: ToolCall, turn: int) -> Passage:
        """Return whether a call may run; ask, and wait for the answer, where it is not settled."""
        if self._judge.idle:
            return Passage()
        try:
            verdict = await in_thread(lambda _: self._verdict(call), limit_s=_JUDGED_S)
        except Unable:
            return Passage(denial=f"it could not be compared with this fork's rules in {_JUDGED_S:g} s. Shorten it.")
        if verdict.kind == "deny":
            return Passage(denial=verdict.reason)
        if verdict.kind == "run":
            return Passage(environment=verdict.environment, path=verdict.path)
        return await self._asked(call, turn, verdict)

    def inside(self, call: ToolCall, passage: Passage, name: str, arguments: dict[str, Any]) -> str | None:
        """Return why something a running call turned out to mean is denied: its canonical path, or an inner call."""
        if self._judge.idle:
            return None
        if name == call.name and name in _ASK_AGAIN_BY_NAME:
            if passage.path is not None and arguments.get("file_path", passage.path) != passage.path:
                return f"its path led to {passage.path} when it was permitted, and now leads elsewhere. Try again."
            return self._judge.denied(name, arguments)
        verdict = self._verdict(replace(call, name=name, input=arguments))
        if verdict.kind == "ask":
            return f"it has to be asked for, which cannot be done from inside {call.name}. Call {name} directly."
        return verdict.reason if verdict.kind == "deny" else None

    def _verdict(self, call: ToolCall) -> Verdict:
        return self._judge.judge(call.name, call.input, read_only=self._tools.read_only(call))

    async def _asked(self, call: ToolCall, turn: int, verdict: Verdict) -> Passage:
        ask = PermissionAsk(
            run_id=call.run_id,
            ask_id=ask_id_of("permission", turn, call.id),
            turn=turn,
            call_id=call.id,
            name=call.name,
            arguments=call.input,
            deadline_s=self._deadline_s,
            rules=verdict.rules,
        )
        decision = self._decided.get(ask.ask_id)
        if decision is None:
            decision = self._decision(ask, await self._asker.answer(ask))
            await self._asker.decided(ask, decision)
            metrics.permission_decided(_outcome(decision))
            self._judge.remember(allowed=decision.allowed, rules=decision.rules)
        if decision.allowed:
            return Passage(environment=verdict.environment, path=verdict.path)
        return Passage(denial=_denial(decision, self._deadline_s))

    def _decision(self, ask: PermissionAsk, answer: PermissionAnswer | None) -> Decision:
        if answer is None:
            return Decision(allowed=False, how="deadline")
        rules: tuple[str, ...] = ()
        note = shortened(answer.note.strip())
        if answer.remember or answer.rule:
            wanted = (answer.rule,) if answer.rule else ask.rules
            rules = self._judge.usable(ask.name, ask.arguments, wanted) if wanted else ()
            if not rules and answer.allow:
                why = f"{answer.rule} does not cover this call" if answer.rule else "no narrow rule covers this call"
                left = f"not remembered: {why}"
                note = f"{note} ({left})" if note else left
        return Decision(allowed=answer.allow, note=note, rules=rules, by=answer.by)


def _outcome(decision: Decision) -> str:
    if decision.allowed:
        return "allowed"
    return "deadline" if decision.how == "deadline" else "denied"


def _denial(decision: Decision, deadline_s: float) -> str:
    if decision.how == "deadline":
        return f"it was asked for, and nobody answered within {deadline_s:g} s. {_INSTEAD}"
    if decision.note:
        return f"permission was denied: {decision.note.rstrip('.')}. {_INSTEAD}"
    return f"permission was denied. {_INSTEAD}"


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
    sight: Sight = field(default_factory=Sight)
    """All that a Bash call may run."""
    sights: list[Sight] = field(default_factory=list)
    """What each of its commands may run; none where no rule is about commands, or they are too long."""
    unreadable: str = ""
    too_much: bool = False
    """Whether the call is too long to be compared with rules."""
    path: str | None = None
    given: str | None = None
    """The path as it was named, made absolute, links and all."""

    def apart(self) -> list[_Seen]:
        """Return each simple command as a call of its own."""
        return [
            replace(self, commands=[simple], sights=self.sights[at : at + 1])
            for at, simple in enumerate(self.commands or ())
        ]


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
            self._look_at_command(seen, arguments.get("command"))
        elif name in PATH_TOOLS and isinstance(given := arguments.get("file_path"), str) and given:
            seen.too_much = len(given) > LONGEST_PATH
            try:
                if not seen.too_much:
                    seen.path = os.path.realpath(os.path.join(self._folder(), given))
                    seen.given = os.path.normpath(os.path.join(self._folder(), given))
            except (OSError, ValueError):
                seen.path = seen.given = None  # no path, so no rule is about it
        return seen

    def _look_at_command(self, seen: _Seen, command: object) -> None:
        text, steps = command if isinstance(command, str) else "", Steps()
        try:
            seen.commands = readable(text)
        except Unreadable as exc:
            seen.unreadable = str(exc)
        seen.too_much = len(text) > LONGEST
        if seen.too_much or not any(rule.tool == BASH for rule in (*self._allow, *self._deny)):
            return
        try:
            if seen.commands is None:
                seen.sight.candidates = rough_look(text, steps)
                return
            seen.sights = [look_inside(simple, steps) for simple in seen.commands]
            seen.sight.candidates = [candidate for sight in seen.sights for candidate in sight.candidates]
            seen.sight.hidden = next((sight.hidden for sight in seen.sights if sight.hidden), "")
            if seen.sight.hidden:
                seen.sight.candidates += rough_look(text, steps, runs=True)
        except TooMuch:
            seen.too_much = True

    def _folder(self) -> str:
        return os.path.realpath(self._cwd or os.getcwd())

    def _denied(self, seen: _Seen) -> str | None:
        own, steps = [rule for rule in self._deny if rule.tool == seen.name], Steps()
        try:
            rule = next((rule for rule in own if self._may_mean(rule, seen, steps)), None)
        except TooMuch:
            return (
                "it is too long or too involved to be compared with the deny rules of this fork. "
                "Split it into shorter calls."
            )
        if rule is not None:
            return (
                f"the rule {rule} of this fork denies it. Go on without it, "
                "or name what should be done under Issues in your report."
            )
        hidden = seen.unreadable or seen.sight.hidden
        if hidden and self._mode == "allow" and any(rule.pattern is not None for rule in own):
            unsure = "some commands are denied to this fork, and whether this is one of them cannot be told."
            return f"{unsure} {hidden}"
        return None

    def _may_mean(self, rule: Rule, seen: _Seen, steps: Steps) -> bool:
        if rule.pattern is None:
            return True
        if seen.too_much:
            raise TooMuch
        if seen.name == BASH:
            found = seen.sight.starting_with(rule.program)
            return any(rule.may_mean_command(candidate, steps) for candidate in found)
        names = [name for name in (seen.path, seen.given) if name is not None]
        return bool(names) and rule.may_mean_path(names, cwd=self._folder(), steps=steps)

    def _covered(self, seen: _Seen, rules: Sequence[Rule], *, reading: bool = False) -> bool:
        """Whether rules cover the call, or all of a command that does more than read."""
        own, steps = [rule for rule in rules if rule.tool == seen.name], Steps()
        if any(rule.pattern is None for rule in own):
            return True
        try:
            if seen.commands is not None:
                rest = [at for at, simple in enumerate(seen.commands) if not (reading and problem_of(simple) is None)]
                return all(any(_covers(rule, seen, at, steps) for rule in own) for at in rest)
            path, cwd = seen.path, self._folder()
            return path is not None and any(rule.covers_path(path, cwd=cwd, steps=steps) for rule in own)
        except TooMuch:
            return False

    def _headless(self, seen: _Seen) -> str:
        allowed = f", and do what these rules allow: {', '.join(self._listed)}" if self._listed else ""
        why = seen.unreadable or seen.sight.hidden
        why = f" {why}" if why else ""
        return (
            f"this fork may read{allowed}. Nobody is there to be asked for more, so put what should be done "
            f"into your report.{why}"
        )

    def _suggested(self, seen: _Seen) -> tuple[str, ...]:
        """Return the narrowest rules that would spare asking for the like of this call again."""
        found: list[str] = []
        if seen.commands is not None:
            if len(seen.commands) > _MOST_SUGGESTED:
                return ()
            rest = [one for one in seen.apart() if not self._covered(one, self._allow, reading=True)]
            found = [f"{BASH}({_like(simple)})" for one in rest for simple in one.commands or ()]
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


def _covers(rule: Rule, seen: _Seen, at: int, steps: Steps) -> bool:
    """Whether a rule covers a simple command of which all that it runs can be seen.

    A script that the command names may stay unseen if the rule names it too, without a wildcard.
    """
    assert seen.commands is not None
    if not rule.covers_command(seen.commands[at], steps):
        return False
    if rule.pattern is None:
        return True
    sight = seen.sights[at] if at < len(seen.sights) else look_inside(seen.commands[at], steps)
    return not sight.hidden or (sight.named and rule.exact)


def _like(simple: SimpleCommand) -> str:
    """Return a pattern for the like of a command: the same words, or the same subcommand with any others."""
    texts = [word.text for word in simple.words]
    if len(texts) > 1 and texts[0] in _WITH_SUBCOMMANDS and texts[1].replace("-", "a").isalnum() and texts[1][0] != "-":
        return f"{texts[0]} {texts[1]} *"
    # A word with a space or a star in it would be read as another pattern: then nothing is suggested.
    whole = all(word.literal and word.text and "*" not in word.text for word in simple.words)
    return " ".join(texts) if whole and not any(" " in text for text in texts) else ""
