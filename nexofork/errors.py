"""Everything that can go wrong, under one root.

The branches say what the caller can do about it::

    NexoforkError
    ├── ForkRefused          fix the call; nothing was sent
    │   ├── BadRequestBody       the parent's request bytes are not a usable Messages request
    │   ├── BadReply             the assistant reply does not fit the claim made about it
    │   ├── BadDirective         a directive that cannot be given to a child
    │   ├── CacheBreak           an override would lose the shared prefix
    │   ├── NothingCaptured      the captured client has not finished a request yet
    │   │   └── EmptySlot            the snapshot slot was never written, or was cleared
    │   ├── WorkspaceMismatch    the snapshot belongs to another workspace
    │   ├── UnknownModelPrice    dollars were asked for and the model's price is not known
    │   ├── BadPrices            a price file cannot be used; everything wrong with it is named
    │   ├── BadSettings          settings in a file, the environment or flags cannot be used; each problem is named
    │   ├── BadPermissions       a mode, rule, deadline or policy file of a fork's permissions cannot be used
    │   ├── BadAgentCall         an Agent call that cannot be followed; the model is told how to make it
    │   │   └── UnknownAgent         there is no agent of that name; the known ones are named
    │   ├── BadAgentDefinition   a named agent's definition cannot be used: file, line, key, value
    │   │   └── AgentDefinedTwice    two definitions have one name, and neither comes first
    │   ├── BadAgentDefinitions      several of them; each is named
    │   ├── BadEvaluation        a file of evaluations cannot be used; everything wrong with it is named
    │   ├── AlreadyAFork         a fork may not fork
    │   ├── ForkIsOver           a message came too late; wake the run instead
    │   ├── CannotWake           there is nothing to continue, or it still goes on
    │   ├── NeedsUnknown         the run needs what no daemon of its pool knows yet
    │   └── DaemonsTooOld        daemons of its pool would end the run unread; upgrade them
    ├── BadJson              bytes that are not JSON, before anybody knows whose they are
    ├── BadAuth              keys, certificates or server configuration that cannot be used or made as asked
    ├── BadMessage           a message on the wire that this version cannot take
    │   └── NewerMessage         it is of a later version; whoever wrote it has been upgraded before
    ├── BusError             NATS was not reached or refused; `retryable` says whether to try again
    │   └── RunLost              the log says that the run is no longer ours
    ├── OverBudget           the next call would pass the fork's or the group's budget; it was not sent
    ├── SandboxUnavailable   commands cannot be run as safely as was asked for; `fix` says what to do
    ├── ForkFailed           the run ended without success; read its result
    └── ProviderError        the model call failed; `retryable` says whether it may be sent again

An error keeps its facts as fields; its message is built from them and ends with what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "AgentDefinedTwice",
    "AlreadyAFork",
    "BadAgentCall",
    "BadAgentDefinition",
    "BadAgentDefinitions",
    "BadAuth",
    "BadDirective",
    "BadEvaluation",
    "BadJson",
    "BadMessage",
    "BadPermissions",
    "BadPrices",
    "BadReply",
    "BadRequestBody",
    "BadSettings",
    "BusError",
    "CacheBreak",
    "CannotWake",
    "DaemonsTooOld",
    "EmptySlot",
    "ForkFailed",
    "ForkIsOver",
    "ForkRefused",
    "NeedsUnknown",
    "NewerMessage",
    "NexoforkError",
    "NothingCaptured",
    "OverBudget",
    "ProviderError",
    "RunLost",
    "SandboxUnavailable",
    "SettingProblem",
    "UnknownAgent",
    "UnknownModelPrice",
    "WorkspaceMismatch",
]


class NexoforkError(Exception):
    """The root of every error this library raises on purpose."""


class ForkRefused(NexoforkError):
    """The fork was refused before anything was sent; fix the call and try again."""


class BadRequestBody(ForkRefused):
    """The bytes given as the parent's request are not a usable Messages request."""

    def __init__(self, problem: str, *, fix: str, offset: int | None = None) -> None:
        self.problem = problem
        self.fix = fix
        self.offset = offset
        where = "" if offset is None else f" at byte {offset}"
        super().__init__(f"The parent's request body {problem}{where}. {fix}")


