"""Say no to a tool call before it runs. The schema that the model sees never changes.

Filters see the canonical names and flat arguments: Bash ``command``; FileRead, FileWrite and FileEdit ``file_path``;
Glob and Grep ``pattern`` and ``path``. Where a parent's schema names them differently, they are mapped before. A filter
travels by its name and arguments; one without a name here is refused.

The memory filter lets a child keep notes in one folder, read everything, and change nothing else. It asks the file
system whether a file lies in the folder at the time of the call. It must run where the folder is: on another host the
same name is another file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nexofork.errors import ForkRefused
from nexofork.policy.paths import CONFIGURES, Outside, by_words, inside
from nexofork.policy.shell import READ_ONLY_ENVIRONMENT, classify
from nexofork.wire.messages import FilterSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

__all__ = [
    "BOOKKEEPING",
    "LOCK_FILE",
    "PROFILES",
    "READERS",
    "REPL",
    "SEEN_FILE",
    "AllOfFilter",
    "AllowAllFilter",
    "AutoMemFilter",
    "NamedElsewhere",
    "OnlyToolsFilter",
    "ProfileFilter",
    "ReadOnlyFilter",
    "ToolFilter",
    "added_environment",
    "build_filter",
    "deny_bash",
    "gated_inside",
    "may_change",
    "memory_folders",
    "read_filter",
    "travelling",
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
LOCK_FILE = ".dream.lock"
SEEN_FILE = ".dream.json"
BOOKKEEPING = frozenset((LOCK_FILE, SEEN_FILE))
"""What dreams keep for themselves at the top of a memory folder: who writes there could dream beside another."""


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


class AutoMemFilter:
    """Lets files be written under the memory folder alone; reading and commands that only read are free.

    REPL may run, but only where what it calls inside passes this filter again (see ``gated_inside``): ungated it would
    be a way round everything.

    Where the folder is elsewhere, at the parent, a path is judged by its words alone: that says which calls may go
    there at all. The filter that runs there has the file system's word and the last one.

    Raises:
        ForkRefused: The folder does not exist, where it is not elsewhere.
    """

    environment: Mapping[str, str] = READ_ONLY_ENVIRONMENT
    gated_inside: frozenset[str] = frozenset((REPL,))

    def __init__(self, memory_dir: str | Path, *, elsewhere: bool = False) -> None:
        self.elsewhere = elsewhere
        """Whether the folder is on another host."""
        if elsewhere:
            self.memory_dir = Path(by_words(str(memory_dir)))
            return
        try:
            self.memory_dir = Path(memory_dir).resolve(strict=True)
            missing = not self.memory_dir.is_dir()
        except (OSError, ValueError, RuntimeError):
            missing = True
        if missing:
            raise ForkRefused(
                f"The memory folder {str(memory_dir)!r} is not a folder on this host; create it, or name another."
            )

    def deny(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Deny what writes outside the memory folder."""
        if name in READERS or name == REPL:
            return None
        if name == "Bash":
            return deny_bash(arguments)
        if name not in ("FileWrite", "FileEdit"):
            return (
                f"This fork may read, and write with FileWrite and FileEdit under {self.memory_dir}. Go on with those."
            )
        try:
            self.checked(arguments)
        except Outside as exc:
            return f"{exc} This fork may write regular files under {self.memory_dir} only."
        return None

    def may_change(self, path: str) -> bool:
        """Only what lies in the memory folder, by its canonical path; nothing here where that is elsewhere."""
        found = Path(path)
        if self.elsewhere or self.memory_dir not in found.parents or ".." in found.parts:
            return False
        return not any(part.casefold() in CONFIGURES for part in found.relative_to(self.memory_dir).parts)

    def checked(self, arguments: dict[str, Any]) -> Path:
        """Return the canonical path that a call of FileWrite or FileEdit may write to; open no other.

        Raises:
            Outside: It may write to none; the text is a sentence.
        """
        path = arguments.get("file_path")
        if not isinstance(path, str) or not path:
            raise Outside("`file_path` must be a string beside the other arguments, not inside another object.")
        try:
            found = self._by_words(path) if self.elsewhere else inside(path, self.memory_dir)
            if found.parent == self.memory_dir and found.name.casefold() in BOOKKEEPING:
                raise Outside("is bookkeeping of the memory folder")
            return found
        except Outside as exc:
            raise Outside(f"{path!r} {exc}.") from exc

    def _by_words(self, path: str) -> Path:
        named = Path(by_words(path))
        if not os.path.isabs(path) or "\0" in path:
            raise Outside("is not an absolute path")
        if self.memory_dir not in named.parents:
            raise Outside("is outside")
        return named


