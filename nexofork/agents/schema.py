"""The Agent tool as a model sees it, and what its calls say.

The schema is part of the parent's prompt, in front of everything else: one changed byte loses the whole conversation.
So it is a constant, and which agents there are stands elsewhere (`AgentTool.listing`), frozen for the session. There is
no way to ask for the foreground: every agent runs in the background.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nexofork.core.reply import Reply, ToolUse
from nexofork.errors import BadAgentCall, BadReply
from nexofork.tools.tool_names import AGENT_TOOL

__all__ = ["AGENT_TOOL_SCHEMA", "AgentCall", "agent_tool", "read_call", "read_reply", "read_use"]

AGENT_TOOL_SCHEMA = (
    b'{"name":"Agent","description":"Start an agent in the background. Without subagent_type it is a fork of you: it '
    b"knows all of this conversation and costs little more than its own words, so give it a directive and no "
    b"explanations. With subagent_type it is an agent of that kind, which knows nothing of the conversation: tell it "
    b"everything it needs. Calls in one reply run side by side. The answer says only that the agent was started; its "
    b'report comes later as a <task-notification>, so go on with other work and do not guess what it will say.",'
    b'"input_schema":{"type":"object","properties":{'
    b'"prompt":{"type":"string","description":"What the agent shall do."},'
    b'"description":{"type":"string","description":"The task in three to five words."},'
    b'"subagent_type":{"type":"string","description":"The kind of agent; leave it out to fork."}},'
    b'"required":["prompt","description"]}}'
)
"""The tool's definition; put it into the parent's ``tools`` as it is."""

_LABEL = 60


def agent_tool() -> dict[str, Any]:
    """Return the definition as the SDK takes it; serialised as the SDK does, it is `AGENT_TOOL_SCHEMA` again."""
    schema: dict[str, Any] = json.loads(AGENT_TOOL_SCHEMA)
    return schema


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCall:
    """What one call asks for."""

    id: str
    prompt: str
    label: str
    """The call's description; the beginning of its prompt where it has none."""
    subagent_type: str | None
    """None is a fork."""


def read_call(use: ToolUse) -> AgentCall:
    """Read a call's arguments; ones that are not known are left alone.

    Raises:
        BadAgentCall: One is missing or is not text.
    """
    for name in ("prompt", "description", "subagent_type"):
        value = use.input.get(name)
        if value is not None and not isinstance(value, str):
            raise BadAgentCall(f"`{name}` is {json.dumps(value)[:80]}", fix=f"Pass `{name}` as a string.")
    prompt = use.input.get("prompt") or ""
    if not prompt.strip():
        problem = "`prompt` is empty" if "prompt" in use.input else "`prompt` is missing"
        raise BadAgentCall(problem, fix="Say in `prompt` what the agent shall do.")
    described = " ".join((use.input.get("description") or prompt).split())
    described = described.encode("utf-8", "replace").decode()  # it goes back to the model, as UTF-8
    kind = (use.input.get("subagent_type") or "").strip() or None
    return AgentCall(id=use.id, prompt=prompt, label=described[:_LABEL] or AGENT_TOOL, subagent_type=kind)


def read_use(use: object) -> ToolUse:
    """Read a tool call as ours, as the SDK's block, or as a mapping.

    Raises:
        BadAgentCall: It has no id or name.
    """
    if isinstance(use, ToolUse):
        return use
    names = ("id", "name", "input")
    if isinstance(use, Mapping):
        call_id, name, arguments = (use.get(one) for one in names)
    else:
        call_id, name, arguments = (getattr(use, one, None) for one in names)
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise BadAgentCall(f"{type(use).__name__} is no tool_use block", fix="Pass the block from the model's reply.")
    return ToolUse(id=call_id, name=name, input=dict(arguments) if isinstance(arguments, Mapping) else {})


def read_reply(reply: object) -> Reply:
    """Read a reply as ours, as the SDK's message, or in the API's form.

    Raises:
        BadReply: It is none of these.
    """
    if isinstance(reply, Reply):
        return reply
    dump = getattr(reply, "model_dump", None)
    said = dump(mode="json", exclude_unset=True) if callable(dump) else reply
    if not isinstance(said, (bytes, str, dict, list)):
        raise BadReply(f"is {type(reply).__name__}", fix="Pass the SDK's message, or the API's response.")
    return Reply.from_response(said)
