"""Compare what a child's first call read from the cache with what it should have, and say why not.

A miss is never silent: below half of the prompt read, the check names a cause somebody can act on. Causes are tried
from the surest to the vaguest; the last one says plainly that nothing known explains it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.economics import model_facts

if TYPE_CHECKING:
    from nexofork.core.markers import MarkerPlan
    from nexofork.core.snapshot import CacheSafeParams
    from nexofork.core.usage import Usage
    from nexofork.engine.params import ForkParams
    from nexofork.providers.provider import MessageStarted

__all__ = ["THRESHOLD", "CacheCheck", "check_first_call"]

THRESHOLD = 0.5
TTL_S = {"5m": 300.0, "1h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCheck:
    """The verdict on a first call."""

    hit_ratio: float
    read: int
    written: int
    fresh: int
    expected_read: int | None
    """What the parent's own call left in the cache, where its usage is known."""
    cause: str | None = None
    """A short name, or None where at least half of the prompt was read."""
    detail: str = ""
    """The cause in words, with what to do."""

    @property
    def broken(self) -> bool:
        """Whether less than half of the prompt was read."""
        return self.cause is not None


def check_first_call(
    params: ForkParams, *, plan: MarkerPlan, started: MessageStarted, led: bool, sent_at: float
) -> CacheCheck:
    """Judge a first call by what its response says was billed.

    Args:
        params: The fork.
        plan: The markers the call had.
        started: How the response began.
        led: Whether the call was the first on its prefix in this process.
        sent_at: Unix time the call was sent at.
    """
    usage, snapshot = started.usage, params.cache_safe
    expected = _expected(snapshot)
    cause, detail = None, ""
    if usage.hit_ratio < THRESHOLD:
        cause, detail = _cause(params, plan=plan, started=started, led=led, sent_at=sent_at)
    return CacheCheck(
        hit_ratio=usage.hit_ratio,
        read=usage.cache_read_tokens,
        written=usage.cache_write_tokens,
        fresh=usage.input_tokens,
        expected_read=expected,
        cause=cause,
        detail=detail,
    )


def _expected(snapshot: CacheSafeParams) -> int | None:
    parent: Usage | None = snapshot.reply.usage if snapshot.reply else None
    if snapshot.write is None:
        return 0
    if parent is None or not parent.prompt_tokens:
        return None
    return parent.cache_read_tokens + parent.cache_write_tokens


def _cause(
    params: ForkParams, *, plan: MarkerPlan, started: MessageStarted, led: bool, sent_at: float
) -> tuple[str, str]:
    snapshot = params.cache_safe
    usage = started.usage
    if snapshot.workspace_id and started.workspace_id and snapshot.workspace_id != started.workspace_id:
        return "workspace", (
            f"The parent's entry is in workspace {snapshot.workspace_id}, this call was billed to "
            f"{started.workspace_id}: use a key of the parent's workspace."
        )
    if params.overrides.request:
        names = ", ".join(params.overrides.request)
        return "override", f"The fork replaced {names} of the parent's request, as allow_cache_break permitted."
    minimum = facts.minimum_tokens if (facts := model_facts(snapshot.model)) else None
    if not usage.cache_read_tokens and not usage.cache_write_tokens:
        limit = f" ({minimum} tokens for {snapshot.model})" if minimum else ""
        return "below_minimum", (
            f"Nothing was read or written: the prompt of {usage.prompt_tokens} tokens is shorter than what the "
            f"provider caches{limit}. Forking so short a context saves nothing."
        )
    if snapshot.write is None:
        return "unmarked", (
            "The parent's request has no cache_control, so it left nothing to read; "
            + ("this call wrote it for its siblings." if led else "mark the parent's last block to share it.")
        )
    if not plan.reads_parent:
        return "lookback", (
            "Nothing within 20 blocks of the parent's newest entry can carry a marker, so it cannot be found: "
            "send the parent's last message as content blocks rather than as a plain string."
        )
    return _timing(snapshot, sent_at=sent_at) or _vague(snapshot)


def _timing(snapshot: CacheSafeParams, *, sent_at: float) -> tuple[str, str] | None:
    assert snapshot.write is not None
    ttl = snapshot.write.ttl
    if snapshot.sent_at is None:
        return "parent_unknown", (
            "It is not known when, or whether, the parent's request was sent; if it was not, there was no entry yet."
        )
    age = sent_at - snapshot.sent_at
    if age > TTL_S[ttl]:
        return "expired", (
            f"The parent's request is {age:.0f} s old and its entry lives {ttl}: fork sooner, or mark with a ttl of 1h."
        )
    return None


def _vague(snapshot: CacheSafeParams) -> tuple[str, str]:
    if not snapshot.exact:
        return "inexact", (
            "The snapshot was recomputed from a mapping, not recorded: what the parent really sent differs. "
            "Record it with capture(client)."
        )
    if snapshot.reply is None:
        return "not_yet_visible", (
            "The parent's response had not been seen to begin, and an entry is readable only from then on."
        )
    return "unexplained", (
        "The bytes, markers, workspace and age all fit. Something between here and the provider may change requests, "
        "or the entry was evicted."
    )
