"""Rebuild the parent's snapshot from a request on the wire: a daemon to run it, a reader of the log to explain it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexofork.core.replacement import ContentReplacementState
from nexofork.core.reply import Reply
from nexofork.core.snapshot import CacheSafeParams

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nexofork.wire.messages import Payload, Requested

    Resolve = Callable[[Payload], Awaitable[bytes]]

__all__ = ["snapshot_of"]


async def snapshot_of(request: Requested, resolve: Resolve) -> CacheSafeParams:
    """Return the snapshot that a request refers to.

    Args:
        request: What the parent asked for.
        resolve: Fetches what travels beside the log.

    Raises:
        BusError: A blob is missing or corrupt.
        ForkRefused: The bytes are not a request, or the reply does not fit them.
    """
    body = await resolve(request.snapshot)
    reply = Reply.from_response(await resolve(request.reply)) if request.reply else None
    return CacheSafeParams.from_parent_request(
        body,
        reply=reply,
        headers=request.headers,
        query=tuple(request.query),
        workspace_id=request.workspace_id,
        sent_at=request.sent_at,
        exact=request.exact,
        replacements=ContentReplacementState.from_wire(request.replacements) if request.replacements else None,
    )
