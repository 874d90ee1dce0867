"""The filters that need nothing but a call's name and arguments.

Filters see the canonical names and flat arguments: Bash ``command``; FileRead, FileWrite and FileEdit ``file_path``;
Glob and Grep ``pattern`` and ``path``. Where a parent's schema names them differently, they are mapped before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from nexofork.engine.shell import READ_ONLY_ENVIRONMENT, classify
from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "PROFILES",
    "READERS",
    "REPL",
    "AllOfFilter",
    "AllowAllFilter",
    "OnlyToolsFilter",
    "ProfileFilter",
    "ReadOnlyFilter",
    "ToolFilter",
    "added_environment",
    "deny_bash",
    "gated_inside",
    "may_change",
]

READERS = frozenset(("FileRead", "Glob", "Grep"))
REPL = "REPL"
PROFILES: Mapping[str, frozenset[str]] = {
    "none": frozenset(),
    "explore": READERS,
    "edit": READERS | {"FileWrite", "FileEdit"},
    "shell": READERS | {"FileWrite", "FileEdit", "Bash"},
}
"""Which tools a child with a profile may call; compose with ``readonly`` to narrow the shell."""


class ToolFilter(Protocol):
    """Judges a call by its name and its flat arguments."""

    def deny(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Return why the call is denied, in words the model can act on, or None to let it run."""


class AllowAllFilter:
    """Denies nothing."""

    def deny(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Let the call run."""
        return None


class ReadOnlyFilter:
    """Lets files be read and searched, and commands run that only read."""

    environment: Mapping[str, str] = READ_ONLY_ENVIRONMENT
    """What commands are run with; the verdict on them holds only with it."""

    def deny(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Deny everything that is not known to only read."""
        if name in READERS:
            return None
        if name == "Bash":
            return deny_bash(arguments)
        return (
            "This fork may only read. Use FileRead, Glob, Grep or a Bash command that only reads, "
            "and put what should be changed into your report."
        )

    def may_change(self, path: str) -> bool:
        """No path may change."""
        return False


class ProfileFilter:
    """Lets the tools of a named profile run.

    Raises:
        ForkRefused: There is no such profile.
    """

    gated_inside: frozenset[str] = frozenset((REPL,))

    def __init__(self, profile: str) -> None:
        if profile not in PROFILES:
            raise ForkRefused(f"There is no profile {profile!r}. Profiles: {', '.join(sorted(PROFILES))}.")
        self.profile = profile

    def deny(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Deny tools that the profile does not list."""
        allowed = PROFILES[self.profile]
        if name in allowed:
            return None
        tools = f"the tools {', '.join(sorted(allowed))}" if allowed else "no tools"
        return f"This fork has the profile {self.profile!r}, with {tools}. Go on without it."

    def may_change(self, path: str) -> bool:
        """Any path, if a tool of the profile writes."""
        return not PROFILES[self.profile] <= READERS


class OnlyToolsFilter:
    """Lets the tools it lists run, and no other."""

    gated_inside: frozenset[str] = frozenset((REPL,))

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(dict.fromkeys(names))

    def deny(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Deny tools that are not listed."""
        if name in self.names:
            return None
        tools = f"the tools {', '.join(self.names)}" if self.names else "no tools"
        return f"This agent has {tools}. Go on without it."

    def may_change(self, path: str) -> bool:
        """Any path, if a tool that is listed may write."""
        return not READERS.issuperset(self.names)


class AllOfFilter:
    """Lets a call run that all of several filters let run; the first to deny says why."""

    def __init__(self, filters: Sequence[ToolFilter]) -> None:
        self.filters = tuple(filters)

    @property
    def environment(self) -> Mapping[str, str]:
        """What any of them wants commands run with."""
        return {key: value for one in self.filters for key, value in added_environment(one).items()}

    @property
    def gated_inside(self) -> frozenset[str]:
        """What any of them wants gated inside."""
        return frozenset[str]().union(*(gated_inside(one) for one in self.filters))

    def may_change(self, path: str) -> bool:
        """What all of them let change."""
        return all(may_change(one, path) for one in self.filters)

    def deny(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Ask one after the other."""
        return next((reason for one in self.filters if (reason := one.deny(name, arguments)) is not None), None)


def deny_bash(arguments: dict[str, Any]) -> str | None:
    """Return why a Bash call does more than read, or None."""
    command = arguments.get("command")
    if not isinstance(command, str):
        return "Bash needs its `command` as a string beside the other arguments, not inside another object."
    reason = classify(command).reason
    return None if reason is None else f"This fork may only run commands that read. {reason}"


def added_environment(tool_filter: ToolFilter) -> Mapping[str, str]:
    """Return what commands must be run with for the filter's verdicts to hold."""
    environment: Mapping[str, str] = getattr(tool_filter, "environment", {})
    return environment


def may_change(tool_filter: ToolFilter, path: str) -> bool:
    """Return whether a run under the filter may leave a path other than it was; a filter that does not say lets it."""
    says = getattr(tool_filter, "may_change", None)
    return says is None or bool(says(path))


def gated_inside(tool_filter: ToolFilter) -> frozenset[str]:
    """Return the tools that call tools: they may run only where their inner calls pass the same filter again."""
    names: frozenset[str] = getattr(tool_filter, "gated_inside", frozenset())
    return names
