"""The one conversation everything is measured with: about 450 KB of request."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["as_bytes", "conversation"]


def conversation() -> dict[str, Any]:
    """Return the request as the arguments of ``messages.create``."""
    line = 'def answer(question: str) -> str:  # "quoted", \\escaped\\ and naïve\n    return question.strip()\n'
    turns: list[dict[str, Any]] = [
        {"role": ("user", "assistant")[turn % 2], "content": [{"type": "text", "text": f"turn {turn}\n" + line * 22}]}
        for turn in range(201)
    ]
    turns[-1]["content"] = [{"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}}]
    tools: list[dict[str, Any]] = [
        {"name": f"tool_{n}", "description": line * 4, "input_schema": {"type": "object", "properties": {}}}
        for n in range(20)
    ]
    return {
        "max_tokens": 1024,
        "messages": turns,
        "model": "claude-opus-5",
        "system": [{"type": "text", "text": line * 40}],
        "tools": tools,
    }


def as_bytes() -> bytes:
    """Return the request as the SDK serialises it."""
    return json.dumps(conversation(), ensure_ascii=False, separators=(",", ":")).encode()
