"""Stand between a fork's filter and its tools, and let through what is permitted.

The question is asked before the call is announced: a call that nobody answered for was never begun, so a daemon that
takes the run over asks again instead of calling it interrupted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nexofork.engine.permissions.asks import Asker, Decision, NobodyToAsk, PermissionAsk, shortened
from nexofork.engine.permissions.judge import Judge
from nexofork.engine.permissions.policy import Permissions
from nexofork.engine.tools.arguments import Unable
from nexofork.engine.tools.threads import in_thread
from nexofork.telemetry import metrics
from nexofork.wire.permissions import ask_id_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nexofork.engine.dispatch import ToolCall, ToolDispatcher
    from nexofork.engine.permissions.asks import PermissionAnswer
    from nexofork.engine.permissions.judge import Verdict

__all__ = ["Gate", "Passage"]

_ASK_AGAIN_BY_NAME = frozenset(("FileRead", "FileWrite", "FileEdit", "Glob", "Grep"))
"""Tools that ask once more about themselves, with the canonical path."""
_JUDGED_S = 30.0
_INSTEAD = "Go on without it, or name what should be done under Issues in your report."


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