class BadJson(NexoforkError):
    """Bytes that are not the JSON they should be; callers that know whose bytes they are say so."""

    def __init__(self, problem: str, *, offset: int) -> None:
        self.problem = problem
        self.offset = offset
        super().__init__(f"The JSON {problem} at byte {offset}.")


class BadReply(ForkRefused):
    """The assistant reply given with a snapshot cannot be forked from."""

    def __init__(self, problem: str, *, fix: str) -> None:
        self.problem = problem
        self.fix = fix
        super().__init__(f"The parent's reply {problem}. {fix}")


class BadDirective(ForkRefused):
    """A directive that cannot be given to a child."""

    def __init__(self, problem: str, *, fix: str) -> None:
        self.problem = problem
        self.fix = fix
        super().__init__(f"The directive {problem}. {fix}")


class CacheBreak(ForkRefused):
    """An override would make the child's prefix differ from the parent's."""

    def __init__(self, fields: tuple[str, ...], *, loses: str) -> None:
        self.fields = fields
        self.loses = loses
        names = ", ".join(f"`{name}`" for name in fields)
        super().__init__(
            f"Overriding {names} would lose the parent's cached {loses}: every child would pay full price for it. "
            "Drop the override, or pass allow_cache_break=True to accept the bill."
        )


class NothingCaptured(ForkRefused):
    """A snapshot was asked for before the captured client had finished a Messages request."""

    def __init__(
        self,
        message: str = "The captured client has not completed a Messages request yet, so there is nothing to fork from."
        " Let the parent make one call first, or build the snapshot from its request.",
    ) -> None:
        super().__init__(message)


class EmptySlot(NothingCaptured):
    """A snapshot was asked for that nobody has saved."""

    def __init__(self) -> None:
        super().__init__(
            "The snapshot slot was never written, or was cleared, so there is nothing to fork from. Save the parent's "
            "request in it after each of its turns; the turns of forks and sidecars are not kept."
        )


class WorkspaceMismatch(ForkRefused):
    """The snapshot was recorded in another workspace than the one this provider bills to."""

    def __init__(self, *, snapshot: str, provider: str) -> None:
        self.snapshot = snapshot
        self.provider = provider
        super().__init__(
            f"The snapshot was recorded in workspace {snapshot!r} but this provider's key belongs to {provider!r}; "
            "prompt caches are not shared between workspaces. Use a key of the parent's workspace, "
            "or pass allow_cache_break=True to pay full price."
        )


class UnknownModelPrice(ForkRefused):
    """Dollars were asked for and the model's price is not known."""

    def __init__(self, model: str, *, known: tuple[str, ...]) -> None:
        self.model = model
        self.known = known
        super().__init__(
            f"The price of {model!r} is not known, so nothing can be said in dollars. "
            f"Count tokens instead, name its price in a file (NEXOFORK_PRICES), or use one of: {', '.join(known)}."
        )


class BadPermissions(ForkRefused):
    """What was said about a fork's permissions cannot be meant."""

    def __init__(self, problem: str, *, fix: str) -> None:
        self.problem = problem
        self.fix = fix
        super().__init__(f"{problem} {fix}")


