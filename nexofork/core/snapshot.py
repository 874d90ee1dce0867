"""The parent's last request, as the bytes it was sent in.

Everything a child needs to begin with the same prefix: the body, the headers the cache depends on, the reply to it,
and where and when it was billed. A snapshot is immutable and shared: a thousand children hold one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nexofork.core.boilerplate import BOILERPLATE
from nexofork.core.cache_key import cache_dimensions, cache_key_hash
from nexofork.core.layout import Layout, scan_request
from nexofork.core.markers import Marked, Markings, read_markings
from nexofork.core.pairs import answer_dangling
from nexofork.core.query_source import writes_snapshot
from nexofork.core.replacement import ContentReplacementState
from nexofork.core.spans import read_json
from nexofork.errors import BadRequestBody, EmptySlot

if TYPE_CHECKING:
    from nexofork.core.reply import Reply

__all__ = ["CACHE_HEADERS", "CacheSafeParams", "CacheSafeSlot"]

CACHE_HEADERS = ("anthropic-version", "anthropic-beta")
"""The request headers that take part in what is cached."""


@dataclass(frozen=True, kw_only=True)
class CacheSafeParams:
    """A snapshot of one parent request."""

    body: bytes = field(repr=False)
    """The request body, byte for byte."""
    headers: tuple[tuple[str, str], ...] = ()
    """The cache-relevant headers, names in lower case."""
    query: tuple[tuple[str, str], ...] = ()
    """The query string (``beta=true``)."""
    reply: Reply | None = field(default=None, repr=False)
    """What the model answered; None where it is unknown or the body already ends with it."""
    workspace_id: str | None = None
    organization_id: str | None = None
    sent_at: float | None = None
    """Unix time the request was sent at; the TTL of its entries runs from there."""
    exact: bool = True
    """Whether the body is what was sent. False: recomputed, so the cache may not know it."""
    answered: tuple[str, ...] = ()
    """Tool calls in mid-history that had no result and were given the placeholder."""
    replacements: ContentReplacementState = field(default_factory=ContentReplacementState, repr=False)

    def __post_init__(self) -> None:
        # Scanning here means that a body that cannot be forked is refused where it is handed in.
        _ = self.layout

    @classmethod
    def from_parent_request(
        cls,
        request: bytes | Mapping[str, Any],
        *,
        reply: Reply | None = None,
        headers: Mapping[str, str] | None = None,
        query: tuple[tuple[str, str], ...] = (),
        workspace_id: str | None = None,
        sent_at: float | None = None,
        exact: bool = True,
        replacements: ContentReplacementState | None = None,
    ) -> CacheSafeParams:
        """Take a request that was not recorded at the transport.

        Bytes are taken as what was sent. A mapping (the arguments of ``messages.create``) is serialised the way the SDK
        does it and the snapshot is flagged inexact. Unanswered tool calls in mid-history are answered, never dropped.

        Raises:
            BadRequestBody: It is not a Messages request.
        """
        exact = exact and isinstance(request, bytes)
        if isinstance(request, Mapping):
            request, headers, query = _split_arguments(request, headers or {}, query)
        body, answered = answer_dangling(request if isinstance(request, bytes) else _serialise(request))
        return cls(
            body=body,
            headers=_cache_headers(headers or {}),
            query=query,
            reply=reply,
            workspace_id=workspace_id,
            sent_at=sent_at,
            exact=exact and not answered,
            answered=answered,
            replacements=replacements.clone() if replacements else ContentReplacementState(),
        )

    @classmethod
    def captured(
        cls,
        body: bytes,
        *,
        headers: Mapping[str, str],
        query: tuple[tuple[str, str], ...] = (),
        reply: Reply | None,
        workspace_id: str | None,
        organization_id: str | None,
        sent_at: float | None,
    ) -> CacheSafeParams:
        """Take what was seen at the transport."""
        return cls(
            body=body,
            headers=_cache_headers(headers),
            query=query,
            reply=reply,
            workspace_id=workspace_id,
            organization_id=organization_id,
            sent_at=sent_at,
        )

    @cached_property
    def layout(self) -> Layout:
        """The map of the body, made once."""
        return scan_request(self.body)

    @cached_property
    def markings(self) -> Markings:
        """What the request marked, read once."""
        return read_markings(self.layout)

    @property
    def write(self) -> Marked | None:
        """The newest cache entry the request wrote, if it marked anything."""
        return self.markings.write

    @cached_property
    def dimensions(self) -> dict[str, str]:
        """A digest for each thing the cache depends on."""
        return cache_dimensions(
            self.body,
            self.layout,
            headers=dict(self.headers),
            ttl=self.write.ttl if self.write else None,
            workspace_id=self.workspace_id,
        )

    @cached_property
    def boilerplate_message(self) -> int | None:
        """The first user message with the fork boilerplate as a block of its own, as only the runtime puts it there.

        Looked for once: a thousand children ask, and every look means reading all messages.
        """
        for index, message in enumerate(self.fork_context_messages):
            content = message.get("content")
            if message.get("role") == "user" and isinstance(content, list):
                texts = (block.get("text") for block in content if block.get("type") == "text")
                if any(text == BOILERPLATE for text in texts):
                    return index
        return None

    @property
    def cache_key_hash(self) -> int:
        """One stable 64-bit hash over all dimensions, the same on every host."""
        return cache_key_hash(self.dimensions)

    @property
    def model(self) -> str:
        """The model's name."""
        return self.layout.model

    @property
    def max_tokens(self) -> int:
        """The output limit."""
        limit: int = self.field("max_tokens")
        return limit

    @property
    def system_prompt(self) -> str:
        """The system prompt's text, for looking."""
        system = self.field("system")
        if isinstance(system, list):
            return "\n".join(str(block.get("text", "")) for block in system if isinstance(block, dict))
        return system or ""

    @property
    def system_blocks(self) -> list[dict[str, Any]]:
        """The system prompt's blocks, for looking; empty where it is a string."""
        system = self.field("system")
        return system if isinstance(system, list) else []

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tool definitions, for looking."""
        tools = self.field("tools")
        return tools if isinstance(tools, list) else []

    @property
    def fork_context_messages(self) -> list[dict[str, Any]]:
        """The messages, for looking."""
        messages: list[dict[str, Any]] = self.field("messages")
        return messages

    def field(self, key: str) -> Any:
        """Return a top-level field parsed, or None where it is missing."""
        member = self.layout.member(key)
        return None if member is None else read_json(self.body[member.value.start : member.value.end])


class CacheSafeSlot:
    """Holds the newest snapshot of one session; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._params: CacheSafeParams | None = None

    def save(self, params: CacheSafeParams, query_source: str) -> bool:
        """Keep the snapshot if it is the parent's own; a fork's or sidecar's turn changes nothing.

        Returns:
            Whether it was kept.
        """
        if not writes_snapshot(query_source):
            return False
        with self._lock:
            self._params = params
        return True

    def get(self) -> CacheSafeParams | None:
        """Return the newest snapshot; it is immutable, so the caller's copy cannot change under it."""
        with self._lock:
            return self._params

    def snapshot(self) -> CacheSafeParams:
        """Return the newest snapshot where there has to be one.

        Raises:
            EmptySlot: Nothing was saved yet, or it was cleared.
        """
        params = self.get()
        if params is None:
            raise EmptySlot
        return params

    def clear(self) -> None:
        """Forget the snapshot."""
        with self._lock:
            self._params = None


