"""Requests of an exact size, and scripts for what the simulated model answers.

Sizes are in the simulator's tokens: four bytes of a block's compact JSON are one.
"""

from __future__ import annotations

import json
from typing import Any

from nexofork.core.boilerplate import BOILERPLATE, PLACEHOLDER_RESULT
from nexofork.simulator import count_block_tokens

__all__ = [
    "AGENT",
    "BASH",
    "BOILERPLATE_TOKENS",
    "KEY",
    "MARK",
    "MARK_1H",
    "MODEL",
    "agent_calls",
    "call",
    "declared",
    "placeholder_tokens",
    "request",
    "says",
    "sized_reply",
    "text",
    "tokens_of",
]

MODEL = "claude-opus-4-8"
"""Reads at exactly a tenth of the input price, caches from 1,024 tokens on."""
KEY = "sk-sim-team"
MARK = {"type": "ephemeral"}
MARK_1H = {"type": "ephemeral", "ttl": "1h"}
AGENT: dict[str, Any] = {"name": "Agent", "input_schema": {"type": "object"}}
BASH: dict[str, Any] = {"name": "Bash", "input_schema": {"type": "object"}}
BOILERPLATE_TOKENS = count_block_tokens({"type": "text", "text": BOILERPLATE})
_BYTES_PER_TOKEN = 4
_ID = "toolu_" + 24 * "0"


def says(words: str, *turns: dict[str, Any] | str) -> str:
    """Words for the model, and what it answers to them, turn by turn."""
    return f"{words}\n@sim {json.dumps(turns)}"


def call(name: str = "Bash", **input_: Any) -> dict[str, Any]:
    """A tool call, for a scripted turn."""
    return {"name": name, "input": input_}


def declared(*names: str) -> list[dict[str, Any]]:
    """The tools that a parent's request declares when it has these next to the usual two."""
    return [AGENT, BASH, *({"name": name, "input_schema": {"type": "object"}} for name in names)]


def agent_calls(count: int) -> dict[str, Any]:
    """A turn that starts so many agents."""
    return {"text": "I fork.", "tools": [call("Agent", prompt=f"part {number}") for number in range(count)]}


def text(words: str = "", *, tokens: int | None = None, mark: dict[str, str] | None = None) -> dict[str, Any]:
    """A text block; filled up at its front to exactly `tokens` where given."""
    block: dict[str, Any] = {"type": "text", "text": words}
    if tokens is not None:
        missing = tokens * _BYTES_PER_TOKEN - len(json.dumps(block, ensure_ascii=False, separators=(",", ":")).encode())
        assert missing >= 0, f"{words!r} is longer than {tokens} tokens"
        # A script has to start a line of its own: the filling ends with a line feed, which is two bytes in JSON.
        end = "\n" if words and missing > 1 else ""
        block["text"] = ("lorem ipsum " * (missing // 12 + 1))[: missing - 2 * len(end)] + end + words
        assert count_block_tokens(block) == tokens
    return block | ({"cache_control": mark} if mark else {})


def request(
    *,
    answer: dict[str, Any] | None = None,
    tokens: int = 5_000,
    mark: dict[str, str] | None = MARK,
    **changes: Any,
) -> dict[str, Any]:
    """A parent's request whose prompt has exactly `tokens`, marked on its last block; the model answers `answer`."""
    fixed: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 4_000,
        "system": [{"type": "text", "text": "You are the agent of a long session."}],
        "tools": [AGENT, BASH],
    }
    fixed |= changes
    if "messages" in fixed:
        return fixed
    rest = tokens - tokens_of(fixed)
    said = text(says("Go on.", answer or agent_calls(2)), tokens=rest, mark=mark)
    return fixed | {"messages": [{"role": "user", "content": [said]}]}


def tokens_of(body: dict[str, Any]) -> int:
    """What a request costs, counted block by block."""
    system = body.get("system") or []
    blocks = [*(body.get("tools") or []), *([system] if isinstance(system, str) else system)]
    for message in body.get("messages", ()):
        content = message["content"]
        blocks += [content] if isinstance(content, str) else content
    return sum(count_block_tokens(block) for block in blocks)


def sized_reply(calls: int, tokens: int) -> dict[str, Any]:
    """A turn with so many agent calls whose blocks cost exactly `tokens` when they are sent again."""
    turn = agent_calls(calls)
    uses = [{"type": "tool_use", "id": _ID, **use} for use in turn["tools"]]
    rest = tokens - sum(count_block_tokens(use) for use in uses)
    return {"text": text("I fork.", tokens=rest)["text"], "tools": turn["tools"]}


def placeholder_tokens(calls: int) -> int:
    """What the constant answers to so many calls cost."""
    block = {"type": "tool_result", "tool_use_id": _ID, "content": PLACEHOLDER_RESULT}
    return calls * count_block_tokens(block)
