"""Which request parameters a cached level depends on.

A table of the documented rules: model, betas and version lose everything; web search, citations, speed and an output
schema lose system and messages; tool choice, images, thinking and effort lose the messages. A parameter set to its
default is the same as one left out. Where the provider says nothing, the pessimistic reading is taken.
Invariant: parameters that do not reach the prompt (`max_tokens`, `stream`, `metadata`, …) are in no digest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexofork.simulator.canon import canonical
from nexofork.simulator.prompt import LevelDigests, content_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nexofork.simulator.catalog import Model

__all__ = ["level_digests", "thinking_config"]

DEFAULT_EFFORT = "high"
DEFAULT_SPEED = "standard"


def level_digests(request: dict[str, Any], *, model: Model, version: str, betas: str) -> LevelDigests:
    """The parameters of each level, as bytes that are equal exactly when the level is kept."""
    named_betas = sorted({name.strip() for name in betas.split(",") if name.strip()})
    root = [request["model"], version, named_betas, request.get("mcp_servers") or []]
    return LevelDigests(
        root=canonical(root),
        system=canonical(_system_parameters(request)),
        messages=canonical(_message_parameters(request, model)),
    )


def thinking_config(request: dict[str, Any], model: Model) -> dict[str, Any]:
    """The thinking configuration in force, with the model's default filled in."""
    default = {"type": "adaptive"} if model.thinking_by_default else {"type": "disabled"}
    return {key: value for key, value in (request.get("thinking") or default).items() if value is not None}


def _system_parameters(request: dict[str, Any]) -> list[Any]:
    tools = request.get("tools") or []
    return [
        any(str(tool.get("type", "")).startswith("web_search") for tool in tools),
        any(_cites(block) for block in _all_blocks(request)),
        request.get("speed") or DEFAULT_SPEED,
        (request.get("output_config") or {}).get("format") or request.get("output_format"),
    ]


def _message_parameters(request: dict[str, Any], model: Model) -> list[Any]:
    config = request.get("output_config") or {}
    thinking = thinking_config(request, model)
    return [
        _tool_choice(request),
        any(block.get("type") == "image" for block in _all_blocks(request)),
        sorted(thinking.items()),
        config.get("effort") or DEFAULT_EFFORT,
        request.get("context_management"),
        _turns_after_thinking(request) if model.drops_thinking else 0,
    ]


def _tool_choice(request: dict[str, Any]) -> list[Any]:
    choice = request.get("tool_choice") or {}
    return [choice.get("type", "auto"), choice.get("name"), bool(choice.get("disable_parallel_tool_use"))]


def _all_blocks(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for message in request["messages"]:
        for block in content_blocks(message["content"]):
            if isinstance(block, dict):
                yield block
                inner = block.get("content")
                if isinstance(inner, list):
                    yield from (item for item in inner if isinstance(item, dict))


def _cites(block: dict[str, Any]) -> bool:
    config = block.get("citations")
    return (
        block.get("type") in ("document", "search_result") and isinstance(config, dict) and bool(config.get("enabled"))
    )


def _turns_after_thinking(request: dict[str, Any]) -> int:
    """How many user turns, tool results aside, came after the first thinking block."""
    thought, turns = False, 0
    for message in request["messages"]:
        kinds = {
            block.get("type") if isinstance(block, dict) else "text" for block in content_blocks(message["content"])
        }
        if message["role"] == "assistant":
            thought = thought or bool(kinds & {"thinking", "redacted_thinking"})
        elif thought and kinds - {"tool_result"}:
            turns += 1
    return turns
