"""Say no to a tool call before it runs. The schema the model sees never changes; refusal happens at call time."""

from __future__ import annotations

from nexofork.engine.filters.automem import AutoMemFilter
from nexofork.engine.filters.kinds import (
    PROFILES,
    AllOfFilter,
    AllowAllFilter,
    OnlyToolsFilter,
    ProfileFilter,
    ReadOnlyFilter,
    ToolFilter,
    added_environment,
    gated_inside,
)
from nexofork.engine.filters.named import NamedElsewhere, build_filter, memory_folders, read_filter, travelling

__all__ = [
    "PROFILES",
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
    "gated_inside",
    "memory_folders",
    "read_filter",
    "travelling",
]
