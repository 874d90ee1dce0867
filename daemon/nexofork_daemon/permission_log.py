"""What a run's log says about permissions: when each was first asked for, and what it came to.

The deadline of a question goes on while nobody has the run, so it counts from when the server stored the question for
the first time, by the server's clock. What was decided stays decided, and what was remembered stays remembered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from nexofork.engine.permissions import Decision, parse_rule
from nexofork.errors import BadPermissions
from nexofork.wire.messages import Asked, Permitted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexofork.bus.run_log import Entry

__all__ = ["PermissionLog", "read_permissions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionLog:
    """What earlier daemons asked and were told."""

    asked_at: Mapping[str, float] = field(default_factory=dict)
    """By ask id: when it was first asked, as Unix time of the NATS server."""
    decided: Mapping[str, Decision] = field(default_factory=dict)


def read_permissions(entries: Sequence[Entry]) -> PermissionLog:
    """Read a run's log."""
    asked_at: dict[str, float] = {}
    decided: dict[str, Decision] = {}
    for entry in entries:
        match entry.message:
            case Asked(what="permission") as asked:
                asked_at.setdefault(asked.ask_id, _stored_at(entry))
            case Permitted() as permitted:
                decided.setdefault(permitted.ask_id, _decision(permitted))
            case _:
                pass
    return PermissionLog(asked_at=asked_at, decided=decided)


def _stored_at(entry: Entry) -> float:
    text = entry.raw.headers.get("Nats-Time-Stamp", "")
    try:
        return datetime.fromisoformat(text[:26].rstrip("Z") + "+00:00").timestamp()
    except ValueError:
        assert isinstance(entry.message, Asked)
        return entry.message.at


def _decision(permitted: Permitted) -> Decision:
    return Decision(
        allowed=permitted.allowed,
        how=permitted.how,
        note=permitted.note,
        rules=tuple(rule for rule in permitted.rules if _is_rule(rule)),
        by=permitted.by,
    )


def _is_rule(text: str) -> bool:
    """Whether this version can read a rule; one that it cannot read is not remembered, so that it is asked again."""
    try:
        parse_rule(text)
    except BadPermissions:
        return False
    return True
