"""Whether a call may fork at all, and what its child may do without asking."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from nexofork.agents.definition import FORK_AGENT
from nexofork.errors import BadAgentCall
from nexofork.policy.permissions import PermissionAnswer, Permissions

if TYPE_CHECKING:
    from nexofork.agents.definition import AgentDefinition
    from nexofork.agents.settings import AgentSettings
    from nexofork.policy.permissions import PermissionAsk, PermissionMode
    from nexofork.run.params import ForkParams

__all__ = ["Gatekeeper", "nobody_answers", "permission_mode", "refuse_closed_gate"]

log = logging.getLogger(__name__)

_HOW = "set on_permission in equip=, or a permission_mode in AgentSettings"


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


async def nobody_answers(_: PermissionAsk) -> PermissionAnswer:
    """Deny what a child asks where nobody was named to answer: it would wait out its deadline for the same."""
    return PermissionAnswer(allow=False, note=f"nobody answers what agents ask in this session ({_HOW})")


class Gatekeeper:
    """Puts the children of one session under its permissions, and warns once where nobody would answer them."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._warned = False

    def permit(self, params: ForkParams, definition: AgentDefinition) -> ForkParams:
        """Return a child's parameters under the session's permission mode; permissions it set itself stand.

        A child that would ask only because nothing was said about it, while nobody was named to answer, is denied at
        once instead. Where the session chose `bubble`, somebody may answer by the run's id.
        """
        if params.permissions == Permissions():
            params = replace(params, permissions=Permissions(mode=permission_mode(definition, self._settings)))
            if _asks_in_vain(params) and self._settings.permission_mode is None:
                params = replace(params, on_permission=nobody_answers)
        self._warn(params)
        return params

    def _warn(self, params: ForkParams) -> None:
        if params.on_permission is nobody_answers:
            effect = "may only read: everything else is denied, since nobody was named to answer what they ask"
        elif _asks_in_vain(params):
            effect = f"wait {params.permissions.deadline_s:g} s for `nexofork answer` or `attach` when they ask"
        else:
            return
        if not self._warned:
            self._warned = True
            log.warning("agents of this session %s (%s)", effect, _HOW)


def _asks_in_vain(params: ForkParams) -> bool:
    return params.permissions.mode == "bubble" and params.on_permission is None
