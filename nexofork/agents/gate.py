"""Whether a call may fork at all, and what its child may do without asking."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nexofork.agents.definition import FORK_AGENT
from nexofork.engine.permissions import Permissions
from nexofork.errors import BadAgentCall

if TYPE_CHECKING:
    from nexofork.agents.definition import AgentDefinition
    from nexofork.agents.settings import AgentSettings
    from nexofork.engine.params import ForkParams
    from nexofork.engine.permissions import PermissionMode

__all__ = ["permission_mode", "refuse_closed_gate", "with_permission_mode"]


def refuse_closed_gate(settings: AgentSettings, *, known: tuple[str, ...]) -> None:
    """Refuse a fork where the session does not fork.

    Args:
        settings: The session's.
        known: The types that can be named instead.

    Raises:
        BadAgentCall: Saying why, and what the model can do.
    """
    fix = f"Name a subagent_type ({', '.join(known) or 'there are none'}), or do the work yourself."
    if not settings.fork_enabled:
        raise BadAgentCall("forking is turned off in this session", fix=fix)
    if settings.coordinator:
        raise BadAgentCall("a coordinator does not fork, it delegates", fix=fix)
    if not settings.interactive and (settings.permission_mode or FORK_AGENT.permission_mode) == "bubble":
        raise BadAgentCall(
            "nobody is there to answer what a fork may ask, and no permission policy is set for this session", fix=fix
        )


def permission_mode(definition: AgentDefinition, settings: AgentSettings) -> PermissionMode:
    """Return what a child may do without asking; where nobody can be asked, asking is denial."""
    mode = settings.permission_mode or definition.permission_mode
    return "deny" if mode == "bubble" and not settings.interactive else mode


def with_permission_mode(params: ForkParams, mode: PermissionMode) -> ForkParams:
    """Return a child's parameters under a permission mode; permissions that the session set itself stand."""
    return params if params.permissions != Permissions() else replace(params, permissions=Permissions(mode=mode))
