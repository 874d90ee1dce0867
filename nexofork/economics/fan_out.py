"""How to start a fan-out: all children at once, one first, or a pre-warm first; decided by what each would be billed.

An entry can be read only once the response that writes it begins. Children that start together each pay for whatever
part of their common prefix is not written yet; children that wait pay with time. So waiting has to be worth it: it is
when it lowers the fan-out's input bill by more than `WORTH_WAITING`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from nexofork.economics.prices import USUAL_PROPORTIONS

if TYPE_CHECKING:
    from nexofork.economics.prices import Price

__all__ = ["WORTH_WAITING", "Decision", "FanOut", "Plan", "WarmUp", "decide"]

Plan: TypeAlias = Literal["all_at_once", "leader_first", "prewarm"]
WarmUp: TypeAlias = Literal["auto", "all_at_once", "leader_first", "prewarm"]

WORTH_WAITING = 0.018
"""The share of the bill that waiting must save. Below it nobody waits, and the bill stays within 2% of the lowest."""
_MUCH_FASTER = 0.5
"""A pre-warm is one call more; it has to be answered in this share of the time a leader's first byte takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOut:
    """What is known about a fan-out before it starts."""

    siblings: int | None
    """How many children there are; one that nobody counted may have siblings all the same."""
    shared_tokens: int
    """The prefix all children have in common."""
    warm_tokens: int
    """How much of it is in the cache already."""
    own_tokens: int
    """What one child has for itself."""
    minimum_tokens: int
    """The shortest prefix that is cached at all."""
    ttl: str
    price: Price | None
    """None where it is not known: then the usual proportions are planned with."""
    leader_s: float
    """Expected time until a writing call's response begins."""
    leader_seen: bool
    """Whether that was learnt from such calls; else it is a guess."""
    prewarm_s: float | None
    """Expected time until a pre-warm is answered; None where the request does not allow one."""
    wait_limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How a fan-out starts, with the numbers behind it."""

    plan: Plan
    why: str
    """In words; percentages are of the input bill."""
    siblings: int
    """How many children were planned for; 2 where nobody counted."""
    shared_tokens: int
    warm_tokens: int
    all_at_once: float
    """The input bill of the fan-out, in dollars; in plain input tokens where the price is not known."""
    leader_first: float
    prewarm: float | None
    """None where the request does not allow one."""
    first_byte_s: float
    """How long everybody but the leader is expected to wait, if they do."""
    writes_tail: bool = True
    """Whether first calls write what the children share behind the parent's entry; unwritten it has the plain price."""
    ttl: str | None = None
    """How long what the child writes shall live, where that is not as long as the parent's entries."""

    def to_json(self) -> dict[str, Any]:
        """Return the decision as JSON values, without what does not apply."""
        idle = ("prewarm", "first_byte_s") if self.plan == "all_at_once" else ()
        plain = {name: value for name, value in asdict(self).items() if value is not None and name not in idle}
        if self.writes_tail:
            del plain["writes_tail"]
        rounded = {name: float(f"{value:.4g}") for name, value in plain.items() if isinstance(value, float)}
        return plain | rounded


def decide(fan_out: FanOut, *, asked_for: WarmUp = "auto") -> Decision:
    """Decide how a fan-out starts.

    Args:
        fan_out: What is known about it.
        asked_for: What the caller wants; ``auto`` leaves it to the price.
    """
    plan, why = _by_price(fan_out, *_bills(fan_out, max(fan_out.siblings or 0, 2)))
    writes_tail = True
    if plan != "all_at_once" and asked_for == "auto" and _tail_is_small(fan_out):
        # An entry of an hour costs so much to write that the tail is cheaper unwritten: then nobody has to wait either.
        plan, why, writes_tail = "all_at_once", "the tail is small, and cheaper unwritten than waited for", False
    if fan_out.siblings == 1 and plan != "all_at_once":
        plan, why = "leader_first", "it is alone, and leads for whoever may come"
    children = fan_out.siblings or 2
    at_once, leader, prewarm = _bills(fan_out, children)
    if asked_for != "auto":
        plan, why = asked_for, "as asked for"
        if plan == "prewarm" and prewarm is None:
            plan, why = "leader_first", "as asked for, but the request does not allow a pre-warm"
    # An hour costs twice the input price, which siblings would earn back. A lone child's turns are minutes apart, and
    # each of them renews an entry of five minutes for nothing.
    alone_in_the_cold = fan_out.siblings == 1 and not fan_out.warm_tokens
    return Decision(
        plan=plan,
        why=why,
        siblings=children,
        shared_tokens=fan_out.shared_tokens,
        warm_tokens=fan_out.warm_tokens,
        all_at_once=at_once,
        leader_first=leader,
        prewarm=prewarm,
        ttl="5m" if alone_in_the_cold and fan_out.ttl == "1h" else None,
        writes_tail=writes_tail,
        first_byte_s=fan_out.prewarm_s if plan == "prewarm" and fan_out.prewarm_s is not None else fan_out.leader_s,
    )


def _bills(fan_out: FanOut, children: int) -> tuple[float, float, float | None]:
    """Return what each plan is billed for input."""
    price = fan_out.price or USUAL_PROPORTIONS
    fresh, read, write = price.input / 1e6, price.read / 1e6, price.write(fan_out.ttl) / 1e6
    unwritten = fan_out.shared_tokens - fan_out.warm_tokens
    own = fan_out.own_tokens * fresh
    writer = fan_out.warm_tokens * read + unwritten * write
    reader = fan_out.shared_tokens * read
    prewarm = None if fan_out.prewarm_s is None else writer + children * (reader + own)
    return children * (writer + own), writer + own + (children - 1) * (reader + own), prewarm


def _tail_is_small(fan_out: FanOut) -> bool:
    """Whether a child behind a warm parent may pay the plain price for the tail, however many there are."""
    if not 0 < fan_out.warm_tokens < fan_out.shared_tokens:
        return False
    price = fan_out.price or USUAL_PROPORTIONS
    own = fan_out.own_tokens * price.input
    loose = fan_out.warm_tokens * price.read + (fan_out.shared_tokens - fan_out.warm_tokens) * price.input + own
    return loose <= (fan_out.shared_tokens * price.read + own) * (1 + WORTH_WAITING)


def _by_price(fan_out: FanOut, at_once: float, leader: float, prewarm: float | None) -> tuple[Plan, str]:
    if fan_out.shared_tokens < fan_out.minimum_tokens:
        return "all_at_once", "the shared prefix is shorter than what the provider caches"
    saved = (at_once - leader) / at_once if at_once else 0.0
    if at_once <= leader * (1 + WORTH_WAITING):
        return "all_at_once", f"waiting would save {saved:.1%}"
    if fan_out.leader_seen and fan_out.leader_s > fan_out.wait_limit_s:
        return "all_at_once", f"the first byte is expected after {fan_out.leader_s:.0f} s, which nobody waits for"
    faster = fan_out.prewarm_s is not None and fan_out.prewarm_s < _MUCH_FASTER * fan_out.leader_s
    if faster and prewarm is not None and prewarm <= leader * (1 + WORTH_WAITING):
        return "prewarm", f"waiting saves {saved:.1%}, and a pre-warm is answered much sooner"
    return "leader_first", f"waiting saves {saved:.1%}"
