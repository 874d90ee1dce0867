"""What tools are called here, and what a parent's schema calls them.

A child's request begins with the parent's bytes, so the schema keeps the parent's names. A fork may say which of them
mean a tool that is built in here; dispatch, filters and reports then use the name it has here. Only names are mapped:
the arguments have to be the ones the tool takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["AGENT_TOOL", "BUILTIN_TOOLS", "check_tool_names", "declared_tools", "refuse_undeclared"]

AGENT_TOOL = "Agent"
"""The tool by which a parent forks: it stays in the child's tool list for its bytes, and is refused when called."""
BUILTIN_TOOLS = ("Bash", "FileRead", "FileWrite", "FileEdit", "Glob", "Grep")
_PROVIDER_RUNS = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset")
"""How the types of tools begin that the provider runs itself."""
_SHOWN = 60


def declared_tools(schema: Iterable[Any]) -> tuple[str, ...]:
    """Return the tools that a request declares for its sender to run, each name once, in order.

    >>> declared_tools([{"name": "Read"}, {"type": "bash_20250124", "name": "bash"}, {"name": "Read"}])
    ('Read', 'bash')
    >>> declared_tools([{"type": "web_search_20250305", "name": "web_search"}, {"name": 7}, "Bash"])
    ()
    """
    found = (tool for tool in schema if isinstance(tool, dict) and isinstance(tool.get("name"), str))
    return tuple(dict.fromkeys(one["name"] for one in found if not str(one.get("type")).startswith(_PROVIDER_RUNS)))


def refuse_undeclared(name: str, declared: Sequence[str]) -> str | None:
    """Return what to tell a model that calls a tool its request does not declare; None where it does.

    Only the exact name counts: another case or another Unicode form of it is another tool.
    """
    if name in declared:
        return None
    more = f" and {len(declared) - _SHOWN} more" if len(declared) > _SHOWN else ""
    tools = f"Declared tools: {', '.join(declared[:_SHOWN])}{more}." if declared else "It declares no tools."
    return f"Nothing was run: this conversation does not declare a tool named {name!r}. {tools}"


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
    theirs = declared_tools(schema)
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
