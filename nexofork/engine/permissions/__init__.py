"""Which tool calls of a fork run, which are asked for, and which are denied."""

from __future__ import annotations

from nexofork.engine.permissions.asks import (
    Asker,
    Decision,
    LocalDesk,
    PermissionAnswer,
    PermissionAsk,
    answer_of,
)
from nexofork.engine.permissions.gate import Gate, Passage
from nexofork.engine.permissions.policy import (
    PermissionMode,
    Permissions,
    permissions_of,
    travelling_permissions,
)
from nexofork.engine.permissions.rules import Rule, parse_rule

__all__ = [
    "Asker",
    "Decision",
    "Gate",
    "LocalDesk",
    "Passage",
    "PermissionAnswer",
    "PermissionAsk",
    "PermissionMode",
    "Permissions",
    "Rule",
    "answer_of",
    "parse_rule",
    "permissions_of",
    "travelling_permissions",
]