def read_filter(text: str) -> FilterSpec:
    """Read a filter as the command line has it: ``NAME`` or ``NAME:ARGUMENT``. A folder's path is made absolute.

    Raises:
        ForkRefused: There is no such filter, or its argument is missing or too much.
    """
    name, colon, argument = text.partition(":")
    if name == "automem" and argument:
        argument = os.path.abspath(argument)
    arguments = [part.strip() for part in argument.split(",")] if name == "tools" else [argument]
    if name == "tools" and not any(arguments):
        raise ForkRefused("The filter 'tools' lists what may run; name the tools, with commas between them.")
    spec = FilterSpec(name=name, args=arguments if colon else [])
    _build(spec)
    return spec


_PLAIN: dict[str, Callable[[], ToolFilter]] = {"allow-all": AllowAllFilter, "readonly": ReadOnlyFilter}
_WITH_ARGUMENT: dict[str, Callable[[str], ToolFilter]] = {"automem": AutoMemFilter, "profile": ProfileFilter}
_KNOWN = "allow-all, automem:DIR, profile:NAME, readonly, tools:NAME,NAME"


class NamedElsewhere:
    """Filters known by name alone: this host passes them on, and the one that runs the fork makes them.

    Nothing is let run here: a folder that exists there may mean nothing on this host.
    """

    def __init__(self, specs: Sequence[FilterSpec]) -> None:
        self.specs = tuple(specs)

    def deny(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Deny everything."""
        return "its filter is made on the host that runs the fork. Run it there."


def build_filter(specs: Sequence[FilterSpec], *, elsewhere: Collection[str] = ()) -> ToolFilter:
    """Return the filter that all of these make together.

    Args:
        specs: The filters by name.
        elsewhere: The memory folders that are not on this host.

    Raises:
        ForkRefused: One is not known here, or cannot be had here. It is never left out.
    """
    filters = [_build(spec, elsewhere) for spec in specs]
    if not filters:
        return AllowAllFilter()
    return filters[0] if len(filters) == 1 else AllOfFilter(filters)


def travelling(tool_filter: ToolFilter) -> list[FilterSpec]:
    """Return a filter by name and arguments; none for one that denies nothing.

    Raises:
        ForkRefused: It is not one of ours, so no other host could make it.
    """
    # By exact type: what a subclass adds would be lost on the way.
    kind = type(tool_filter)
    if kind is AllowAllFilter:
        return []
    if isinstance(tool_filter, NamedElsewhere) and kind is NamedElsewhere:
        return list(tool_filter.specs)
    if kind is ReadOnlyFilter:
        return [FilterSpec(name="readonly")]
    if isinstance(tool_filter, ProfileFilter) and kind is ProfileFilter:
        return [FilterSpec(name="profile", args=[tool_filter.profile])]
    if isinstance(tool_filter, OnlyToolsFilter) and kind is OnlyToolsFilter:
        return [FilterSpec(name="tools", args=list(tool_filter.names))]
    if isinstance(tool_filter, AutoMemFilter) and kind is AutoMemFilter:
        return [FilterSpec(name="automem", args=[str(tool_filter.memory_dir)])]
    if isinstance(tool_filter, AllOfFilter) and kind is AllOfFilter:
        return [spec for one in tool_filter.filters for spec in travelling(one)]
    raise ForkRefused(
        f"The filter {kind.__name__} cannot travel to another host: filters go by name. "
        f"Use one of these ({_KNOWN}), or fork in this process."
    )


def memory_folders(specs: Sequence[FilterSpec]) -> list[str]:
    """Return the memory folders that filters name."""
    return [spec.args[0] for spec in specs if spec.name == "automem" and spec.args]


def _build(spec: FilterSpec, elsewhere: Collection[str] = ()) -> ToolFilter:
    if spec.name in _PLAIN:
        if spec.args:
            raise ForkRefused(f"The filter {spec.name!r} takes no argument; leave {spec.args[0]!r} out.")
        return _PLAIN[spec.name]()
    if spec.name == "tools":
        return OnlyToolsFilter(filter(None, spec.args))  # listing none is a filter too: nothing may run
    if spec.name not in _WITH_ARGUMENT:
        raise ForkRefused(f"There is no filter {spec.name!r} here. Filters: {_KNOWN}.")
    if len(spec.args) != 1 or not spec.args[0]:
        raise ForkRefused(f"The filter {spec.name!r} takes one argument. Filters: {_KNOWN}.")
    if spec.name == "automem" and not os.path.isabs(spec.args[0]):
        raise ForkRefused(f"The memory folder {spec.args[0]!r} must be an absolute path.")
    if spec.name == "automem" and spec.args[0] in elsewhere:
        return AutoMemFilter(spec.args[0], elsewhere=True)
    return _WITH_ARGUMENT[spec.name](spec.args[0])
