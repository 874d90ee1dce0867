"""Compare what a child's first call read from the cache with what it should have, and say why not.

A miss is never silent: below half of the prompt read, the check names a cause somebody can act on. Causes are tried
from the surest to the vaguest; the last one says plainly that nothing known explains it.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from nexofork.core.markers import TTL_S
from nexofork.economics.prices import model_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexofork.core.markers import MarkerPlan
    from nexofork.core.snapshot import CacheSafeParams
    from nexofork.core.usage import Usage
    from nexofork.engine.params import ForkParams
    from nexofork.providers.provider import MessageStarted

__all__ = ["THRESHOLD", "CacheCheck", "check_first_call"]

THRESHOLD = 0.5
_LARGEST_MINIMUM = 4096
_VERSION = re.compile(r"-(?:\d{8}|latest)$")


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

    def to_wire(self) -> dict[str, Any]:
        """Return what is not empty, as JSON values."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> CacheCheck:
        """Read what `to_wire` wrote; unknown keys are ignored."""
        known = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        return cls(**{"expected_read": None, **known})

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
        hit_ratio=round(usage.hit_ratio, 6),
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
    if started.model and not _same_model(started.model, params.model):
        return "model", (
            f"{params.model} was asked and {started.model} answered, which has a cache of its own: "
            "something between here and the provider swaps models."
        )
    if not usage.cache_read_tokens and not usage.cache_write_tokens:
        return _uncached(params, plan=plan, prompt_tokens=usage.prompt_tokens)
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


def _uncached(params: ForkParams, *, plan: MarkerPlan, prompt_tokens: int) -> tuple[str, str]:
    """Say why nothing was read and nothing written."""
    if not plan.markers:
        return (
            "unmarked",
            "Neither the parent's request nor the fork's has a cache_control: mark the parent's last block.",
        )
    facts = model_facts(params.model)
    minimum = facts.minimum_tokens if facts else _LARGEST_MINIMUM
    # A token is at least a byte, so what stands before the child's own text is at least this long.
    if prompt_tokens - params.own_bytes >= minimum:
        return "not_cached", (
            f"Nothing was read or written, though the prompt of {prompt_tokens} tokens is long enough: something "
            "between here and the provider removes cache_control, or the server does not cache."
        )
    limit = f" ({minimum} tokens for {params.model})" if facts else ""
    return "below_minimum", (
        f"Nothing was read or written: the prompt of {prompt_tokens} tokens is shorter than what the provider "
        f"caches{limit}. Forking so short a context saves nothing."
    )


def _same_model(answered: str, asked: str) -> bool:
    # An alias is answered under its dated name.
    answered, asked = _VERSION.sub("", answered), _VERSION.sub("", asked)
    return answered in asked or asked in answered


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
    billed = snapshot.reply.usage if snapshot.reply else None
    if (
        ttl == "1h"
        and age > TTL_S["5m"]
        and billed
        and billed.cache_write_5m_tokens
        and not billed.cache_write_1h_tokens
    ):
        return "ttl_stripped", (
            f"The parent asked for an entry of 1h and was billed for one of 5m, {age:.0f} s ago: "
            "something between it and the provider removes the ttl."
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
