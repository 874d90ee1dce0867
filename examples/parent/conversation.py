"""The agent's own conversation: what is said, what the model answers, and what its tools did.

Invariant: between two requests the messages can be sent as they are. A call that was interrupted is answered as such,
and nothing that was sent once is changed, so the provider's cache and every child's prefix hold.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from examples.parent.tools import TOOLS
from nexofork import AllowAllFilter, ParentContext, Permissions, QuerySource
from nexofork.client.local import LocalAsker
from nexofork.core.replacement import ContentReplacementState
from nexofork.core.usage import Usage
from nexofork.economics.prices import cost_usd
from nexofork.errors import NexoforkError, UnknownModelPrice
from nexofork.policy.gate import Gate
from nexofork.tools.builtin import BuiltinTools
from nexofork.tools.dispatch import ToolCall, ToolRunner
from nexofork.tools.place import Place
from nexofork.tools.tool_names import AGENT_TOOL

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from anthropic import AsyncAnthropic
    from anthropic.types import Message, ToolUseBlock

    from examples.parent.terminal import Terminal
    from nexofork import AgentTool
    from nexofork.core.prompt import ToolAnswer

__all__ = ["Bill", "Conversation"]

_MAX_TOKENS = 16_000
_SHOWN = 100
_CUT_OFF = "The reply was cut off at its token limit, so this was not run. Make fewer or shorter calls."
_INTERRUPTED = "The user interrupted before this was done; it may have been begun. Look before you repeat it."


class Bill:
    """What the agent's own calls cost."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.calls = 0
        self.usage = Usage()
        self.usd: float | None = 0.0
        """None where the model has no price."""

    def add(self, usage: Usage) -> None:
        """Count one more call."""
        self.calls += 1
        self.usage += usage
        try:
            self.usd = None if self.usd is None else self.usd + cost_usd(usage, self._model)
        except UnknownModelPrice:
            self.usd = None


class Conversation:
    """One agent and its tools."""

    def __init__(
        self,
        client: AsyncAnthropic,
        terminal: Terminal,
        *,
        model: str,
        root: Path,
        agents: AgentTool,
        context: ParentContext,
        permissions: Permissions,
    ) -> None:
        self._client = client
        self._terminal = terminal
        self._agents = agents
        self._context = context
        self._model = model
        self._system = (
            f"You are a coding agent at a terminal and work in the git repository {root}. Do what the user asks. For "
            "work that has parts, start an agent for each with the Agent tool; each works on another host in a "
            f"checkout of its own and commits there, and the user merges. Types of agents:\n{agents.listing}"
        )
        self._messages: list[dict[str, Any]] = []
        tools = BuiltinTools(Place(cwd=root))
        asker = LocalAsker(emit=lambda _: None, callback=terminal.ask)
        self._tools = ToolRunner(
            tools,
            tool_filter=AllowAllFilter(),
            replacements=ContentReplacementState(),
            watch=self,
            gate=Gate(permissions, tools=tools, asker=asker, cwd=root),
        )
        self.bill = Bill(model)

    async def turn(self, texts: Sequence[str]) -> None:
        """Say something, and go on until the model calls no tool any more.

        Raises:
            anthropic.AnthropicError: The model could not be asked; what was said is said with the next turn.
        """
        self._say([{"type": "text", "text": text} for text in texts])
        while True:
            reply = await self._ask()
            uses = [block for block in reply.content if block.type == "tool_use"]
            if reply.content:
                self._messages.append({"role": "assistant", "content": reply.content})
            if not uses:
                return
            self._say(await self._answers(reply, uses))

    async def started(self, call: ToolCall, *, read_only: bool) -> None:
        """Show a call of the agent's own that begins."""
        what = next((value for value in call.input.values() if isinstance(value, str)), "")
        self._terminal.show(f"· {call.name} {' '.join(what.split())[:_SHOWN]}")

    async def finished(self, call: ToolCall, answer: ToolAnswer) -> None:
        """Show a call that came to nothing."""
        if answer.is_error and isinstance(answer.content, str):
            self._terminal.show(f"· {call.name}: {' '.join(answer.content.split())[:_SHOWN]}")

    async def _ask(self) -> Message:
        request: dict[str, Any] = {
            "model": self._model,
            "max_tokens": _MAX_TOKENS,
            "cache_control": {"type": "ephemeral"},
            "tools": TOOLS,
            "system": self._system,
            "messages": self._messages,
        }
        async with self._client.messages.stream(**request) as stream:
            async for text in stream.text_stream:
                self._terminal.stream(text)
            reply: Message = await stream.get_final_message()
        self.bill.add(Usage.from_wire(reply.usage.model_dump()))
        return reply

    async def _answers(self, reply: Message, uses: Sequence[ToolUseBlock]) -> list[dict[str, Any]]:
        """Return a result for every call; an interrupt is one, and goes on when it is kept."""
        if reply.stop_reason == "max_tokens":
            return [_result(use.id, _CUT_OFF) for use in uses]
        done: dict[str, dict[str, Any]] = {}
        try:
            for block in await self._agents.handle_all(reply):
                done[block["tool_use_id"]] = block
                self._terminal.show(f"· Agent: {' '.join(block['content'].split())[:_SHOWN]}")
            own = [use for use in uses if use.name != AGENT_TOOL]
            for answer in await self._tools.run([self._call(use) for use in own], {}):
                done[answer.call_id] = json.loads(answer.to_wire())
        except (asyncio.CancelledError, NexoforkError) as exc:
            self._say([done.get(use.id) or _result(use.id, str(exc) or _INTERRUPTED) for use in uses])
            raise
        told = [{"type": "text", "text": text} for text in self._agents.notifications()]
        return [done[use.id] for use in uses] + told

    def _call(self, use: ToolUseBlock) -> ToolCall:
        return ToolCall(run_id=QuerySource.MAIN_LOOP, id=use.id, name=use.name, input=use.input, context=self._context)

    def _say(self, blocks: Sequence[dict[str, Any]]) -> None:
        # Two user messages in a row would be one to the provider; so they are here.
        if self._messages and self._messages[-1]["role"] == "user":
            self._messages[-1]["content"].extend(blocks)
        else:
            self._messages.append({"role": "user", "content": list(blocks)})


def _result(call_id: str, text: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": True}
