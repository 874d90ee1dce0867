"""Filters by name and arguments, which is how they travel. What has no name here cannot, and is refused."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from nexofork.engine.filters.automem import AutoMemFilter
from nexofork.engine.filters.kinds import (
    AllOfFilter,
    AllowAllFilter,
    OnlyToolsFilter,
    ProfileFilter,
    ReadOnlyFilter,
)
from nexofork.errors import ForkRefused
from nexofork.wire.messages import FilterSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from nexofork.engine.filters.kinds import ToolFilter

__all__ = ["NamedElsewhere", "build_filter", "memory_folders", "read_filter", "travelling"]

_PLAIN: dict[str, Callable[[], ToolFilter]] = {"allow-all": AllowAllFilter, "readonly": ReadOnlyFilter}
_WITH_ARGUMENT: dict[str, Callable[[str], ToolFilter]] = {"automem": AutoMemFilter, "profile": ProfileFilter}
_KNOWN = "allow-all, automem:DIR, profile:NAME, readonly, tools:NAME,NAME"


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
