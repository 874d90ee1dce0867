"""What a named agent is, and what makes a definition unusable.

A named agent shares nothing with its parent's cache: it has a prompt of its own, fewer tools, maybe a cheaper model. It
saves by being given little, where a fork saves by being given what is cached already.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn, get_args

from nexofork.errors import BadAgentDefinition, ForkRefused
from nexofork.policy.filters import read_filter
from nexofork.policy.permissions import PermissionMode
from nexofork.tools.tool_names import AGENT_TOOL

__all__ = [
    "ALL_TOOLS",
    "FORK_AGENT",
    "INHERIT",
    "MODEL_ALIASES",
    "AgentDefinition",
    "check_definition",
    "resolve_model",
]

ALL_TOOLS = "*"
INHERIT = "inherit"
MODEL_ALIASES = {"haiku": "claude-haiku-5-5", "opus": "claude-opus-5-5", "sonnet": "claude-sonnet-5-5"}

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_MOST_TURNS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDefinition:
    """One kind of agent."""

    name: str
    """What a call's ``subagent_type`` says."""
    description: str
    """When to use it; the parent's model chooses by this."""
    prompt: str
    """Its system prompt."""
    tools: tuple[str, ...] = (ALL_TOOLS,)
    """Names of the parent's tools, in the parent's schema or here, or ``*`` for all of them but Agent.

    Agent has to be named: what an agent with it starts may not start agents in turn.
    """
    disallowed_tools: tuple[str, ...] = ()
    """Taken off `tools`."""
    model: str = INHERIT
    """``inherit`` for the parent's, an alias of `MODEL_ALIASES`, or a model's id."""
    max_turns: int = 200
    permission_mode: PermissionMode = "bubble"
    omit_project_conventions: bool = False
    """Leave the project's conventions out of its context, where the session does not keep them for all."""
    omit_git_status: bool = False
    """Leave out the repository's state at the start of the session: it may be long, and it is stale."""
    tool_filter: str | None = None
    """Judges every call besides: a filter as ``--filter`` takes it, such as ``readonly``."""
    source: str = "code"
    """Where it was defined: ``code``, ``built-in`` or its file."""

    @property
    def forks(self) -> bool:
        """Whether it is the parent itself: with all tools, its model and no other prompt, a request keeps its bytes."""
        return (self.tools, self.disallowed_tools, self.model, self.prompt) == ((ALL_TOOLS,), (), INHERIT, "")

    @property
    def starts_agents(self) -> bool:
        """Whether it may call Agent."""
        return AGENT_TOOL in self.tools and AGENT_TOOL not in self.disallowed_tools


FORK_AGENT = AgentDefinition(
    name="fork",
    description="",
    prompt="",
    tools=(ALL_TOOLS,),
    model=INHERIT,
    max_turns=200,
    permission_mode="bubble",
    source="built-in",
)
"""What a call without ``subagent_type`` starts: the parent itself, with all it has. It is never listed."""


def check_definition(definition: AgentDefinition) -> None:
    """Refuse a definition that no agent could be started from.

    Raises:
        BadAgentDefinition: Naming the key, its value and what to do.
    """

    def bad(key: str, problem: str, fix: str) -> NoReturn:
        raise BadAgentDefinition(problem, fix=fix, where=definition.source, key=key)

    name, model = definition.name, definition.model
    for field in ("name", "model"):
        if not isinstance(value := getattr(definition, field), str):
            bad(field, f"{value!r} is no text", "Pass a string.")
    if not _NAME.fullmatch(name):
        bad("name", f"{name!r} is no name", "Use up to 64 letters, digits, - and _, a letter first.")
    if name.casefold() == FORK_AGENT.name:
        bad("name", f"{name!r} is what an Agent call without a type starts", "Choose another name.")
    for key in ("description", "prompt"):
        text = getattr(definition, key)
        if not isinstance(text, str) or not text.strip():
            bad(key, "is empty", _FIXES[key])
        try:
            text.encode()
        except UnicodeEncodeError:
            bad(key, "has half of a surrogate pair", "Use text that can be encoded as UTF-8.")
    for key in ("tools", "disallowed_tools"):
        tools = getattr(definition, key)
        if isinstance(tools, str) or not all(isinstance(tool, str) and tool.strip() for tool in tools):
            bad(key, f"{tools!r} is no list of names", "Name each tool as the parent's schema does, or write *.")
    if model != INHERIT and model not in MODEL_ALIASES and (model.isalpha() or not _MODEL.fullmatch(model)):
        known = ", ".join((INHERIT, *MODEL_ALIASES))
        bad("model", f"{model!r} is neither an alias nor a model's id", f"Use one of {known}, or a whole id.")
    turns: object = definition.max_turns
    if not isinstance(turns, int) or not 1 <= turns <= _MOST_TURNS:
        bad("max_turns", f"{turns!r} is out of range", f"Give 1 to {_MOST_TURNS:,}.")
    if definition.permission_mode not in get_args(PermissionMode):
        known = ", ".join(get_args(PermissionMode))
        bad("permission_mode", f"{definition.permission_mode!r} is no mode", f"Use one of {known}.")
    if definition.tool_filter is not None:
        try:
            read_filter(definition.tool_filter)
        except ForkRefused as exc:
            bad("tool_filter", f"{definition.tool_filter!r} cannot be used", str(exc))


_FIXES = {
    "description": "Say when to use the agent: the parent's model chooses by it.",
    "prompt": "Write the agent's system prompt; in a file it follows the front matter.",
}


def resolve_model(model: str, parent_model: str) -> str:
    """Return the id that a definition's model means.

    >>> resolve_model("inherit", "claude-opus-4-8"), resolve_model("haiku", "claude-opus-4-8")
    ('claude-opus-4-8', 'claude-haiku-5-5')
    """
    return parent_model if model == INHERIT else MODEL_ALIASES.get(model, model)
