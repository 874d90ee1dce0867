"""Compare what a child's first call read from the cache with what it should have, and say why not.

A miss is never silent: below half of the prompt read, the check names a cause somebody can act on. Causes are tried
from the surest to the vaguest; the last one says plainly that nothing known explains it. A first call asks the API what
changed since the parent's request, which tells a changed prompt from an entry that is gone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from nexofork.core.markers import TTL_S
from nexofork.core.query_source import is_named
from nexofork.economics.prices import model_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nexofork.core.markers import MarkerPlan
    from nexofork.core.snapshot import CacheSafeParams
    from nexofork.core.usage import Usage
    from nexofork.providers.provider import MessageStarted
    from nexofork.run.params import ForkParams

__all__ = ["SAME", "THRESHOLD", "CacheCheck", "check_first_call"]

THRESHOLD = 0.5
_LARGEST_MINIMUM = 4096
_ALL = 0.9
_CHANGED = {
    "model_changed": "model",
    "tools_changed": "tool list",
    "system_changed": "system prompt",
    "messages_changed": "history",
}
SAME = "same"
"""What a diagnosis is called that found nothing changed."""
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
    diagnosis: str | None = None
    """On a miss, the API's own word for what changed since the parent's request; ``same`` where nothing did."""

    def to_wire(self) -> dict[str, Any]:
        """Return what is not empty and the call's usage does not say, as JSON values."""
        return {name: value for name in _VERDICT if (value := getattr(self, name)) not in (None, "")}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], usage: Usage) -> CacheCheck:
        """Read what `to_wire` wrote about a call with this usage; unknown keys are ignored."""
        known = {name: data[name] for name in _VERDICT if name in data}
        return cls(**{"expected_read": None, **known}, **_billed(usage))

    @property
    def broken(self) -> bool:
        """Whether less than half of the prompt was read."""
        return self.cause is not None


_VERDICT = ("expected_read", "cause", "detail", "diagnosis")


def _billed(usage: Usage) -> dict[str, Any]:
    return {
        "hit_ratio": round(usage.hit_ratio, 6),
        "read": usage.cache_read_tokens,
        "written": usage.cache_write_tokens,
        "fresh": usage.input_tokens,
    }


def check_first_call(
    params: ForkParams, *, plan: MarkerPlan, started: MessageStarted, decision: Mapping[str, Any], sent_at: float
) -> CacheCheck:
    """Judge a first call by what its response says was billed.

    Args:
        params: The fork.
        plan: The markers the call had.
        started: How the response began.
        decision: How the fan-out was started, and which part this call had in it.
        sent_at: Unix time the call was sent at.
    """
    usage = started.usage
    expected = _expected(params.cache_safe)
    diagnosis = _diagnosis(started.diagnostics)
    cause, detail = None, ""
    if usage.hit_ratio < THRESHOLD and not _begins(params, usage, decision):
        call = _Call(
            params=params,
            plan=plan,
            started=started,
            decision=decision,
            sent_at=sent_at,
            diagnosis=diagnosis,
            expected=expected,
        )
        cause, detail = next(found for look in _LOOKS if (found := look(call)) is not None)
    return CacheCheck(
        **_billed(usage),
        expected_read=expected,
        cause=cause,
        detail=detail,
        diagnosis=diagnosis if cause else None,
    )


