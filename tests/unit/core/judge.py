"""Judge a child's body without any of the code that made it: own parser, own idea of markers, own lookback."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

__all__ = ["Members", "breakpoints", "drop_editable", "finds", "marker_ttls", "parse", "positions", "raw_tree"]

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)
_EDITABLE = {"cache_control", "stream", "max_tokens", "diagnostics"}


class Members(list[tuple[str, Any]]):
    """An object as its members, in order, duplicates included."""


def parse(body: bytes) -> dict[str, Any]:
    """Return the body as a strict reader of JSON in UTF-8 takes it."""

    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} is not JSON")

    value: dict[str, Any] = json.loads(body.decode("utf-8"), parse_constant=refuse)
    return value


def raw_tree(body: bytes) -> Members:
    """Return the body as a tree whose leaves are its own bytes: every spelling counts, white space does not."""
    tokens = iter(_TOKEN.findall(body))

    def value(token: bytes) -> Any:
        if token == b"{":
            return members()
        if token == b"[":
            return items()
        return token

    def members() -> Members:
        found = Members()
        while (token := next(tokens)) != b"}":
            if token == b",":
                token = next(tokens)
            assert next(tokens) == b":"
            found.append((json.loads(token), value(next(tokens))))
        return found

    def items() -> list[Any]:
        found: list[Any] = []
        while (token := next(tokens)) != b"]":
            found.append(value(next(tokens) if token == b"," else token))
        return found

    tree = value(next(tokens))
    assert isinstance(tree, Members)
    assert list(tokens) == []
    return tree


def drop_editable(tree: Members) -> tuple[Members, list[Any]]:
    """Return the tree without what a child may edit and with `messages` emptied; and those messages."""
    kept = Members()
    messages: list[Any] = []
    for key, value in tree:
        if key in _EDITABLE:
            continue
        if key == "messages":
            messages = [_unmarked_message(message) for message in value]
            kept.append((key, []))
        elif key in ("tools", "system") and isinstance(value, list):
            kept.append((key, [_unmarked(block) for block in value]))
        else:
            kept.append((key, value))
    return kept, messages


def _unmarked_message(message: Members) -> Members:
    return Members((key, _unmarked_blocks(value) if key == "content" else value) for key, value in message)


def _unmarked(block: Any) -> Any:
    if not isinstance(block, Members):
        return block
    return Members(
        (key, _unmarked_blocks(value) if key == "content" else value) for key, value in block if key != "cache_control"
    )


def _unmarked_blocks(value: Any) -> Any:
    return (
        [_unmarked(block) for block in value] if isinstance(value, list) and not isinstance(value, Members) else value
    )


def positions(document: dict[str, Any]) -> list[Any]:
    """Return every cache position in the provider's order: tools, system, messages."""

    def blocks(content: Any) -> list[Any]:
        return [content] if isinstance(content, str) else list(content or [])

    found = [*(document.get("tools") or []), *blocks(document.get("system"))]
    for message in document["messages"]:
        found += blocks(message["content"])
    return found


def takes_marker(block: Any) -> bool:
    """Whether the provider lets this block carry a marker."""
    if isinstance(block, str) or block.get("type") in ("thinking", "redacted_thinking"):
        return False
    return block.get("type") != "text" or bool(block["text"].strip())


def block_ttls(block: Any) -> list[str]:
    """Return the TTLs of a block's markers: those inside a tool result, then its own."""
    if isinstance(block, str):
        return []
    ttls: list[str] = []
    if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
        ttls += [ttl for inner in block["content"] for ttl in block_ttls(inner)]
    control = block.get("cache_control")
    return ttls if control is None else [*ttls, control.get("ttl", "5m")]


def marker_ttls(document: dict[str, Any]) -> list[str]:
    """Return the TTL of every marker in the whole body, in order; the automatic one comes last."""
    ttls = [ttl for block in positions(document) for ttl in block_ttls(block)]
    automatic = document.get("cache_control")
    return ttls if automatic is None else [*ttls, automatic.get("ttl", "5m")]


def breakpoints(document: dict[str, Any]) -> list[int]:
    """Return the positions at which the provider writes an entry."""
    row = positions(document)
    found = {index for index, block in enumerate(row) if block_ttls(block)}
    if document.get("cache_control") is not None:
        eligible = [index for index, block in enumerate(row) if isinstance(block, str) or takes_marker(block)]
        found |= set(eligible[-1:])
    return sorted(found)


def finds(entry: int, marked: list[int]) -> bool:
    """Whether the provider, trying 20 positions back from each breakpoint, comes across the entry."""
    return any(entry in range(breakpoint_ - 19, breakpoint_ + 1) for breakpoint_ in marked)
