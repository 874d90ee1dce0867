"""Hold a parent's calls to the turn they were made in: a snapshot has one reply, and children continue that one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nexofork.errors import BadReply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.core.reply import Reply, ToolUse
    from nexofork.core.snapshot import CacheSafeParams

__all__ = ["refuse_other_turn", "with_reply"]


def with_reply(snapshot: CacheSafeParams, reply: Reply | None) -> CacheSafeParams:
    """Return the snapshot with the reply whose calls are followed; what was recorded of it comes first.

    Raises:
        BadReply: The recorded reply does not make these calls.
    """
    if reply is None or snapshot.reply is reply:
        return snapshot
    if snapshot.reply is None:
        # Where the body ends with the reply already, its calls are open there.
        ends_with_it = snapshot.layout.messages[-1].role == "assistant"
        return snapshot if ends_with_it else replace(snapshot, reply=reply)
    refuse_other_turn(snapshot, reply.tool_uses)
    return snapshot


def refuse_other_turn(snapshot: CacheSafeParams, uses: Sequence[ToolUse]) -> None:
    """Refuse calls that the recorded reply does not make: their children would continue another turn.

    Raises:
        BadReply: There is one.
    """
    recorded = {use.id for use in snapshot.reply.tool_uses} if snapshot.reply else {use.id for use in uses}
    if missing := [use.id for use in uses if use.id not in recorded]:
        raise BadReply(
            f"makes the call {missing[0]!r}, which the recorded reply does not",
            fix="Handle a reply when it is complete, and before the parent makes its next request.",
        )
