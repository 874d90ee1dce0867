"""Continue a child that has ended: its last request and reply become the snapshot of a new run.

The new run begins with the child's own bytes, which its last call left in the cache, and adds the reply, what answers
its tool calls, and what it is told now. It is the same child, so it is not told again that it is a fork, and it may
not fork either.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from nexofork.core.prompt import ToolAnswer
from nexofork.core.snapshot import CacheSafeParams
from nexofork.errors import CannotWake, ForkRefused
from nexofork.run.params import ForkParams, prepare
from nexofork.run.result import ForkStatus
from nexofork.run.turns import CUT_BY_WINDOW, interrupted_answers, replay

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexofork.core.reply import Reply
    from nexofork.run.turns import RecordedTurn

__all__ = ["NOT_RUN", "check_changes", "check_end", "continued"]

NOT_RUN = "This call was not run: the run ended before it came to it. Make it again if it is still needed."
_CUT = "Your last answer was cut off inside a call of {name!r}, which was not run. Make it again if it is still needed."
_AGAIN = "Fork a new child from the parent."
_ENDS = frozenset(status for status in ForkStatus if status.over) - {ForkStatus.REFUSED}
_FIXED = {"cache_safe", "prompt_messages", "continues", "answers", "boilerplate", "overrides", "siblings"}


def check_end(run_id: str, *, status: str, end: str) -> None:
    """Refuse to continue what ended in a way that leaves nothing to go on from.

    Raises:
        CannotWake: It did.
    """
    if status not in _ENDS:
        raise CannotWake(run_id, f"it ended as {status} ({end})", fix="Reword the directive and fork again.")
    if end == "context_overflow":
        raise CannotWake(run_id, "its conversation no longer fits the model", fix=_AGAIN)


def check_changes(run_id: str, changes: Mapping[str, Any]) -> None:
    """Refuse changes that would make it another child, or that no fork has.

    Raises:
        ForkRefused: There is one.
    """
    if unknown := sorted(set(changes) - {field.name for field in fields(ForkParams)}):
        raise ForkRefused(f"A fork has no {', '.join(unknown)}; `wake` takes fields of ForkParams.")
    if fixed := sorted(_FIXED & set(changes)):
        raise ForkRefused(f"Run {run_id} goes on from where it ended, so {', '.join(fixed)} cannot be given to `wake`.")


def continued(
    params: ForkParams,
    turns: Sequence[RecordedTurn],
    *,
    run_id: str,
    follow_up: str,
    sent_at: float | None,
    decision: Mapping[str, Any] | None = None,
) -> ForkParams:
    """Return the fork that goes on where another one ended.

    Args:
        params: The fork that ended, as it was begun.
        turns: What it did.
        run_id: Which one it was.
        follow_up: What it is told now.
        sent_at: Unix time its last call was sent at, by this host's clock.
        decision: How its fan-out was started: it tells for how long the child's entries were written.

    Raises:
        CannotWake: It has no reply to go on from.
        ForkRefused: The follow-up cannot be given to a child.
    """
    if not turns:
        raise CannotWake(run_id, "it ended before the model answered", fix=_AGAIN)
    _, prompt = prepare(params)
    known = decision or {}
    prompt.ttl, prompt.writes_tail = known.get("ttl"), known.get("writes_tail", True)
    last = turns[-1]
    if last.reply.stop_reason == CUT_BY_WINDOW and not last.compactions:
        raise CannotWake(run_id, "its conversation no longer fits the model", fix=_AGAIN)
    # A summary stands for the last reply too: what was sent behind it is all there is.
    replay(prompt, params, turns if last.compactions else turns[:-1])
    reply = None if last.compactions else _usable(last.reply)
    snapshot = CacheSafeParams(
        body=bytes(prompt.body()),
        headers=params.cache_safe.headers,
        query=params.cache_safe.query,
        reply=reply,
        workspace_id=params.cache_safe.workspace_id,
        organization_id=params.cache_safe.organization_id,
        sent_at=sent_at,
        replacements=params.cache_safe.replacements.clone(),
    )
    cut, token = last.reply.truncated_tool_use, params.external_abort
    words = [_CUT.format(name=cut.name)] if cut is not None and not last.compactions else []
    return replace(
        params,
        cache_safe=snapshot,
        prompt_messages=(follow_up, *words),
        boilerplate=False,
        overrides=replace(params.overrides, request={}),  # they are in the body
        allow_cache_break=False,
        tool_use_id=None,
        external_abort=None if token is None or token.cause else token,  # what ended the one must not end the other
        siblings=1,
        continues=run_id,
        answers=_answers(last) if reply is not None else {},
    )


def _usable(reply: Reply) -> Reply | None:
    """Return the reply without what was cut off; None where nothing is left that a conversation could hold."""
    if not any(block.kind == "tool_use" for block in reply.blocks) and not reply.text.strip():
        return None
    return replace(reply, truncated_tool_use=None)


def _answers(turn: RecordedTurn) -> dict[str, bytes]:
    known = {**interrupted_answers(turn), **turn.answers}
    unknown = {
        use.id: ToolAnswer(call_id=use.id, content=NOT_RUN, is_error=True)
        for use in turn.reply.tool_uses
        if use.id not in known
    }
    return {use.id: {**known, **unknown}[use.id].to_wire() for use in turn.reply.tool_uses}
