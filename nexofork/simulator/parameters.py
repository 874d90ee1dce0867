"""Check parameters against the model, the API version and each other.

Each function is one documented refusal. Invariant: nothing here looks at the conversation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexofork.simulator.errors import invalid

if TYPE_CHECKING:
    from nexofork.simulator.catalog import Model

__all__ = ["VERSION_WITHOUT_SAMPLING", "check_parameters", "check_version"]

VERSION_WITHOUT_SAMPLING = "2026-10-21"
VERSIONS = ("2023-01-01", "2023-06-01", VERSION_WITHOUT_SAMPLING)
SAMPLING = ("temperature", "top_p", "top_k")


def check_version(version: str) -> None:
    """Refuse a missing or unknown `anthropic-version`."""
    if not version:
        raise invalid("anthropic-version: header is required")
    if version not in VERSIONS:
        raise invalid(f'anthropic-version: "{version}" is not a valid version.')


def check_parameters(request: dict[str, Any], *, model: Model, version: str) -> None:
    """Refuse a combination of parameters that the model or the version does not take.

    Raises:
        ApiError: with the text of the first rule broken.
    """
    _check_sampling(request, version)
    _check_tool_choice(request, model)
    _check_thinking(request)
    if request.get("max_tokens") == 0:
        _check_prewarm(request)


def _check_sampling(request: dict[str, Any], version: str) -> None:
    for name in SAMPLING:
        if request.get(name) is not None and version == VERSION_WITHOUT_SAMPLING:
            raise invalid(f"{name}: `{name}` is not supported with anthropic-version {version}.")


def _check_tool_choice(request: dict[str, Any], model: Model) -> None:
    choice = request.get("tool_choice")
    if choice is None:
        return
    tools = request.get("tools") or []
    if not tools:
        raise invalid("tool_choice: tool_choice may only be specified while providing tools.")
    if not _forced(request):
        return
    if not model.forced_tool_choice:
        raise invalid('tool_choice: type "tool" and "any" are not supported for this model.')
    if choice["type"] == "tool" and choice["name"] not in [tool.get("name") for tool in tools]:
        raise invalid(f"tool_choice: Tool '{choice['name']}' not found in provided tools")
    if (request.get("thinking") or {}).get("type") in {"enabled", "adaptive"}:
        raise invalid("Thinking may not be enabled when tool_choice forces tool use.")


def _check_thinking(request: dict[str, Any]) -> None:
    thinking = request.get("thinking") or {}
    if thinking.get("type") != "enabled" or not request.get("max_tokens"):
        return
    if thinking["budget_tokens"] >= request["max_tokens"]:
        raise invalid("`max_tokens` must be greater than `thinking.budget_tokens`.")


def _check_prewarm(request: dict[str, Any]) -> None:
    conflicts = {
        "`stream: true`": request.get("stream") is True,
        '`thinking.type: "enabled"`': (request.get("thinking") or {}).get("type") == "enabled",
        "`output_config.format`": (request.get("output_config") or {}).get("format") is not None,
        '`tool_choice` of type "tool" or "any"': _forced(request),
    }
    for name, present in conflicts.items():
        if present:
            raise invalid(f"max_tokens: `max_tokens: 0` cannot be used with {name}.")


def _forced(request: dict[str, Any]) -> bool:
    return (request.get("tool_choice") or {}).get("type") in {"tool", "any"}