def _cache_headers(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    lower = {name.lower(): value for name, value in headers.items()}
    return tuple((name, lower[name]) for name in CACHE_HEADERS if name in lower)


def _split_arguments(
    request: Mapping[str, Any], headers: Mapping[str, str], query: tuple[tuple[str, str], ...]
) -> tuple[dict[str, Any], dict[str, str], tuple[tuple[str, str], ...]]:
    """Tell the body's fields from what ``messages.create`` takes besides them and sends elsewhere or not at all."""
    body = {key: value for key, value in request.items() if key not in ("extra_headers", "extra_query", "timeout")}
    headers = {**headers, **(request.get("extra_headers") or {})}
    if betas := body.pop("betas", None):
        headers["anthropic-beta"] = ",".join(betas)
    query = (*query, *((request.get("extra_query") or {}).items()))
    extra = body.pop("extra_body", None) or {}
    return {**body, **extra}, headers, query


def _serialise(request: Mapping[str, Any]) -> bytes:
    def plain(value: object) -> Any:
        dump = getattr(value, "model_dump", None)
        if callable(dump):  # a block of an SDK response, echoed back as the SDK would
            return dump(mode="json", exclude_unset=True)
        raise TypeError(f"holds a {type(value).__name__}, which is not JSON")

    try:
        text = json.dumps(dict(request), ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=plain)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise BadRequestBody(
            f"cannot be serialised: {exc}", fix="Pass the arguments of messages.create, or the bytes that were sent."
        ) from exc
