"""Read a fork from its request on the wire: a daemon to run it, a reader of the log to explain it or to wake it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexofork.core.replacement import ContentReplacementState
from nexofork.core.reply import Reply
from nexofork.core.snapshot import CacheSafeParams
from nexofork.engine.budget import Budget
from nexofork.engine.file_state import decode_file_state
from nexofork.engine.params import ForkOverrides, ForkParams, ParentContext
from nexofork.engine.permissions import permissions_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from nexofork.engine.filters import ToolFilter
    from nexofork.wire.messages import BudgetLimit, Payload, Requested

    Resolve = Callable[[Payload], Awaitable[bytes]]

__all__ = ["answers_of", "file_state_of", "fork_of", "snapshot_of"]


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


async def file_state_of(request: Requested, resolve: Resolve) -> dict[str, str]:
    """Return what the parent has seen of files; nothing where it does not say.

    Raises:
        BusError: A blob is missing or corrupt.
        ForkRefused: What it says is no file state.
    """
    return decode_file_state(await resolve(request.file_state)) if request.file_state else {}


async def answers_of(request: Requested, resolve: Resolve) -> dict[str, bytes]:
    """Return what answers the reply's tool calls, by call; nothing unless the request continues a run.

    Raises:
        BusError: A blob is missing or corrupt.
        BadReply: It is no array of content blocks.
    """
    if request.answers is None:
        return {}
    blocks = Reply.from_response(await resolve(request.answers)).blocks
    return {str(block.value.get("tool_use_id", "")): block.wire for block in blocks}


def fork_of(
    request: Requested,
    snapshot: CacheSafeParams,
    *,
    tool_filter: ToolFilter,
    answers: Mapping[str, bytes],
    file_state: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> ForkParams:
    """Return the fork a request asks for, without what the host that runs it adds.

    Args:
        request: What was asked for.
        snapshot: What it refers to.
        tool_filter: What its filters are on this host.
        answers: What answers the snapshot's open calls, where they are known.
        file_state: What the parent has seen of files.
        notes: Text for this child alone, behind the request's own.

    Raises:
        BadPermissions: The request's permissions cannot be meant.
    """
    return ForkParams(
        cache_safe=snapshot,
        prompt_messages=(request.directive, *request.notes, *notes),
        parent_ctx=ParentContext(agent_id=request.parent.agent, file_state=dict(file_state or {})),
        tool_filter=tool_filter,
        query_source=request.query_source,
        fork_label=request.label,
        overrides=ForkOverrides(
            agent_id=request.agent_id, critical_system_reminder=request.reminder, request=request.overrides
        ),
        max_turns=request.max_turns,
        skip_transcript=request.skip_transcript,
        timeout=request.timeout_s,
        boilerplate=request.boilerplate,
        allow_cache_break=request.allow_cache_break,
        siblings=request.siblings,
        warm_up=request.warm_up,
        budget=_budget(request.budget),
        group_budget=_budget(request.group_budget),
        tool_names=request.tool_names,
        permissions=permissions_of(request.permissions),
        continues=request.continues,
        answers=answers,
        compaction=request.compaction,
    )


def _budget(limit: BudgetLimit | None) -> Budget | None:
    return Budget(usd=limit.usd, tokens=limit.tokens) if limit else None
