"""Build a named agent's request: its prompt, its share of the parent's tools, and what it is told of the project.

Its siblings share a prefix with each other and nobody else, so the request is built once for a definition and a parent
whose tools and parameters stay the same, and every run of it begins with the same bytes. Nothing of the parent's
conversation is in it: that would cost its full price on another model or with other tools.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexofork.agents.definition import ALL_TOOLS, resolve_model
from nexofork.core.snapshot import CacheSafeParams
from nexofork.errors import BadAgentCall
from nexofork.tools.tool_names import AGENT_TOOL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexofork.agents.context import AgentContext
    from nexofork.agents.definition import AgentDefinition
    from nexofork.agents.settings import AgentSettings

__all__ = ["NamedRequest", "NamedRequests"]

_TASK = (
    "Another agent started you for one task, which follows. You cannot ask it anything: work with what you have. "
    "What you say last is all it gets to read."
)
_MARK = {"type": "ephemeral"}
_KEPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRequest:
    """What every run of one named agent begins with."""

    snapshot: CacheSafeParams
    tools: tuple[str, ...]
    """Its tools, by the names they have here."""
    tool_names: Mapping[str, str]
    """The parent's names of them, where they differ."""


class NamedRequests:
    """The requests of one session's named agents."""

    def __init__(self, context: AgentContext, settings: AgentSettings) -> None:
        self._context = context
        self._settings = settings
        self._built: dict[str, NamedRequest] = {}

    def get(
        self,
        definition: AgentDefinition,
        parent: CacheSafeParams,
        tool_names: Mapping[str, str],
        *,
        agents: bool = True,
    ) -> NamedRequest:
        """Return the request of a definition's runs, the same object as long as nothing it is made from changes.

        Args:
            definition: Which agent.
            parent: Whose tools, model and parameters it takes its share of.
            tool_names: The parent's name of a tool to the name it has here.
            agents: Whether it may have Agent at all.

        Raises:
            BadAgentCall: The parent has none of the tools the agent is made for.
        """
        tools = [
            {key: value for key, value in tool.items() if key != "cache_control"}
            for tool in parent.tools
            if self._has(definition, str(tool.get("name")), tool_names, agents=agents)
        ]
        if not tools and definition.tools:
            theirs = ", ".join(str(tool.get("name")) for tool in parent.tools) or "none"
            raise BadAgentCall(
                f"{definition.name} works with {', '.join(definition.tools)}, of which there is none here",
                fix=f"Do it yourself, or start another agent. Tools: {theirs}.",
            )
        body = json.dumps(self._body(definition, parent, tools), ensure_ascii=False, separators=(",", ":")).encode()
        outside = json.dumps([parent.headers, parent.query, parent.workspace_id, dict(tool_names)], sort_keys=True)
        key = hashlib.sha256(body + b"\0" + outside.encode()).hexdigest()
        if key not in self._built:
            theirs_named = [str(tool["name"]) for tool in tools]
            while len(self._built) >= _KEPT:
                del self._built[next(iter(self._built))]
            self._built[key] = NamedRequest(
                snapshot=CacheSafeParams.from_parent_request(
                    body, headers=dict(parent.headers), query=parent.query, workspace_id=parent.workspace_id
                ),
                tools=tuple(tool_names.get(name, name) for name in theirs_named),
                tool_names={name: tool_names[name] for name in theirs_named if name in tool_names},
            )
        return self._built[key]

    @staticmethod
    def _has(definition: AgentDefinition, theirs: str, tool_names: Mapping[str, str], *, agents: bool) -> bool:
        names = {theirs, tool_names.get(theirs, theirs)}
        if AGENT_TOOL in names and not (agents and definition.starts_agents):
            return False
        listed = ALL_TOOLS in definition.tools or not names.isdisjoint(definition.tools)
        return listed and names.isdisjoint(definition.disallowed_tools)

    def _body(
        self, definition: AgentDefinition, parent: CacheSafeParams, tools: list[dict[str, Any]]
    ) -> dict[str, Any]:
        told = [_TASK]
        context, settings = self._context, self._settings
        if context.project_conventions and (
            settings.keep_project_conventions or not definition.omit_project_conventions
        ):
            told.append(f"<project-conventions>\n{context.project_conventions}\n</project-conventions>")
        if context.git_status and (settings.keep_git_status or not definition.omit_git_status):
            told.append(f"<git-status>\nWhen the session began:\n{context.git_status}\n</git-status>")
        blocks: list[dict[str, Any]] = [{"type": "text", "text": text} for text in told]
        blocks[-1]["cache_control"] = _MARK
        body: dict[str, Any] = {
            "model": resolve_model(definition.model, parent.model),
            "max_tokens": parent.max_tokens,
            "system": [{"type": "text", "text": definition.prompt, "cache_control": _MARK}],
        }
        if tools:
            body["tools"] = tools
        return body | {"messages": [{"role": "user", "content": blocks}]}
