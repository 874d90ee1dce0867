"""The bills of one fan-out's children, in every way they could be run.

A child that finds nothing cached writes the shared prefix, one that finds it reads it; on its own a child pays fresh,
or caches for its own later turns where that is cheaper.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

from nexofork.core.boilerplate import text_block
from nexofork.core.prompt import ForkBase
from nexofork.economics.bills import Bill, conversation, part, uncached_conversation
from nexofork.economics.fan_out import FanOut, decide
from nexofork.economics.outlook import cache_state, tokens_per_byte, ttl_of, usual_first_byte_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexofork.core.snapshot import CacheSafeParams
    from nexofork.core.usage import Usage
    from nexofork.economics.bills import Tariff
    from nexofork.economics.fan_out import Decision, Plan

__all__ = ["MOST_CHILDREN", "Forecast"]

MOST_CHILDREN = 100_000
_WAIT_LIMIT_S = 30.0
"""How long a child waits for its leader unless its host says otherwise."""
_SAME = 1e-9


class Forecast:
    """The children of one estimate, in tokens."""

    def __init__(
        self,
        snapshot: CacheSafeParams,
        directives: Sequence[str],
        *,
        tariff: Tariff,
        turns: int,
        output: int,
        now: float,
        boilerplate: bool,
    ) -> None:
        base = ForkBase(snapshot, boilerplate=boilerplate)
        plan = base.child(directives[0]).plan
        rate, state = tokens_per_byte(snapshot), cache_state(snapshot, now=now)
        self.tariff = tariff
        self.turns = turns
        self.output = min(output, max(snapshot.max_tokens, 0))
        self.ttl = ttl_of(snapshot)
        self.prefix = round(len(snapshot.body) * rate)
        self.tail = round(base.tail_bytes * rate)
        self.directives = tuple(round(len(text_block(directive)) * rate) for directive in directives)
        self.warm, self.cache_why = state.tokens, state.why
        if state.tokens and not plan.reads_parent:
            self.warm, self.cache_why = 0, "no marker of the children can reach the parent's entry"
        together = self.prefix + self.tail
        # Where nothing of the tail takes a marker, what is shared ends where the parent wrote.
        self.shared = together if base.shared_end is not None else min(state.tokens or self.prefix, together)
        self.own = tuple(together - self.shared + tokens for tokens in self.directives)
        self.warm = min(self.warm, self.shared)
        self.cached = bool(plan.markers) and self.shared >= tariff.minimum_tokens
        self.prewarms = base.allows_prewarm
        self._bills: dict[tuple[str, int], Bill] = {}

    def decide(self, children: int) -> Decision:
        """Decide as the runtime would that has not learnt yet how soon calls are answered."""
        facts, waits_s = self.tariff.facts, usual_first_byte_s(self.shared - self.warm)
        return decide(
            FanOut(
                siblings=children,
                shared_tokens=self.shared,
                warm_tokens=self.warm,
                own_tokens=round(sum(self.own) / len(self.own)),
                minimum_tokens=self.tariff.minimum_tokens,
                ttl=self.ttl,
                price=facts.price_for(self.shared) if facts else None,
                leader_s=waits_s,
                leader_seen=False,
                prewarm_s=waits_s if self.prewarms else None,
                wait_limit_s=_WAIT_LIMIT_S,
            )
        )

    def bill(self, plan: Plan, own: Mapping[int, int] | None = None) -> Bill:
        """Return the children's bill under a plan.

        Args:
            plan: How they start.
            own: How many children have how many tokens of their own; those of the estimate unless said.
        """
        counts = Counter(own) if own else Counter(self.own)
        total = Bill(priced=self.tariff.facts is not None)
        writer = "lone" if counts.total() == 1 and not self.warm else "writer"
        if self.cached and plan == "leader_first":
            leader = next(iter(counts))
            counts[leader] -= 1
            total += self._child(writer, leader)
        if self.cached and plan == "prewarm":
            total += self.tariff.bill([part(read=self.warm, written=self.shared - self.warm, ttl=self.ttl)])
        if plan == "all_at_once" and not self.decide(counts.total()).writes_tail:
            writer = "loose"
        role = "uncached" if not self.cached else writer if plan == "all_at_once" else "reader"
        for tokens, children in counts.items():
            total += self._child(role, tokens) * children
        return total

    def unshared(self) -> Bill:
        """Return the bill of the same children, each on its own."""
        total = Bill(priced=self.tariff.facts is not None)
        for tokens, children in Counter(self.own).items():
            total += self._child("alone", tokens) * children
        return total

    def ideal(self) -> Bill:
        """Return the bill with the prefix written once; where one call is all there is, with nothing written."""
        if self.cached and len(self.own) == self.turns == 1:
            return self.tariff.bill(
                [part(read=self.warm, fresh=self.shared - self.warm + self.own[0], output=self.output)]
            )
        return self.bill("leader_first")

    def break_even(self) -> int | None:
        """Return the least number of children from which on sharing is cheaper than not to; None where there is none.

        Two facts make a few looks enough. From some number on the fan-out starts as the largest one does, and before it
        all children are writers, each with the same bill: then 2 stands for all of them but a lone one, which writes
        for a shorter time. And among fan-outs that start alike each further child costs the same, so that among those
        that pay for `MOST_CHILDREN` there is one crossing at most.
        """
        if not self.cached or not self.pays(MOST_CHILDREN):
            return None
        last = self._start(MOST_CHILDREN)
        numbers = range(MOST_CHILDREN + 1)
        alike = bisect_left(numbers, True, lo=2, key=lambda children: self._start(children) == last)
        paying = bisect_left(numbers, True, lo=alike, key=self.pays)
        if paying > alike or not self.pays(2):
            return paying
        return 1 if self.pays(1) else 2

    def pays(self, children: int) -> bool:
        """Whether so many children are cheaper together than each on its own."""
        own = round(sum(self.own) / len(self.own))
        shared = self.bill(self.decide(children).plan, {own: children}).input_cost
        return shared < children * self._child("alone", own).input_cost * (1 - _SAME)

    def _start(self, children: int) -> tuple[Plan, bool]:
        decision = self.decide(children)
        return decision.plan, decision.writes_tail

    def _child(self, role: str, own: int) -> Bill:
        if (role, own) not in self._bills:
            self._bills[role, own] = self._child_bill(role, own)
        return self._bills[role, own]

    def _child_bill(self, role: str, own: int) -> Bill:
        if role == "alone":
            whole = self.shared + own
            first = part(written=self.shared, fresh=own, ttl=self.ttl, output=self.output)
            if not self.cached:
                first = part(fresh=whole, output=self.output)
            fresh = self.tariff.bill(uncached_conversation(whole, turns=self.turns, output=self.output))
            return min(fresh, self._conversation(first, self.ttl), key=lambda bill: bill.input_cost)
        counts = {
            "lone": {"written": self.shared, "fresh": own},
            "loose": {"read": self.warm, "fresh": self.shared - self.warm + own},
            "writer": {"read": self.warm, "written": self.shared - self.warm, "fresh": own},
            "reader": {"read": self.shared, "fresh": own},
            "uncached": {"fresh": self.shared + own},
        }[role]
        ttl = "5m" if role == "lone" else self.ttl  # see `fan_out.decide`
        return self._conversation(part(**counts, ttl=ttl, output=self.output), ttl)

    def _conversation(self, first: Usage, ttl: str) -> Bill:
        calls = conversation(first, turns=self.turns, ttl=ttl, minimum_tokens=self.tariff.minimum_tokens)
        return self.tariff.bill(calls)
