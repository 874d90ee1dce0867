"""What the agent's model may call: the built-in tools, run here by the agent and on daemons by its children.

The definitions stand in front of everything else in the prompt, so they are constants: one changed byte would lose the
cache of the whole conversation.
"""

from __future__ import annotations

from typing import Any

from nexofork.agents.schema import agent_tool

__all__ = ["TOOLS"]


def _tool(name: str, description: str, required: str, **optional: str) -> dict[str, Any]:
    """Return a definition; `required` names string arguments, `optional` gives the types of the others."""
    properties = {key: {"type": "string"} for key in required.split()} | {k: {"type": v} for k, v in optional.items()}
    schema = {"type": "object", "properties": properties, "required": required.split()}
    return {"name": name, "description": description, "input_schema": schema}


TOOLS: list[dict[str, Any]] = [
    agent_tool(),
    _tool("Bash", "Run a command in a shell and return what it prints.", "command", timeout="number"),
    _tool("FileRead", "Show the lines of a file.", "file_path", offset="integer", limit="integer"),
    _tool("FileWrite", "Write a file; one that exists has to be read first.", "file_path content"),
    _tool(
        "FileEdit",
        "Replace a text that occurs once in a file that was read before.",
        "file_path old_string new_string",
        replace_all="boolean",
    ),
    _tool("Glob", "List files by a pattern such as src/**/*.py.", "pattern", path="string"),
    _tool("Grep", "Search files for a regular expression.", "pattern", path="string", glob="string"),
]
