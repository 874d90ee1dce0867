"""What a fork may do without a question, the questions about everything else, and their answers.

The first answer counts, from the parent's callback or from any holder of the handle. Without one the deadline decides.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, get_args

from nexofork.errors import BadPermissions
from nexofork.policy.rules import parse_rules
from nexofork.wire.permissions import LONGEST_NOTE, PermissionPolicy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    OnPermission = Callable[["PermissionAsk"], Awaitable["PermissionAnswer"]]

__all__ = [
    "DEADLINE_S",
    "Asker",
    "Decision",
    "NobodyToAsk",
    "PermissionAnswer",
    "PermissionAsk",
    "PermissionMode",
    "Permissions",
    "answer_of",
    "permissions_of",
    "travelling_permissions",
]

log = logging.getLogger(__name__)

PermissionMode = Literal["allow", "bubble", "deny"]
DEADLINE_S = 300.0
_LONGEST_S = 7 * 24 * 3600.0
_MOST = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """Which tool calls of a fork run, which are asked for, and which are denied.

    A filter comes first, then ``deny``, which beats everything behind it. Permissions are for what a fork should do;
    what it *can* do is bounded by its filters and by the sandbox of its host.

    Raises:
        BadPermissions: The mode is not known, a rule cannot be read, or the deadline is no time.
    """

    mode: PermissionMode = "allow"
    """``allow`` runs everything, ``bubble`` asks the parent for all that does more than read, ``deny`` denies it."""
    allow: Sequence[str] = ()
    """Rules for what is neither asked for nor denied, as ``Bash(git commit *)``."""
    deny: Sequence[str] = ()
    """Rules for what never runs, whoever would allow it."""
    deadline_s: float = DEADLINE_S
    """How long an answer is waited for; after that the call is denied."""

    def __post_init__(self) -> None:
        if self.mode not in get_args(PermissionMode):
            known = ", ".join(get_args(PermissionMode))
            raise BadPermissions(f"There is no permission mode {self.mode!r}.", fix=f"Modes: {known}.")
        for name in ("allow", "deny"):
            object.__setattr__(self, name, _checked(name, getattr(self, name)))
        if self.allow and self.mode == "allow":
            raise BadPermissions(
                f"The rule {self.allow[0]!r} allows something, and the mode `allow` lets everything run.",
                fix="Choose the mode bubble or deny, or leave the allow rules out.",
            )
        limit: Any = self.deadline_s
        fine = isinstance(limit, (int, float)) and not isinstance(limit, bool) and math.isfinite(limit)
        if not fine or not 0 < limit <= _LONGEST_S:
            raise BadPermissions(
                f"The permission deadline {limit!r} is no time to wait.", fix="Give seconds above 0, at most a week."
            )


def permissions_of(policy: PermissionPolicy | None) -> Permissions:
    """Return what a request says about permissions; nothing said is everything allowed.

    Raises:
        BadPermissions: It cannot be meant.
    """
    if policy is None:
        return Permissions()
    return Permissions(
        mode=cast("PermissionMode", policy.mode), allow=policy.allow, deny=policy.deny, deadline_s=policy.deadline_s
    )


def travelling_permissions(permissions: Permissions) -> PermissionPolicy | None:
    """Return permissions as they travel; none where they are the default."""
    if permissions == Permissions():
        return None
    return PermissionPolicy(
        mode=permissions.mode,
        allow=list(permissions.allow),
        deny=list(permissions.deny),
        deadline_s=permissions.deadline_s,
    )


def _checked(name: str, rules: object) -> tuple[str, ...]:
    if isinstance(rules, str) or not isinstance(rules, (list, tuple)):
        raise BadPermissions(f"`{name}` is {rules!r}, not a list of rules.", fix="Give a list of texts.")
    if len(rules) > _MOST:
        raise BadPermissions(f"`{name}` has {len(rules)} rules.", fix=f"Give at most {_MOST}.")
    return tuple(str(rule) for rule in parse_rules(rules))


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionAsk:
    """May this fork make this call?"""

    run_id: str
    ask_id: str
    """What an answer has to name."""
    turn: int
    call_id: str
    name: str
    """The tool, by the name that rules use."""
    arguments: dict[str, Any]
    deadline_s: float
    """How long an answer is waited for from now on."""
    rules: tuple[str, ...] = ()
    """What an answer that is remembered would allow, or deny, from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionAnswer:
    """What somebody says to that."""

    allow: bool
    note: str = ""
    """For the model, where it is denied; for the log in any case."""
    remember: bool = False
    """Whether the same goes for the like of it until the run is over."""
    rule: str = ""
    """What to remember, if not what the question suggests; it has to cover the call that was asked about."""
    by: str = ""
    """Who says so, for the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What it came to."""

    allowed: bool
    how: Literal["answer", "deadline"] = "answer"
    note: str = ""
    rules: tuple[str, ...] = ()
    """What is remembered of it."""
    by: str = ""


class Asker(Protocol):
    """Gets questions answered."""

    async def answer(self, ask: PermissionAsk) -> PermissionAnswer | None:
        """Return the first answer, or None where none came before the deadline."""

    async def decided(self, ask: PermissionAsk, decision: Decision) -> None:
        """Hear what it came to, before anything is done about it."""


class NobodyToAsk:
    """Answers nothing: the deadline has passed."""

    async def answer(self, ask: PermissionAsk) -> PermissionAnswer | None:
        """Return nothing."""
        return None

    async def decided(self, ask: PermissionAsk, decision: Decision) -> None:
        """Do nothing."""


async def answer_of(callback: OnPermission, ask: PermissionAsk) -> PermissionAnswer:
    """Return what a parent's callback answers; one that fails denies."""
    try:
        answer: object = await callback(ask)
    except Exception as exc:
        # It may raise anything; without an answer nothing runs.
        log.warning("on_permission raised on %s", ask.name, exc_info=exc, extra={"run_id": ask.run_id})
        return PermissionAnswer(allow=False, note=f"the parent could not decide: {type(exc).__name__}: {exc}")
    if isinstance(answer, PermissionAnswer) and isinstance(answer.allow, bool):
        return answer
    return PermissionAnswer(
        allow=False, note=f"the parent could not decide: on_permission gave {type(answer).__name__}, no answer"
    )


def shortened(note: str) -> str:
    """Return a note as long as a model is shown it."""
    return note if len(note) <= LONGEST_NOTE else note[: LONGEST_NOTE - 1] + "…"
