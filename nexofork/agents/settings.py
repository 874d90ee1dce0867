"""What an operator sets about agents."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    from nexofork.policy.permissions import PermissionMode

__all__ = ["AUTO_BACKGROUND_S", "AgentSettings", "project_agents", "user_agents"]

AUTO_BACKGROUND_S = 120.0
_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """How the Agent tool of one session behaves."""

    fork_enabled: bool = True
    """Whether a call without a type forks; ``NEXOFORK_FORK_SUBAGENT=0`` turns it off."""
    coordinator: bool = False
    """Whether the parent only delegates, by explicit types; ``NEXOFORK_COORDINATOR=1``."""
    interactive: bool = True
    """Whether somebody is there to answer what a child asks; ``NEXOFORK_NON_INTERACTIVE=1`` says that nobody is."""
    permission_mode: PermissionMode | None = None
    """What children may do without asking, for all of them; None leaves it to each definition."""
    auto_background_s: float | None = None
    """After how long a wait moves to the background by itself; ``NEXOFORK_AUTO_BACKGROUND=1`` means 120 s."""
    keep_project_conventions: bool = False
    """Give every agent the conventions, whatever its definition omits; ``NEXOFORK_KEEP_PROJECT_CONVENTIONS=1``."""
    keep_git_status: bool = False
    """Likewise the repository's state; ``NEXOFORK_KEEP_GIT_STATUS=1``."""

    def from_env(self) -> AgentSettings:
        """Return these settings, with what the environment says before what they say.

        Raises:
            ForkRefused: A variable is neither yes nor no.
        """
        return replace(
            self,
            fork_enabled=_flag("NEXOFORK_FORK_SUBAGENT", self.fork_enabled),
            coordinator=_flag("NEXOFORK_COORDINATOR", self.coordinator),
            interactive=not _flag("NEXOFORK_NON_INTERACTIVE", not self.interactive),
            auto_background_s=_auto_background(self.auto_background_s),
            keep_project_conventions=_flag("NEXOFORK_KEEP_PROJECT_CONVENTIONS", self.keep_project_conventions),
            keep_git_status=_flag("NEXOFORK_KEEP_GIT_STATUS", self.keep_git_status),
        )


def project_agents(folder: Path | None = None) -> Path:
    """Return where a project keeps its definitions."""
    return (folder or Path.cwd()) / ".nexofork" / "agents"


def user_agents() -> Path:
    """Return where a user keeps definitions for all projects."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(configured) if os.path.isabs(configured) else Path.home() / ".config") / "nexofork" / "agents"


def _auto_background(unless_said: float | None) -> float | None:
    if _flag("NEXOFORK_AUTO_BACKGROUND", unless_said is not None):
        return unless_said or AUTO_BACKGROUND_S
    return None


def _flag(variable: str, unless_said: bool) -> bool:
    text = os.environ.get(variable, "").strip().lower()
    if not text:
        return unless_said
    if text not in _YES | _NO:
        raise ForkRefused(f"{variable} is {os.environ[variable]!r}; set it to 1 or 0, or leave it out.")
    return text in _YES
