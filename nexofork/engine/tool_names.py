"""What tools are called here, and what a parent's schema calls them.

A child's request begins with the parent's bytes, so the schema keeps the parent's names. A fork may say which of them
mean a tool that is built in here; dispatch, filters and reports then use the name it has here. Only names are mapped:
the arguments have to be the ones the tool takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["AGENT_TOOL", "BUILTIN_TOOLS", "check_tool_names"]

AGENT_TOOL = "Agent"
"""The tool by which a parent forks: it stays in the child's tool list for its bytes, and is refused when called."""
BUILTIN_TOOLS = ("Bash", "FileRead", "FileWrite", "FileEdit", "Glob", "Grep")


def check_tool_names(names: Mapping[str, str], schema: Iterable[Any]) -> None:
    """Refuse a mapping that cannot be meant.

    Args:
        names: The parent's name of a tool to the name it has here.
        schema: The parent's tools.

    Raises:
        ForkRefused: A name is not known on its side, or two of the parent's tools would be one here.
    """
    if not names:
        return
    theirs = [tool["name"] for tool in schema if isinstance(tool, dict) and isinstance(tool.get("name"), str)]
    ours = (*BUILTIN_TOOLS, AGENT_TOOL)
    taken: dict[str, str] = {name: name for name in theirs if name in ours and name not in names}
    for their_name, our_name in names.items():
        if our_name not in ours:
            raise ForkRefused(f"There is no tool {our_name!r} for {their_name!r} to mean; known are {', '.join(ours)}.")
        if their_name not in theirs:
            known = ", ".join(theirs) or "none"
            raise ForkRefused(f"The parent's tools have no {their_name!r} to map to {our_name}; they are: {known}.")
        if our_name in taken:
            raise ForkRefused(
                f"Both {taken[our_name]!r} and {their_name!r} of the parent's tools would be {our_name}; map only one."
            )
        taken[our_name] = their_name