class BadPrices(ForkRefused):
    """A price file cannot be used."""

    def __init__(self, path: str, problems: tuple[str, ...]) -> None:
        self.path = path
        self.problems = problems
        super().__init__(
            f"The price file {path} cannot be used: {'; '.join(problems)}. Correct the file, or leave it out."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingProblem:
    """One thing that is wrong with settings."""

    where: str
    """The flag, the variable, or the file with the key."""
    said: str
    """What is wrong, as the rest of a sentence."""
    fix: str
    """What to do, as a sentence."""

    def __str__(self) -> str:
        return f"{self.where} {self.said}. {self.fix}"


class BadSettings(ForkRefused):
    """Settings that cannot be used; all that is wrong with them, one line each."""

    def __init__(self, problems: Sequence[SettingProblem], warnings: Sequence[str] = ()) -> None:
        self.problems = tuple(problems)
        self.warnings = tuple(warnings)
        """What is no error and may be the reason."""
        lines = list(map(str, problems))
        super().__init__(lines[0] if len(lines) == 1 else "\n  ".join((f"{len(lines)} settings are wrong:", *lines)))


class BadAgentCall(ForkRefused):
    """An Agent call that cannot be followed; its message is for the model that made it."""

    def __init__(self, problem: str, *, fix: str) -> None:
        self.problem = problem
        self.fix = fix
        super().__init__(f"No agent was started: {problem}. {fix}")


class UnknownAgent(BadAgentCall):
    """There is no agent of that name."""

    def __init__(self, name: str, *, known: tuple[str, ...]) -> None:
        self.name = name
        self.known = known
        super().__init__(f"there is no agent {name[:80]!r}", fix=f"Agents: {', '.join(known) or 'none'}.")


class BadAgentDefinition(ForkRefused):
    """A named agent's definition cannot be used."""

    def __init__(self, problem: str, *, fix: str, where: str, line: int | None = None, key: str | None = None) -> None:
        self.problem = problem
        self.fix = fix
        self.where = where
        """The file, or who defined it."""
        self.line = line
        self.key = key
        at = f", line {line}" if line is not None else ""
        of = f", `{key}`" if key is not None else ""
        super().__init__(f"{where}{at}{of}: {problem}. {fix}")


class AgentDefinedTwice(BadAgentDefinition):
    """Two definitions of one level have the same name, so neither comes before the other."""

    def __init__(self, name: str, *, first: str, second: str) -> None:
        self.name = name
        self.first = first
        self.second = second
        super().__init__(
            f"{name!r} is defined in {first} already", fix="Rename or remove one of the two.", where=second, key="name"
        )


class BadAgentDefinitions(ForkRefused):
    """Several definitions cannot be used."""

    def __init__(self, problems: tuple[BadAgentDefinition, ...]) -> None:
        self.problems = problems
        super().__init__(" ".join(map(str, problems)))


class BadEvaluation(ForkRefused):
    """A file of evaluations cannot be used."""

    def __init__(self, path: str, problems: tuple[str, ...]) -> None:
        self.path = path
        self.problems = problems
        super().__init__(f"The evaluation {path} cannot be used: {'; '.join(problems)}. Correct the file.")


class AlreadyAFork(ForkRefused):
    """A fork tried to fork."""

    def __init__(self, *, guard: str) -> None:
        self.guard = guard
        super().__init__(
            f"This agent is already a fork (recognised by {guard}) and may not fork again. "
            "Do the work with the tools at hand and report."
        )


class BadAuth(NexoforkError):
    """Keys, certificates or a server configuration that cannot be used, or not be made as asked."""

    def __init__(self, problem: str, *, fix: str) -> None:
        self.problem = problem
        self.fix = fix
        super().__init__(f"{problem}. {fix}")


class ForkIsOver(ForkRefused):
    """A message to a fork that ended before it could be read."""

    def __init__(self, run_id: str, *, status: str, stored: bool = False) -> None:
        self.run_id = run_id
        self.status = status
        self.stored = stored
        """Whether the message lies in the inbox, where nobody will read it any more."""
        when = "ended before the message was read" if stored else "is over"
        super().__init__(
            f"Run {run_id} {when} ({status}); the message was not delivered. "
            "Go on from where it ended with `wake`, or start a new fork."
        )


class CannotWake(ForkRefused):
    """A run that cannot be continued."""

    def __init__(self, run_id: str, why: str, *, fix: str) -> None:
        self.run_id = run_id
        self.why = why
        self.fix = fix
        super().__init__(f"Run {run_id} cannot be woken: {why}. {fix}")


class NeedsUnknown(ForkRefused):
    """A run that needs what its daemons do not know; running it without would not be what was asked for."""

    def __init__(self, needs: tuple[str, ...], *, pool: str) -> None:
        self.needs = needs
        self.pool = pool
        super().__init__(
            f"The request needs {', '.join(map(repr, needs))}, which no daemon of pool {pool!r} knows. "
            "Upgrade the daemons before the parents; docs/upgrade.md has the order."
        )


class DaemonsTooOld(ForkRefused):
    """Daemons of the pool are of a release that ends such a request instead of leaving it to others."""

    def __init__(self, *, daemons: Sequence[str], needs: Sequence[str], pool: str) -> None:
        self.daemons = tuple(daemons)
        self.needs = tuple(needs)
        self.pool = pool
        super().__init__(
            f"The request needs {', '.join(map(repr, needs))}, and an earlier release runs in pool {pool!r} that would "
            f"refuse it: {', '.join(daemons)}. Upgrade or stop those daemons; docs/upgrade.md has the order."
        )


class BadMessage(NexoforkError):
    """A message on the wire that this version cannot take."""

    def __init__(self, problem: str, *, fix: str) -> None:
        self.problem = problem
        self.fix = fix
        super().__init__(f"The message {problem}. {fix}")


class NewerMessage(BadMessage):
    """A message of a later version than this one can read."""

    def __init__(self, what: str, *, version: int, newest: int) -> None:
        self.version = version
        self.newest = newest
        super().__init__(
            f"has version {version}; {newest} is the newest version of {what}s that is known here",
            fix="Upgrade this host; docs/upgrade.md has the order.",
        )


class BusError(NexoforkError):
    """NATS was not reached, or refused."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        self.retryable = retryable
        """Whether the same call may succeed later."""
        super().__init__(message)


class RunLost(BusError):
    """The log says that the run is no longer ours: another daemon took it, or it is over."""

    def __init__(self, run_id: str, why: str) -> None:
        self.run_id = run_id
        self.why = why
        super().__init__(f"Run {run_id} is lost: {why}.", retryable=False)


class OverBudget(NexoforkError):
    """The next model call would pass a budget, so it was not sent."""

    def __init__(
        self,
        group: str,
        *,
        unit: Literal["usd", "tokens"],
        limit: float,
        spent: float,
        held: float,
        needed: float,
        waited_s: float | None = None,
    ) -> None:
        self.group = group
        """Empty where it is the fork's own budget."""
        self.unit = unit
        self.limit = limit
        self.spent = spent
        self.held = held
        """Set aside for calls that are under way."""
        self.needed = needed
        """What the call may cost, with the longest answer it may get."""
        self.waited_s = waited_s
        """How long it was waited for those calls in vain; None where that would not have helped."""
        whose = f"The budget of group {group!r}" if group else "The fork's budget"
        waiting = ""
        if waited_s is not None:
            waiting = f", {self._say(held)} set aside for calls that did not end within {waited_s:g} s"
        super().__init__(
            f"{whose} of {self._say(limit)} does not cover the next call, so it was not sent: {self._say(spent)} "
            f"spent{waiting}, and the call may cost {self._say(needed)}. Raise the budget (for a group, under another "
            "name), or lower max_tokens in the parent's requests: the longest answer is what is set aside."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON values."""
        names = ("group", "unit", "limit", "spent", "held", "needed")
        return {name: getattr(self, name) for name in names}

    def _say(self, value: float) -> str:
        return f"${value:.6g}" if self.unit == "usd" else f"{value:,.0f} tokens"


class SandboxUnavailable(NexoforkError):
    """Commands cannot be kept apart from this host as was asked for."""

    def __init__(self, problem: str, *, fix: str) -> None:
        super().__init__(f"The sandbox does not work here: {problem}. {fix}")
        self.problem = problem
        self.fix = fix


class ForkFailed(NexoforkError):
    """The run ended without success; the result holds status, text and usage so far."""


class ProviderError(NexoforkError):
    """A model call failed; see the subclasses in ``providers`` for what happened."""

    def __init__(self, message: str, *, retryable: bool, status: int | None = None, request_id: str | None = None):
        self.retryable = retryable
        """Whether sending the same bytes again may succeed."""
        self.status = status
        """The HTTP status, where there was a response."""
        self.request_id = request_id
        super().__init__(message)
