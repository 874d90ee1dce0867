"""Check that a request has the shape the Messages API asks for: fields, types and blocks.

This is the part a schema does at the provider; rules that need the whole conversation or the model are elsewhere.
Unknown fields are refused, as they are there, so that nothing a client invents passes unseen.
Invariant: after `check_shape` returns, other modules index the request without looking at types again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from nexofork.simulator.blocks import check_block, check_cache_control, check_keys
from nexofork.simulator.errors import invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_shape"]

FIELDS = frozenset(
    [
        "model",
        "messages",
        "max_tokens",
        "cache_control",
        "compaction",
        "container",
        "context_management",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "mcp_servers",
        "metadata",
        "output_config",
        "output_format",
        "service_tier",
        "speed",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
        "user_profile_id",
    ]
)
TOOL_FIELDS = frozenset(
    [
        "name",
        "input_schema",
        "description",
        "type",
        "cache_control",
        "strict",
        "defer_loading",
        "eager_input_streaming",
        "input_examples",
        "allowed_callers",
    ]
)
MESSAGE_FIELDS = {"system": frozenset({"role", "content", "clear_at", "output_config"})}
PLAIN_MESSAGE_FIELDS = frozenset({"role", "content"})
ROLES = ("user", "assistant", "system")
TOOL_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,128}$")
EFFORTS = ("low", "medium", "high", "xhigh", "max")


def check_shape(request: dict[str, Any], *, counting: bool = False) -> None:
    """Refuse a request whose fields are missing, unknown or of the wrong type.

    Args:
        request: the parsed body.
        counting: whether it goes to `count_tokens`, which takes no `max_tokens`.

    Raises:
        ApiError: with the path of the first problem found.
    """
    for name in ("model", "messages") if counting else ("model", "max_tokens", "messages"):
        if name not in request:
            raise invalid(f"{name}: Field required")
    check_keys(request, FIELDS, "")
    _check_scalars(request)
    _check_tools(request.get("tools"))
    _check_system(request.get("system"))
    _check_messages(request["messages"])
    check_cache_control(request, "")
    _check_thinking(request.get("thinking"))
    _check_tool_choice(request.get("tool_choice"))
    _check_output_config(request.get("output_config"))
    _check_diagnostics(request.get("diagnostics"))


def _check_scalars(request: dict[str, Any]) -> None:
    _of_type(request["model"], str, "model", "string")
    if "max_tokens" in request:
        _of_type(request["max_tokens"], int, "max_tokens", "integer")
        if request["max_tokens"] < 0:
            raise invalid("max_tokens: Input should be greater than or equal to 0")
    if request.get("stream") is not None:
        _of_type(request["stream"], bool, "stream", "boolean")
    for name in ("metadata", "output_config", "thinking", "tool_choice", "diagnostics", "context_management"):
        if request.get(name) is not None:
            _of_type(request[name], dict, name, "dictionary")
    for name in ("tools", "messages", "stop_sequences", "mcp_servers"):
        if request.get(name) is not None:
            _of_type(request[name], list, name, "list")
    _one_of(request.get("speed"), ("standard", "fast"), "speed")


def _check_tools(tools: Sequence[Any] | None) -> None:
    names: set[str] = set()
    for index, tool in enumerate(tools or []):
        path = f"tools.{index}"
        _of_type(tool, dict, path, "dictionary")
        custom = tool.get("type") in (None, "custom")
        if custom:
            _check_custom_tool(tool, f"{path}.custom")
        check_cache_control(tool, f"{path}.")
        name = str(tool.get("name", tool.get("type")))
        if name in names:
            raise invalid("tools: Tool names must be unique.")
        names.add(name)


def _check_custom_tool(tool: dict[str, Any], path: str) -> None:
    for name in ("name", "input_schema"):
        if name not in tool:
            raise invalid(f"{path}.{name}: Field required")
    check_keys(tool, TOOL_FIELDS, f"{path}.")
    if not isinstance(tool["name"], str) or not TOOL_NAME.match(tool["name"]):
        raise invalid(f"{path}.name: String should match pattern '{TOOL_NAME.pattern}'")
    _of_type(tool["input_schema"], dict, f"{path}.input_schema", "dictionary")
    if tool["input_schema"].get("type") != "object":
        raise invalid(f"{path}.input_schema.type: Input should be 'object'")


def _check_system(system: Any) -> None:
    if system is None or isinstance(system, str):
        return
    _of_type(system, list, "system", "list")
    for index, block in enumerate(system):
        check_block(block, "system", f"system.{index}")


def _check_messages(messages: Sequence[Any]) -> None:
    if not messages:
        raise invalid("messages: at least one message is required")
    for index, message in enumerate(messages):
        path = f"messages.{index}"
        _of_type(message, dict, path, "dictionary")
        for name in ("role", "content"):
            if name not in message:
                raise invalid(f"{path}.{name}: Field required")
        if message["role"] not in ROLES:
            raise invalid(f"{path}.role: Input should be 'user' or 'assistant'")
        check_keys(message, MESSAGE_FIELDS.get(message["role"], PLAIN_MESSAGE_FIELDS), f"{path}.")
        _check_content(message["content"], message["role"], f"{path}.content")


def _check_content(content: Any, role: str, path: str) -> None:
    if isinstance(content, str):
        return
    _of_type(content, list, path, "list")
    for index, block in enumerate(content):
        check_block(block, role, f"{path}.{index}")


def _check_thinking(thinking: dict[str, Any] | None) -> None:
    if thinking is None:
        return
    _one_of(thinking.get("type", ""), ("enabled", "disabled", "adaptive", "between_tools"), "thinking.type")
    allowed = {"type", "display"} | ({"budget_tokens"} if thinking["type"] == "enabled" else set())
    check_keys(thinking, frozenset(allowed), f"thinking.{thinking['type']}.")
    if thinking["type"] == "enabled":
        if "budget_tokens" not in thinking:
            raise invalid("thinking.enabled.budget_tokens: Field required")
        _of_type(thinking["budget_tokens"], int, "thinking.enabled.budget_tokens", "integer")
        if thinking["budget_tokens"] < 1024:
            raise invalid("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")


def _check_tool_choice(choice: dict[str, Any] | None) -> None:
    if choice is None:
        return
    _one_of(choice.get("type", ""), ("auto", "any", "tool", "none"), "tool_choice.type")
    kind = choice["type"]
    allowed = (
        {"type"}
        | ({"disable_parallel_tool_use"} if kind != "none" else set())
        | ({"name"} if kind == "tool" else set())
    )
    check_keys(choice, frozenset(allowed), f"tool_choice.{kind}.")
    if kind == "tool" and not isinstance(choice.get("name"), str):
        raise invalid("tool_choice.tool.name: Field required")


def _check_output_config(config: dict[str, Any] | None) -> None:
    if config is not None:
        check_keys(config, frozenset({"effort", "format", "task_budget"}), "output_config.")
        _one_of(config.get("effort"), EFFORTS, "output_config.effort")


def _check_diagnostics(diagnostics: dict[str, Any] | None) -> None:
    if diagnostics is not None:
        check_keys(diagnostics, frozenset({"previous_message_id"}), "diagnostics.")
        if diagnostics.get("previous_message_id") is not None:
            _of_type(diagnostics["previous_message_id"], str, "diagnostics.previous_message_id", "string")


def _of_type(value: Any, kind: type, path: str, name: str) -> None:
    # bool is an int to Python and not to the API.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise invalid(f"{path}: Input should be a valid {name}")


def _one_of(value: Any, allowed: Sequence[str], path: str) -> None:
    if value is not None and value not in allowed:
        names = ", ".join(f"'{name}'" for name in allowed[:-1]) + f" or '{allowed[-1]}'"
        raise invalid(f"{path}: Input should be {names}")
