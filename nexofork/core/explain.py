"""Say why a request does not read what an earlier one cached: where they part, what it costs, and what to do.

``explain(a, b)`` takes what was cached (the parent) and what came later (the child). Bytes are compared first. Where
nothing differs, the markers, the length and what is known about workspace and time are looked at. The names of causes
are those of the warning on a run.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from nexofork.core.divergence import LOSES, differences
from nexofork.core.likely_causes import likely_cause
from nexofork.core.markers import LOOKBACK, MAX_MARKERS, TTL_S, read_markings
from nexofork.core.side_by_side import Side
from nexofork.core.snapshot import CacheSafeParams

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nexofork.core.divergence import Difference
    from nexofork.core.markers import Markings
    from nexofork.core.spans import Span
    from nexofork.core.usage import Usage

__all__ = ["Divergence", "Explanation", "Finding", "Sent", "Told", "explain"]

_BYTES_PER_TOKEN = 4.0
_LEAD_IN_BYTES = 32
_SHOWN_BYTES = 72
_SOON_S = 10.0
"""Within this time after the parent's request its response may not have begun."""
_TOLD_BY_API = frozenset({"model", "tools", "system", "messages"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request with what is known about its sending."""

    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Its request headers; empty where they are not known."""
    workspace_id: str | None = None
    sent_at: float | None = None
    """Unix time."""
    usage: Usage | None = None
    """What it was billed for; None where it was not answered yet, or nobody knows."""
    answered: bool = True
    """Whether its response is known to have begun."""


Told: TypeAlias = bytes | CacheSafeParams | Sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that keeps a request from reading the earlier one's entry."""

    cause: str
    """A stable short name: the one that the warning on a run has."""
    says: str
    todo: str = ""
    harmless: bool = False
    """Whether nothing that was cached is lost by it: there was nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first place where the later request is not the earlier one."""

    dimension: str
    path: str
    offset_a: int | None
    """Byte offset in the earlier body; None for a header, or where it has nothing there."""
    offset_b: int | None
    shown_a: str
    """What stands there, with some of what comes before it; cuts are shown as ``…``."""
    shown_b: str
    loses: tuple[str, ...]
    """Which levels of the cache are lost, at least in part."""
    likely_cause: str
    """A stable short name out of `likely_causes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The outcome of a comparison."""

    divergence: Divergence | None = None
    """Set too where the requests part only behind what was cached: then it is no finding."""
    findings: tuple[Finding, ...] = ()
    """Everything that was found, the surest first."""
    differing: tuple[str, ...] = ()
    """Every dimension that differs, in the order in which they lose the cache."""
    tokens_cached: int = 0
    """How much the earlier request left in the cache, or would have with a marker on its last block."""
    tokens_lost: int = 0
    tokens_kept: int = 0
    """What can still be read of it."""
    estimated: bool = True
    """Whether tokens are guessed from bytes: no bill was given."""

    @property
    def cause(self) -> str | None:
        """The name of the surest finding; None where nothing was found."""
        return self.findings[0].cause if self.findings else None

    @property
    def loses(self) -> bool:
        """Whether anything that was cached cannot be read."""
        return any(not finding.harmless for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {"cause": self.cause, "loses": self.loses, **asdict(self)}


def explain(
    a: Told,
    b: Told,
    *,
    headers_a: Mapping[str, str] | None = None,
    headers_b: Mapping[str, str] | None = None,
    minimum_tokens: int | None = None,
) -> Explanation:
    """Explain what a later request can read of what an earlier one cached.

    Args:
        a: The request that was cached.
        b: The one that came later.
        headers_a: The earlier one's request headers, where `a` does not hold them.
        headers_b: The later one's.
        minimum_tokens: The shortest prefix the model's provider caches, where it is known.

    Raises:
        BadRequestBody: One of them is not a Messages request.
    """
    one, other = _sent(a, headers_a), _sent(b, headers_b)
    ours, theirs = Side.of(one.body, one.headers), Side.of(other.body, other.headers)
    markings, reading = read_markings(ours.layout), read_markings(theirs.layout)
    scale = _Scale(one, markings)
    found = list(differences(ours, theirs))
    findings = [*_other_workspace(one, other), *_too_many(reading, theirs)]
    divergence, kept = None, 0 if findings else scale.cached
    if found:
        divergence, finding = _diverging(found[0], ours, theirs)
    if divergence and not (markings.write and found[0].position > markings.write.position):
        findings.append(finding)
        kept = min(kept, scale.before(found[0].position, _reads(reading)))
    elif marked := list(_markers(markings, reading, ours, scale, minimum_tokens)):
        findings += marked
        kept = 0
    if not findings and (timed := list(_timing(one, other, markings))):
        findings += timed
        kept = 0
    if findings and other.usage and other.usage.prompt_tokens:
        kept = max(min(scale.cached, other.usage.cache_read_tokens), 0)
    findings += _ttl(markings, reading)
    dimensions = [difference.dimension for difference in found]
    dimensions += [name for name in ("ttl", "workspace") if any(name in finding.cause for finding in findings)]
    lost = scale.cached - kept if findings and not findings[0].harmless else 0
    return Explanation(
        divergence=divergence,
        findings=tuple(findings),
        differing=tuple(dict.fromkeys(dimensions)),
        tokens_cached=scale.cached,
        tokens_lost=lost,
        tokens_kept=kept,
        estimated=scale.estimated,
    )


def _sent(told: Told, headers: Mapping[str, str] | None) -> Sent:
    match told:
        case bytes():
            told = Sent(body=told)
        case CacheSafeParams():
            told = Sent(
                body=told.body,
                headers=dict(told.headers),
                workspace_id=told.workspace_id,
                sent_at=told.sent_at,
                usage=told.reply.usage if told.reply and told.reply.usage.prompt_tokens else None,
                answered=told.reply is not None,
            )
    return replace(told, headers=dict(headers)) if headers else told


class _Scale:
    """Turns positions of the earlier request into tokens."""

    def __init__(self, sent: Sent, markings: Markings) -> None:
        ends, total = [], 0
        for block in markings.blocks:
            total += block.span.end - block.span.start - sum(gap.end - gap.start for gap in block.markers)
            ends.append(total)
        self._ends = ends
        self._entries = sorted({*markings.held, markings.write.position} if markings.write else range(len(ends)))
        last = self._bytes_up_to(self._entries[-1]) if self._entries else 0
        billed = sent.usage.cache_read_tokens + sent.usage.cache_write_tokens if sent.usage else 0
        self.estimated = not (billed and last)
        self._rate = 1 / _BYTES_PER_TOKEN if self.estimated else billed / last
        self.cached = round(last * self._rate)

    def _bytes_up_to(self, position: int) -> int:
        return self._ends[position]

    def before(self, position: int, reads: set[int]) -> int:
        """Return the tokens of the longest entry before a position that one of these markers finds."""
        entries = [
            entry for entry in self._entries if entry < position and any(0 <= read - entry < LOOKBACK for read in reads)
        ]
        return round(self._bytes_up_to(entries[-1]) * self._rate) if entries else 0


def _diverging(found: Difference, a: Side, b: Side) -> tuple[Divergence, Finding]:
    likely = likely_cause(found, a, b)
    dimension = {"images": "messages", "citations": "messages"}.get(found.dimension, found.dimension)
    divergence = Divergence(
        dimension=dimension,
        path=found.path,
        offset_a=None if found.at_a is None else found.at_a.start,
        offset_b=None if found.at_b is None else found.at_b.start,
        shown_a=_shown(a.body, found.at_a, found.leaf_a),
        shown_b=_shown(b.body, found.at_b, found.leaf_b),
        loses=LOSES[found.dimension],
        likely_cause=likely.name,
    )
    cause = f"{dimension}_changed" if found.dimension in _TOLD_BY_API else "parameters_changed"
    return divergence, Finding(cause="respelt" if found.respelt else cause, says=likely.says, todo=likely.todo)


def _shown(body: bytes, span: Span | None, leaf: Any) -> str:
    """Return what stands at a place, on one line, with what leads up to it."""
    if span is None:
        return "(nothing)" if leaf is None else _printable(str(leaf))
    if span.start == span.end:
        return "(nothing)"
    start, end = max(0, span.start - _LEAD_IN_BYTES), min(span.end, span.start + _SHOWN_BYTES)
    while start > 0 and body[start] & 0xC0 == 0x80:  # not in the middle of a character
        start -= 1
    while end < len(body) and body[end] & 0xC0 == 0x80:
        end += 1
    cut = "…" if start else "", "…" if end < span.end else ""
    return f"{cut[0]}{_printable(body[start:end].decode('utf-8', 'replace'))}{cut[1]}"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _other_workspace(a: Sent, b: Sent) -> Iterable[Finding]:
    if a.workspace_id and b.workspace_id and a.workspace_id != b.workspace_id:
        yield Finding(
            cause="workspace",
            says=f"The first was billed to workspace {a.workspace_id}, the second to {b.workspace_id}: "
            "they share no cache.",
            todo="Use a key of the parent's workspace.",
        )


def _too_many(b: Markings, theirs: Side) -> Iterable[Finding]:
    count = len(b.held) + (theirs.layout.automatic_ttl is not None)
    if count > MAX_MARKERS:
        yield Finding(
            cause="too_many_markers",
            says=f"The second has {count} cache_control markers; the API refuses more than {MAX_MARKERS}.",
            todo="Keep those at the newest entry of the parent's, at the last shared block and at the end.",
        )


def _markers(a: Markings, b: Markings, ours: Side, scale: _Scale, minimum_tokens: int | None) -> Iterable[Finding]:
    if a.write is None:
        yield Finding(
            cause="unmarked",
            says="The first has no cache_control, so it left nothing to read.",
            todo="Mark the parent's last block.",
            harmless=True,
        )
        return
    if minimum_tokens is not None and scale.cached < minimum_tokens:
        yield Finding(
            cause="below_minimum",
            says=f"The first's prefix of about {scale.cached:,} tokens is shorter than the {minimum_tokens:,} that "
            f"{ours.layout.model} caches.",
            todo="Nothing is lost; so short a context is not worth sharing.",
            harmless=True,
        )
        return
    entries = {*a.held, a.write.position}
    reads = _reads(b)
    if not reads:
        yield Finding(
            cause="unmarked",
            says="The second has no cache_control, so nothing is looked up for it.",
            todo="Mark a block at or shortly behind the parent's last marked one.",
        )
    elif not any(0 <= read - a.write.position < LOOKBACK for read in reads):
        nearest = min((read - a.write.position for read in reads if read >= a.write.position), default=None)
        earlier = any(0 <= read - entry < LOOKBACK for read in reads for entry in entries)
        where = (
            f"The second's next marker is {nearest} blocks behind the first's newest entry, and the provider looks "
            f"back over {LOOKBACK}."
            if nearest is not None
            else "The second has no marker at or behind the first's newest entry."
        )
        yield Finding(
            cause="lookback",
            says=where + (" An older, shorter entry can still be read." if earlier else ""),
            todo="Keep a marker where the parent last wrote.",
        )


def _reads(markings: Markings) -> set[int]:
    """Return the positions from which the provider looks back."""
    return {*markings.held, *([markings.write.position] if markings.write else [])}


def _ttl(a: Markings, b: Markings) -> Iterable[Finding]:
    if a.write is None or b.write is None or a.write.ttl == b.write.ttl:
        return
    yield Finding(
        cause="ttl_differs",
        says=f"The first writes for {a.write.ttl}, the second for {b.write.ttl}: what the second adds "
        + ("is gone after five minutes." if b.write.ttl == "5m" else "costs more, and 1h may not follow 5m."),
        todo="Give the child's markers the parent's ttl.",
    )


def _timing(a: Sent, b: Sent, markings: Markings) -> Iterable[Finding]:
    """Explain a miss of equal bytes; without a bill that shows one, only what is certain is said."""
    assert markings.write is not None, "an unmarked request was found out before"
    ttl = markings.write.ttl
    missed = b.usage is not None and b.usage.prompt_tokens > 0 and b.usage.hit_ratio < 0.5
    if b.usage is not None and b.usage.prompt_tokens and not missed:
        return
    age = None if a.sent_at is None or b.sent_at is None else b.sent_at - a.sent_at
    if age is not None and age > TTL_S[ttl]:
        yield Finding(
            cause="expired",
            says=f"The second was sent {age:.0f} s after the first, whose entry lives {ttl}.",
            todo="Fork sooner, or mark with a ttl of 1h.",
        )
    elif age is not None and age > TTL_S["5m"] and _stripped(a, ttl):
        yield Finding(
            cause="ttl_stripped",
            says=f"The first asked for an entry of 1h and was billed for one of 5m, {age:.0f} s before the second.",
            todo="Look for a proxy that removes the ttl.",
        )
    elif (age is not None and age < 0) or (missed and (not a.answered or (age is not None and age < _SOON_S))):
        yield Finding(
            cause="not_yet_visible",
            says="The second was sent before the first's response can be known to have begun, and an entry is "
            "readable only from then on.",
            todo="Wait for the first byte of the first before sending the second.",
        )
    elif missed:
        yield Finding(
            cause="unexplained",
            says="Bytes, markers and what else is known all fit, and yet the second read less than half of its prompt: "
            "the entry was evicted, or something on the way changes requests.",
            todo="Compare what the provider received, with its request log or its cache diagnostics.",
        )


def _stripped(a: Sent, ttl: str) -> bool:
    return bool(ttl == "1h" and a.usage and a.usage.cache_write_5m_tokens and not a.usage.cache_write_1h_tokens)
