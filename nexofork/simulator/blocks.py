"""Check one content block: its type, its fields, and where it may stand.

Kept apart from the rest of the shape because a block's rules are a table by type. A marker on a thinking block is an
unknown field there, which is how the provider refuses it.
Invariant: a block that passes has every field its type requires, with the right type.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from nexofork.simulator.errors import invalid

__all__ = ["check_block", "check_cache_control", "check_keys"]

TOOL_ID = re.compile(r"^[a-zA-Z0-9_-]+$")
USER = frozenset({"user"})
ASSISTANT = frozenset({"assistant"})
NOUNS: dict[type, str] = {str: "string", dict: "dictionary", list: "list"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRule:
    """What one block type needs; `fields` None leaves unknown fields alone."""

    roles: frozenset[str]
    required: dict[str, type]
    fields: frozenset[str] | None = None


def _rule(roles: frozenset[str], optional: str, **required: type) -> BlockRule:
    return BlockRule(roles=roles, required=required, fields=frozenset({"type", *required, *optional.split()}))


RULES = {
    "text": _rule(USER | ASSISTANT | {"system"}, "cache_control citations", text=str),
    "image": _rule(USER, "cache_control transformations", source=dict),
    "document": _rule(USER, "cache_control citations context title", source=dict),
    "search_result": _rule(USER, "cache_control citations", content=list, source=str, title=str),
    "thinking": _rule(ASSISTANT, "", thinking=str, signature=str),
    "redacted_thinking": _rule(ASSISTANT, "", data=str),
    "tool_use": _rule(ASSISTANT, "cache_control caller toolset_name", id=str, name=str, input=dict),
    "tool_result": _rule(USER, "cache_control content is_error toolset_name", tool_use_id=str),
    "server_tool_use": BlockRule(roles=ASSISTANT, required={"id": str, "name": str, "input": dict}),
    "container_upload": BlockRule(roles=USER, required={"file_id": str}),
}
SERVER_RESULT = BlockRule(roles=ASSISTANT, required={"tool_use_id": str})
IN_TOOL_RESULT = ("text", "image", "document", "search_result", "tool_reference")


def check_block(block: Any, role: str, path: str) -> None:
    """Refuse a block that is malformed or stands in a message of the wrong role.

    Raises:
        ApiError: with the path of the block.
    """
    if not isinstance(block, dict):
        raise invalid(f"{path}: Input should be a valid dictionary")
    kind = block.get("type")
    if not isinstance(kind, str):
        raise invalid(f"{path}.type: Field required")
    rule = RULES.get(kind) or (SERVER_RESULT if kind.endswith("_tool_result") else None)
    if rule is None:
        tags = ", ".join(f"'{name}'" for name in sorted(RULES))
        raise invalid(f"{path}: Input tag '{kind}' found using 'type' does not match any of the expected tags: {tags}")
    if role not in rule.roles:
        homes = ", ".join(f"`{name}`" for name in sorted(rule.roles))
        raise invalid(f"{path}: `{kind}` blocks can only be in {homes} messages")
    _check_fields(block, kind, rule, path)
    if kind in {"tool_use", "tool_result"}:
        _check_tool_block(block, kind, path)


def check_cache_control(holder: dict[str, Any], prefix: str) -> None:
    """Refuse a marker that is not `{"type": "ephemeral"}` with an optional `5m` or `1h`."""
    control = holder.get("cache_control")
    if control is None:
        return
    path = f"{prefix}cache_control"
    if not isinstance(control, dict):
        raise invalid(f"{path}: Input should be a valid dictionary")
    if control.get("type") != "ephemeral":
        raise invalid(f"{path}.type: Input should be 'ephemeral'")
    if control.get("ttl") not in (None, "5m", "1h"):
        raise invalid(f"{path}.ephemeral.ttl: Input should be '5m' or '1h'")
    check_keys(control, frozenset({"type", "ttl"}), f"{path}.ephemeral.")


def check_keys(holder: dict[str, Any], allowed: frozenset[str], prefix: str) -> None:
    """Refuse the first field that is not known."""
    for name in holder:
        if name not in allowed:
            raise invalid(f"{prefix}{name}: Extra inputs are not permitted")


def _check_fields(block: dict[str, Any], kind: str, rule: BlockRule, path: str) -> None:
    for name, wanted in rule.required.items():
        if name not in block:
            raise invalid(f"{path}.{kind}.{name}: Field required")
        if not isinstance(block[name], wanted):
            noun = NOUNS[wanted]
            raise invalid(f"{path}.{kind}.{name}: Input should be a valid {noun}")
    if rule.fields is not None:
        check_keys(block, rule.fields, f"{path}.{kind}.")
    check_cache_control(block, f"{path}.{kind}.")


def _check_tool_block(block: dict[str, Any], kind: str, path: str) -> None:
    name = "id" if kind == "tool_use" else "tool_use_id"
    if not TOOL_ID.match(block[name]):
        raise invalid(f"{path}.{kind}.{name}: String should match pattern '{TOOL_ID.pattern}'")
    content = block.get("content")
    if kind == "tool_use" or content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise invalid(f"{path}.tool_result.content: Input should be a valid list")
    for index, inner in enumerate(content):
        if isinstance(inner, dict) and inner.get("type") not in IN_TOOL_RESULT:
            raise invalid(f"{path}.tool_result.content.{index}: `{inner.get('type')}` is not allowed in a tool result")
        if not (isinstance(inner, dict) and inner.get("type") == "tool_reference"):
            check_block(inner, "user", f"{path}.tool_result.content.{index}")
