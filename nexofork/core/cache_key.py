"""Name what the provider's cache depends on, one dimension at a time.

Two requests can share a cache entry only if all of these are equal, so each gets a digest of its own (to say *which*
one differs) and one 64-bit hash covers them all (to say *whether* any does). Both are plain SHA-256 over bytes: the
same on every host, in every process and in every release.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from nexofork.core.spans import read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nexofork.core.layout import Layout
    from nexofork.core.spans import Span

__all__ = ["DIMENSIONS", "cache_dimensions", "cache_key_hash", "hash_without"]

DIMENSIONS = (
    "model",
    "tools",
    "system",
    "messages",
    "thinking",
    "effort",
    "output_format",
    "tool_choice",
    "speed",
    "context_management",
    "mcp_servers",
    "betas",
    "version",
    "ttl",
    "workspace",
)


def cache_dimensions(
    body: bytes,
    layout: Layout,
    *,
    headers: Mapping[str, str],
    ttl: str | None,
    workspace_id: str | None,
) -> dict[str, str]:
    """Return a hex digest per dimension; markers are left out, an explicit default equals leaving it out."""
    digests: dict[str, str] = {}
    for name, blocks in (
        ("tools", layout.tools),
        ("system", layout.system),
        ("messages", tuple(block for message in layout.messages for block in message.blocks)),
    ):
        member = layout.member(name)
        removed = [span for block in blocks for span in block.markers]
        digests[name] = hash_without(body, member.value, removed) if member else _digest(b"")
    betas = ",".join(sorted(part.strip() for part in headers.get("anthropic-beta", "").split(",") if part.strip()))
    plain = {
        "model": layout.model.encode(),
        "thinking": _thinking(_raw(body, layout, "thinking")),
        "effort": _output_config(body, layout, "effort"),
        "output_format": _output_config(body, layout, "format"),
        "context_management": _raw(body, layout, "context_management"),
        "mcp_servers": _raw(body, layout, "mcp_servers"),
        "tool_choice": _raw(body, layout, "tool_choice"),
        "speed": _raw(body, layout, "speed"),
        "betas": betas.encode(),
        "version": headers.get("anthropic-version", "").encode(),
        "ttl": (ttl or "").encode(),
        "workspace": (workspace_id or "").encode(),
    }
    digests.update({name: _digest(value) for name, value in plain.items()})
    return digests


def cache_key_hash(dimensions: Mapping[str, str]) -> int:
    """Return one unsigned 64-bit number over all dimensions."""
    joined = "\n".join(f"{name}={dimensions[name]}" for name in DIMENSIONS)
    return int.from_bytes(hashlib.sha256(joined.encode()).digest()[:8], "big")


def hash_without(body: bytes, span: Span, removed: Iterable[Span]) -> str:
    """Return the hex SHA-256 of a span of the body with some spans inside it left out."""
    view = memoryview(body)
    digest = hashlib.sha256()
    at = span.start
    for gap in sorted(removed):
        digest.update(view[at : gap.start])
        at = gap.end
    digest.update(view[at : span.end])
    return digest.hexdigest()


def _digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()


def _raw(body: bytes, layout: Layout, key: str) -> bytes:
    member = layout.member(key)
    return b"" if member is None else body[member.value.start : member.value.end]


def _thinking(raw: bytes) -> bytes:
    if not raw:
        return b""
    value = read_json(raw)
    return b"" if value in (None, {"type": "disabled"}) else raw


def _output_config(body: bytes, layout: Layout, key: str) -> bytes:
    raw = _raw(body, layout, "output_config")
    value = read_json(raw) if raw else None
    setting = value.get(key) if isinstance(value, dict) else None
    return b"" if setting is None else json.dumps(setting).encode()
