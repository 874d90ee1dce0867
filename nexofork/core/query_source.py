"""Who makes a query: the main loop, a fork, or a sidecar.

The source is set when an agent is started and no compaction of its messages can take it away, which makes it the first
guard against forks of forks; the boilerplate in its own place is the second.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from nexofork.errors import AlreadyAFork

if TYPE_CHECKING:
    from nexofork.core.snapshot import CacheSafeParams

__all__ = ["QuerySource", "is_named", "may_start_agents", "named_source", "refuse_if_fork", "writes_snapshot"]

_NAMED = "agent:named:"
_NESTED = "agent:nested:"


class QuerySource(StrEnum):
    """The sources the runtime knows; any other string is a caller's own."""

    MAIN_LOOP = "repl_main_thread"
    SDK = "sdk"
    FORK = "agent:builtin:fork"
    AUTO_DREAM = "auto_dream"
    AWAY_DIGEST = "away_digest"
    SESSION_MEMORY = "session_memory"
    SPECULATION = "speculation"
    SIDE_QUESTION = "side_question"
    EVAL = "eval"


def writes_snapshot(query_source: str) -> bool:
    """Whether a turn of this source is the parent's own: only the main loop and the SDK's caller are."""
    return query_source in (QuerySource.MAIN_LOOP, QuerySource.SDK)


def named_source(name: str, *, nested: bool = False) -> str:
    """Return the source of a named agent's turns; nested is one that another named agent started.

    >>> named_source("Explore")
    'agent:named:Explore'
    """
    return (_NESTED if nested else _NAMED) + name


def is_named(query_source: str) -> bool:
    """Whether a named agent asks: it begins a conversation of its own, which no parent has cached."""
    return query_source.startswith((_NAMED, _NESTED))


def may_start_agents(query_source: str) -> bool:
    """Whether a child of this source may call Agent where its tools include it; what it starts may not."""
    return query_source.startswith(_NAMED)


def refuse_if_fork(query_source: str, snapshot: CacheSafeParams, *, continues: bool = False) -> None:
    """Refuse to fork a fork.

    Args:
        query_source: Who wants to fork.
        snapshot: What of.
        continues: Whether the snapshot is a child's own conversation, which goes on rather than being forked.

    Raises:
        AlreadyAFork: The source says so, or the boilerplate stands where only the runtime puts it: a text block of its
            own in a user message, whole and alone. Text that merely mentions the tag, in a file or a question, does
            not count.
    """
    if query_source == QuerySource.FORK:
        raise AlreadyAFork(guard=f"its query source {query_source!r}")
    if not continues and snapshot.boilerplate_message is not None:
        raise AlreadyAFork(guard=f"the fork boilerplate in messages.{snapshot.boilerplate_message}")