def _begins(params: ForkParams, usage: Usage, decision: Mapping[str, Any]) -> bool:
    """Whether a named agent had nothing to read: no parent sent its prefix, so the first of its siblings writes it."""
    shared, warm = decision.get("shared_tokens") or 0, decision.get("warm_tokens") or 0
    cold = decision.get("role") in ("leader", "free") and 2 * warm <= shared
    return is_named(params.query_source) and (cold or usage.cache_read_tokens > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """Everything a cause can be found in."""

    params: ForkParams
    plan: MarkerPlan
    started: MessageStarted
    decision: Mapping[str, Any]
    sent_at: float
    diagnosis: str | None
    expected: int | None

    @property
    def snapshot(self) -> CacheSafeParams:
        return self.params.cache_safe

    @property
    def led(self) -> bool:
        """Whether it was the first on its prefix, and its siblings waited for it."""
        return self.decision.get("role") == "leader"

    @property
    def beside_siblings(self) -> bool:
        """Whether siblings wrote the same unwritten prefix at the same time."""
        shared, warm = self.decision.get("shared_tokens") or 0, self.decision.get("warm_tokens") or 0
        return (self.params.siblings or 1) > 1 and self.decision.get("role") in ("free", "alone") and 2 * warm < shared

    @property
    def age_s(self) -> float | None:
        """How long before this call the parent's request was sent."""
        return None if self.snapshot.sent_at is None else self.sent_at - self.snapshot.sent_at


_Verdict: TypeAlias = tuple[str, str]


def _diagnosis(said: Mapping[str, Any] | None) -> str | None:
    """Return the API's own word for what changed since the parent's request; ``same`` where nothing did."""
    if said is None:
        return None
    reason = said.get("cache_miss_reason")
    if not reason:
        return SAME
    kind = reason.get("type") if isinstance(reason, dict) else None
    return kind if isinstance(kind, str) else None


def _expected(snapshot: CacheSafeParams) -> int | None:
    parent: Usage | None = snapshot.reply.usage if snapshot.reply else None
    if snapshot.write is None:
        return 0
    if parent is None or not parent.prompt_tokens:
        return None
    return parent.cache_read_tokens + parent.cache_write_tokens


def _workspace(call: _Call) -> _Verdict | None:
    ours, theirs = call.snapshot.workspace_id, call.started.workspace_id
    if not (ours and theirs and ours != theirs):
        return None
    return "workspace", (
        f"The parent's entry is in workspace {ours}, this call was billed to {theirs}: "
        "use a key of the parent's workspace."
    )


def _override(call: _Call) -> _Verdict | None:
    names = ", ".join(call.params.overrides.request)
    if not names:
        return None
    return "override", f"The fork replaced {names} of the parent's request, as allow_cache_break permitted."


def _other_model(call: _Call) -> _Verdict | None:
    answered, asked = call.started.model, call.params.model
    if not answered or _same_model(answered, asked):
        return None
    return "model", (
        f"{asked} was asked and {answered} answered, which has a cache of its own: "
        "something between here and the provider swaps models."
    )


def _uncached(call: _Call) -> _Verdict | None:
    """Say why nothing was read and nothing written."""
    usage, params = call.started.usage, call.params
    if usage.cache_read_tokens or usage.cache_write_tokens:
        return None
    if not call.plan.markers:
        return (
            "unmarked",
            "Neither the parent's request nor the fork's has a cache_control: mark the parent's last block.",
        )
    facts = model_facts(params.model)
    minimum = facts.minimum_tokens if facts else _LARGEST_MINIMUM
    # A token is at least a byte, so what stands before the child's own text is at least this long.
    if usage.prompt_tokens - params.own_bytes >= minimum:
        return "not_cached", (
            f"Nothing was read or written, though the prompt of {usage.prompt_tokens} tokens is long enough: something "
            "between here and the provider removes cache_control, or the server does not cache."
        )
    limit = f" ({minimum} tokens for {params.model})" if facts else ""
    return "below_minimum", (
        f"Nothing was read or written: the prompt of {usage.prompt_tokens} tokens is shorter than what the provider "
        f"caches{limit}. Forking so short a context saves nothing."
    )


def _changed(call: _Call) -> _Verdict | None:
    """Believe the API where it compared this request with the parent's and names what differs."""
    part = _CHANGED.get(call.diagnosis or "")
    if part is None:
        return None
    lost = _missed(call.started.diagnostics)
    why = (
        "the snapshot was recomputed and is not what was sent; record it with capture(client)"
        if not call.snapshot.exact
        else "either the snapshot is not what the parent sent, or something between here and the provider rewrites "
        "requests. Record the parent with capture(client), and compare what was sent with `nexofork explain`"
    )
    return str(call.diagnosis), f"The API finds another {part} than in the parent's request{lost}: {why}."


def _unmarked(call: _Call) -> _Verdict | None:
    if call.snapshot.write is not None:
        return None
    if call.beside_siblings:
        return _at_once(call)
    return "unmarked", (
        "The parent's request has no cache_control, so it left nothing to read; "
        + ("this call wrote it for its siblings." if call.led else "mark the parent's last block to share it.")
    )


def _marked_early(call: _Call) -> _Verdict | None:
    """See that all was read that the parent had cached, and that it was not much."""
    read = call.started.usage.cache_read_tokens
    if not call.expected or read < _ALL * call.expected:
        return None
    return "marked_early", (
        f"All {call.expected} tokens that the parent cached were read; most of the prompt stands behind its last "
        "marker. Mark the parent's last block to share more."
    )


def _lookback(call: _Call) -> _Verdict | None:
    if call.plan.reads_parent:
        return None
    return "lookback", (
        "Nothing within 20 blocks of the parent's newest entry can carry a marker, so it cannot be found: "
        "send the parent's last message as content blocks rather than as a plain string."
    )


def _expired(call: _Call) -> _Verdict | None:
    snapshot, age = call.snapshot, call.age_s
    assert snapshot.write is not None, "an unmarked parent was found out before"
    ttl = snapshot.write.ttl
    if age is None:
        return None
    if age > TTL_S[ttl]:
        return "expired", (
            f"The parent's request is {age:.0f} s old and its entry lives {ttl}: fork sooner, or mark with a ttl of 1h."
        )
    billed = snapshot.reply.usage if snapshot.reply else None
    stripped = billed and billed.cache_write_5m_tokens and not billed.cache_write_1h_tokens
    if ttl == "1h" and age > TTL_S["5m"] and stripped:
        return "ttl_stripped", (
            f"The parent asked for an entry of 1h and was billed for one of 5m, {age:.0f} s ago: "
            "something between it and the provider removes the ttl."
        )
    return None


def _unknown_parent(call: _Call) -> _Verdict | None:
    if call.diagnosis == "previous_message_not_found":
        return "parent_unknown", (
            "The API does not know the parent's response: it was given by another provider, to a key of another "
            "workspace, or too long ago. Check that this key belongs to the parent's workspace."
        )
    if call.beside_siblings and (call.age_s is None or call.snapshot.reply is None):
        return _at_once(call)
    if call.age_s is not None:
        return None
    if call.diagnosis == SAME:
        return "expired", (
            "The API finds the parent's request unchanged, and it is not known when it was sent: its entry has most "
            "likely run out. Fork sooner, or mark with a ttl of 1h."
        )
    return "parent_unknown", (
        "It is not known when, or whether, the parent's request was sent; if it was not, there was no entry yet."
    )


def _parameters(call: _Call) -> _Verdict | None:
    if call.diagnosis != "unavailable":
        return None
    return "parameters_changed", (
        "The API finds the same model, tools, system prompt and messages as in the parent's request, but does not call "
        "the requests comparable: most likely thinking, effort, tool_choice or the betas differ from what the parent "
        "sent. Record the parent with capture(client), and compare what was sent with `nexofork explain`."
    )


def _recomputed(call: _Call) -> _Verdict | None:
    if call.snapshot.exact or call.diagnosis == SAME:
        return None
    return "inexact", (
        "The snapshot was recomputed from a mapping, not recorded: what the parent really sent differs. "
        "Record it with capture(client)."
    )


def _invisible(call: _Call) -> _Verdict | None:
    if call.snapshot.reply is None:
        return "not_yet_visible", (
            "The parent's response had not been seen to begin, and an entry is readable only from then on: "
            "fork when its first byte has come."
        )
    return _at_once(call) if call.beside_siblings else None


def _at_once(call: _Call) -> _Verdict:
    how = "went on alone when it had waited long enough" if call.decision.get("role") == "alone" else "did not wait"
    return "not_yet_visible", (
        f"This call and its {(call.params.siblings or 1) - 1} siblings began on a prefix that nobody had written, and "
        f"it {how}: an entry is readable only once the response that writes it begins. Let one go first "
        "(warm_up leader_first), or fork while the parent's entry is warm."
    )


def _last_resort(call: _Call) -> _Verdict:
    if call.diagnosis == SAME:
        return "evicted", (
            "The API finds the parent's request unchanged, and markers, workspace and age fit: the provider dropped "
            "the entry early. Nothing to do but to fork again."
        )
    return "unexplained", (
        "The bytes, markers, workspace and age all fit. Something between here and the provider may change requests, "
        "or the entry was evicted."
    )


_LOOKS: tuple[Callable[[_Call], _Verdict | None], ...] = (
    _workspace,
    _override,
    _other_model,
    _uncached,
    _changed,
    _unmarked,
    _marked_early,
    _lookback,
    _expired,
    _unknown_parent,
    _parameters,
    _recomputed,
    _invisible,
    _last_resort,
)
"""From the surest to the vaguest; the last one always has something to say."""


def _missed(said: Mapping[str, Any] | None) -> str:
    reason = (said or {}).get("cache_miss_reason") or {}
    tokens = reason.get("cache_missed_input_tokens")
    return f", which lost {tokens} cached tokens" if isinstance(tokens, int) and tokens > 0 else ""


def _same_model(answered: str, asked: str) -> bool:
    # An alias is answered under its dated name.
    answered, asked = _VERSION.sub("", answered), _VERSION.sub("", asked)
    return answered in asked or asked in answered
