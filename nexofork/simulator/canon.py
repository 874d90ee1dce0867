"""Read a body without losing the order of its keys, and write a block back in one fixed form.

The real cache compares bytes; this one compares the compact form of each block with its keys in the order they came,
so a reordered `tool_use.input` is another prefix here too. Invariant: `canonical` of equal values in equal key order
is equal, and a `cache_control` marker never changes it.
"""

from __future__ import annotations

import json
from math import ceil
from typing import Any

from nexofork.simulator.errors import invalid

__all__ = ["BYTES_PER_TOKEN", "canonical", "count_block_tokens", "parse_body", "without_markers"]

BYTES_PER_TOKEN = 4
"""The simulator's tokenizer: so many bytes of a block's canonical form are one token."""
_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def parse_body(body: bytes) -> dict[str, Any]:
    """The request as ordered JSON.

    Raises:
        ApiError: not UTF-8, not JSON, not an object, a key given twice, or text no UTF-8 can hold.
    """
    try:
        value = json.loads(body.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except (UnicodeDecodeError, ValueError, RecursionError) as exc:
        raise invalid(f"The request body is not valid JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise invalid("Input should be a valid dictionary")
    if b"\\u" in body:
        _refuse_lone_surrogates(value)
    return value


def canonical(value: object) -> bytes:
    """The compact UTF-8 JSON of a value, keys in the order they have."""
    return _COMPACT.encode(value).encode()


def without_markers(block: object) -> object:
    """The block without its `cache_control`, and without those inside a tool result's content.

    Keys of that name deeper down, in a tool's input or schema, are the user's data and stay.
    """
    if not isinstance(block, dict):
        return block
    plain = {key: value for key, value in block.items() if key != "cache_control"}
    if block.get("type") == "tool_result" and isinstance(plain.get("content"), list):
        plain["content"] = [without_markers(inner) for inner in plain["content"]]
    return plain


def count_block_tokens(block: object) -> int:
    """How many tokens a block costs: its canonical UTF-8 bytes divided by four, rounded up.

    A block is a tool, a system block, a content block, or the string that stands for one. The count is additive: a
    prompt's total is the sum over its blocks.

    >>> count_block_tokens({"type": "text", "text": "hello"})
    8
    """
    return ceil(len(canonical(without_markers(block))) / BYTES_PER_TOKEN)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        # The provider's reading of a repeated key is not documented; refusing shows a bad splice at once.
        raise ValueError(f"duplicate key {twice!r}")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _refuse_lone_surrogates(value: object) -> None:
    try:
        canonical(value)
    except UnicodeEncodeError as exc:
        raise invalid("The request body is not valid JSON: no low surrogate in string") from exc
