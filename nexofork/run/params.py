"""What a caller says to start a fork, what is refused before anything is sent, and the same read from the wire.

A daemon reads a request to run it; a reader of the log, to explain it or to wake it. What the parent has seen of files
travels with it: a child may edit a file without reading it again, if the file is the same where the child runs. That is
a hint which is always checked against the file, so it does no harm where it is wrong.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from nexofork.core.boilerplate import check_directive, reminder
from nexofork.core.prompt import ChildPrompt, ForkBase
from nexofork.core.query_source import QuerySource, refuse_if_fork
from nexofork.core.replacement import ContentReplacementState
from nexofork.core.reply import Reply
from nexofork.core.snapshot import CacheSafeParams
from nexofork.errors import BadReply, CacheBreak, ForkRefused, WorkspaceMismatch
from nexofork.policy.filters import AllowAllFilter
from nexofork.policy.permissions import Permissions, permissions_of
from nexofork.run.budget import Budget, check_budgets
from nexofork.tools.dispatch import NoTools, ParentContext
from nexofork.tools.tool_names import check_tool_names
from nexofork.workspace import check_workspace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from nexofork.economics.fan_out import WarmUp
    from nexofork.policy.filters import ToolFilter
    from nexofork.policy.permissions import PermissionAnswer, PermissionAsk
    from nexofork.providers.provider import Provider
    from nexofork.run.abort import AbortToken
    from nexofork.run.events import ForkEvent
    from nexofork.tools.dispatch import ToolDispatcher
    from nexofork.wire.messages import BudgetLimit, Payload, Requested
    from nexofork.workspace import Workspace

    Resolve = Callable[[Payload], Awaitable[bytes]]

__all__ = [
    "MAX_FILES",
    "DelegateMode",
    "ForkOverrides",
    "ForkParams",
    "answers_of",
    "check_file_state",
    "decode_file_state",
    "encode_file_state",
    "file_state_of",
    "fork_of",
    "prepare",
    "refuse_groupless",
    "snapshot_of",
]

# What a changed field loses, by the provider's invalidation levels.
_LOSES = {
    "model": "tools, system prompt and messages",
    "tools": "tools, system prompt and messages",
    "system": "system prompt and messages",
    "speed": "system prompt and messages",
    "thinking": "messages",
    "output_config": "messages",
    "tool_choice": "messages",
    "messages": "messages",
}
MAX_FILES = 20_000
_MAX_PATH = 4_096
_DIGEST = re.compile(r"[0-9a-f]{64}")


class DelegateMode(StrEnum):
    """Whether the caller waits."""

    SYNC = "sync"
    FORK_AND_FORGET = "fork_and_forget"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkOverrides:
    """What a fork may have of its own."""

    agent_id: str | None = None
    critical_system_reminder: str | None = None
    """Shown to the child behind the directive and again with every tool result: never before anything shared."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """Top-level request fields to replace. Any of them gives up the parent's cache, so it is refused unless allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkParams:
    """Everything about one fork."""

    cache_safe: CacheSafeParams
    """The parent's request, and the reply to it."""
    prompt_messages: Sequence[str] | str
    """The directive, then any further text for this child alone."""
    llm: Provider | None = None
    """Answers the model calls; left out where a daemon runs the child with its own."""
    parent_ctx: ParentContext = field(default_factory=ParentContext)
    tool_dispatcher: ToolDispatcher = field(default_factory=NoTools)
    tool_filter: ToolFilter = field(default_factory=AllowAllFilter)
    query_source: str = QuerySource.FORK
    """What the child's turns run as."""
    fork_label: str = "fork"
    overrides: ForkOverrides = field(default_factory=ForkOverrides)
    max_turns: int = 200
    on_message: Callable[[ForkEvent], object] | None = None
    """Sees every event, text deltas included; what it raises does no harm."""
    skip_transcript: bool = False
    """Keep only the life cycle for whoever asks for the events later."""
    mode: DelegateMode = DelegateMode.FORK_AND_FORGET
    timeout: float | None = None
    """Seconds until the child is ended as timed out; the caller's own token is never touched."""
    external_abort: AbortToken | None = None
    """Aborting it aborts this fork; the fork never aborts it."""
    tool_use_id: str | None = None
    """The parent's tool call this fork was started by, where there is one."""
    boilerplate: bool = True
    """Whether the child is told that it is a fork; sidecars with a prompt of their own leave it out."""
    allow_cache_break: bool = False
    """Accept that the child does not share the parent's cache."""
    siblings: int | None = None
    """How many children are forked together, this one included; None where nobody counts."""
    warm_up: WarmUp = "auto"
    """How the fan-out starts on a prefix nobody has written: by price, or as said."""
    budget: Budget | None = None
    """What this fork may cost; the call that would pass it is not sent."""
    group_budget: Budget | None = None
    """What all forks of the group may cost together."""
    tool_names: Mapping[str, str] = field(default_factory=dict)
    """The parent's name of a tool to the name it has here, where they differ; the schema stays as it is."""
    permissions: Permissions = field(default_factory=Permissions)
    """Which calls run, are asked for, or are denied; by default all run that the filter lets through."""
    on_permission: Callable[[PermissionAsk], Awaitable[PermissionAnswer]] | None = None
    """Answers what the fork asks for; without it, whoever holds the handle or the run's id may, until the deadline."""
    tool_deadline: float | None = None
    """Seconds a fork on another host waits for a tool that this parent runs; None is the daemon's own limit."""
    continues: str | None = None
    """The finished run whose last request and reply the snapshot is: the same child goes on, so no fork is forked."""
    answers: Mapping[str, bytes] = field(default_factory=dict)
    """With `continues`: by tool call of the reply, the ``tool_result`` block that answers it."""
    compaction: bool = True
    """Whether the child's own turns are summarised when they no longer fit the model; else the run ends there."""
    workspace: Workspace | None = None
    """What the child works in on a daemon: a repository of its own, a shared folder, or nothing."""

    @property
    def directive(self) -> str:
        """What the child shall do: the first of the prompt's messages."""
        texts = self.prompt_messages
        return texts if isinstance(texts, str) else texts[0] if texts else ""

    @property
    def own_bytes(self) -> int:
        """How long the text is that this child alone is given."""
        texts = [self.directive, *self.notes]
        if self.overrides.critical_system_reminder:
            texts.append(reminder(self.overrides.critical_system_reminder))
        return sum(len(text.encode("utf-8", "backslashreplace")) for text in texts)

    @property
    def model(self) -> str:
        """The model the fork runs on: the parent's, unless an override that was allowed names another."""
        return str(self.overrides.request.get("model", self.cache_safe.model))

    @property
    def schema(self) -> Sequence[Any]:
        """The tools that the child's requests declare: the parent's, unless an override that was allowed has others."""
        tools = self.overrides.request.get("tools", self.cache_safe.tools)
        return tools if isinstance(tools, list) else ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Further text for this child alone."""
        return () if isinstance(self.prompt_messages, str) else tuple(self.prompt_messages[1:])

    def with_directive(self, directive: str) -> ForkParams:
        """Return the same fork with another directive."""
        return replace(self, prompt_messages=(directive, *self.notes))

    def each(self, directives: Iterable[str]) -> list[ForkParams]:
        """Return the same fork once per directive; each knows how many they are."""
        texts = list(directives)
        siblings = max(self.siblings or 0, len(texts))
        return [replace(self.with_directive(text), siblings=siblings) for text in texts]


def prepare(params: ForkParams) -> tuple[ForkBase, ChildPrompt]:
    """Check everything that can be checked without sending anything, and build the first request.

    Raises:
        ForkRefused: One of its kinds, naming what is wrong and what to do.
    """
    if params.max_turns < 1:
        raise ForkRefused(f"max_turns is {params.max_turns}; give the fork at least one turn.")
    if params.timeout is not None and params.timeout <= 0:
        raise ForkRefused(f"timeout is {params.timeout}; give seconds above 0, or None for no limit.")
    if params.tool_deadline is not None and not params.tool_deadline > 0:
        raise ForkRefused(f"tool_deadline is {params.tool_deadline}; give seconds above 0, or None for the daemon's.")
    check_budgets(params.model, params.budget, params.group_budget)
    check_directive(params.directive)
    refuse_if_fork(params.parent_ctx.query_source, params.cache_safe, continues=params.continues is not None)
    _refuse_cache_breaks(params)
    _check_claimed_call(params)
    _check_answers(params)
    check_tool_names(params.tool_names, params.schema)
    check_file_state(params.parent_ctx.file_state)
    check_workspace(params.workspace)
    base = ForkBase(
        params.cache_safe,
        boilerplate=params.boilerplate,
        overrides=params.overrides.request,
        answers=params.answers,
    )
    notes = list(params.notes)
    for note in filter(str.strip, notes):
        check_directive(note)
    if params.overrides.critical_system_reminder:
        notes.append(reminder(params.overrides.critical_system_reminder))
    return base, base.child(params.directive, notes)


def refuse_groupless(params: ForkParams, group: str | None) -> None:
    """Refuse a group's budget where there is no group to share it.

    Raises:
        ForkRefused: There is none.
    """
    if params.group_budget is not None and not (group and group.strip()):
        raise ForkRefused("There is a group budget and no group to share it; name the group, or give a budget.")


def _refuse_cache_breaks(params: ForkParams) -> None:
    fields = tuple(params.overrides.request)
    if own := sorted({"messages", "stream", "cache_control"} & set(fields)):
        raise ForkRefused(f"A fork's {', '.join(own)} are the runtime's to set; leave them out of the overrides.")
    for name, value in params.overrides.request.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as exc:
            raise ForkRefused(f"The override of `{name}` cannot be sent: {exc}. Pass JSON values.") from exc
    if params.allow_cache_break:
        return
    if fields:
        worst = max((_LOSES.get(name, "exact prefix bytes") for name in fields), key=len)
        raise CacheBreak(fields, loses=worst)
    ours = params.llm.workspace_id if params.llm else None
    theirs = params.cache_safe.workspace_id
    if ours and theirs and ours != theirs:
        raise WorkspaceMismatch(snapshot=theirs, provider=ours)


def _check_claimed_call(params: ForkParams) -> None:
    if params.tool_use_id is None:
        return
    reply = params.cache_safe.reply
    known = [use.id for use in reply.tool_uses] if reply else []
    if params.tool_use_id not in known:
        raise BadReply(
            f"has no tool_use {params.tool_use_id!r} (it has: {', '.join(known) or 'none'})",
            fix="Pass the reply that made the call, or leave tool_use_id out.",
        )


def _check_answers(params: ForkParams) -> None:
    if not params.answers:
        return
    if params.continues is None:
        raise ForkRefused("Only a run that is continued has answers to its calls; leave `answers` out.")
    reply = params.cache_safe.reply
    known = {use.id for use in reply.tool_uses} if reply else set()
    if unknown := sorted(set(params.answers) - known):
        raise BadReply(f"has no tool_use {unknown[0]!r} to answer", fix="Pass answers to the calls of this reply.")


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


def check_file_state(state: Mapping[Any, Any]) -> None:
    """Refuse what cannot be a file state.

    Raises:
        ForkRefused: It is too large, or holds something other than paths and digests.
    """
    if len(state) > MAX_FILES:
        raise ForkRefused(f"file_state has {len(state)} files; give at most {MAX_FILES}, those seen last.")
    for path, digest in state.items():
        if not isinstance(path, str) or not 0 < len(path) <= _MAX_PATH:
            raise ForkRefused(f"file_state has a path that is none: {str(path)[:100]!r}; give absolute paths.")
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise ForkRefused(f"file_state of {path!r} is no SHA-256; give it as 64 lower-case hex digits.")


def encode_file_state(state: Mapping[str, str]) -> bytes:
    """Return a state as it travels; equal states are equal bytes."""
    return json.dumps(dict(state), sort_keys=True, separators=(",", ":")).encode()


def decode_file_state(data: bytes) -> dict[str, str]:
    """Read a state that travelled.

    Raises:
        ForkRefused: It is none.
    """
    try:
        state: Any = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise ForkRefused("The request's file_state is not JSON; send an object, path to SHA-256.") from exc
    if not isinstance(state, dict):
        raise ForkRefused("The request's file_state is no JSON object; send one, path to SHA-256.")
    check_file_state(state)
    return state
