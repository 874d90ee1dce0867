from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nexofork import CacheSafeParams, Estimate, Reply, estimate
from nexofork.core.boilerplate import BOILERPLATE
from nexofork.economics.bills import Tariff
from nexofork.economics.forecast import MOST_CHILDREN, Forecast
from nexofork.economics.prices import load_prices, model_facts
from nexofork.errors import AlreadyAFork, BadDirective, ForkRefused
from tests.support.conversation import MARK, MARK_1H, request
from tests.unit.economics.test_prices import entry, written

if TYPE_CHECKING:
    from pathlib import Path

OPUS = "claude-opus-5-5"
IN, READ, OUT = 4e-6, 0.2e-6, 20e-6
WRITE = {"5m": 5e-6, "1h": 8e-6}
SENT_AT = 1_790_000_000.0


def snapshot(
    tokens: int = 100_000,
    *,
    mark: dict[str, str] | None = MARK,
    warm: bool = True,
    usage: dict[str, int] | None = None,
    model: str = OPUS,
    **changes: Any,
) -> CacheSafeParams:
    """A parent's call that was billed for so many tokens, all of them written to the cache."""
    body = json.dumps(request(tokens=tokens, mark=mark, model=model, **changes), separators=(",", ":")).encode()
    bill = {"input_tokens": 0, "cache_creation_input_tokens": tokens} if usage is None else usage
    said = {"role": "assistant", "content": [{"type": "text", "text": "I fork."}], "usage": bill}
    return CacheSafeParams.from_parent_request(body, reply=Reply.from_response(said), sent_at=SENT_AT if warm else None)


def ask(parent: CacheSafeParams, children: int = 3, **more: Any) -> Estimate:
    """An estimate made right after the parent's call."""
    return estimate(parent, ["Look at the router."] * children, **{"now": SENT_AT + 1, **more})


def saves(found: Estimate) -> bool:
    """Whether sharing is cheaper for just these children."""
    return found.shared.input_cost < found.unshared.input_cost * (1 - 1e-9)


def by_hand(found: Estimate, *, ttl: str, warm: int, plan: str) -> float:
    """What the children's first calls cost on Opus 5.5, worked out apart."""
    shared, own, children = found.prefix_tokens + found.tail_tokens, found.directive_tokens[0], found.children
    writer = warm * READ + (shared - warm) * WRITE[ttl] + own * IN
    reader = shared * READ + own * IN
    return children * writer if plan == "all_at_once" else writer + (children - 1) * reader


@pytest.mark.parametrize("children", [1, 2, 3, 8, 20, 100])
@pytest.mark.parametrize(("mark", "ttl"), [(MARK, "5m"), (MARK_1H, "1h")])
def test_a_cold_fan_out_writes_once(children: int, mark: dict[str, str], ttl: str) -> None:
    """One child writes the prefix at the price of its TTL, the others read it; a lone one writes for five minutes."""
    found = ask(snapshot(mark=mark, warm=False), children)
    paid = ttl if children > 1 else "5m"

    assert (found.prefix_tokens, found.counted_by, found.warm_tokens, found.ttl) == (100_000, "bill", 0, ttl)
    assert found.cache_why == "it is not known when the parent's call was sent"
    assert found.decision.plan == "leader_first"
    assert found.shared.input_usd == pytest.approx(by_hand(found, ttl=paid, warm=0, plan="leader_first"))
    whole = found.prefix_tokens + found.tail_tokens + found.directive_tokens[0]
    assert found.unshared.input_usd == pytest.approx(children * whole * IN)
    assert found.unshared.usage.input_tokens == children * whole
    assert found.shared.output_usd == found.unshared.output_usd == pytest.approx(children * 1_000 * OUT)
    assert found.break_even_children == {"5m": 2, "1h": 3}[ttl]
    if children == 1:
        assert found.ideal.input_usd == pytest.approx(whole * IN)
        assert 1.2 < found.shared.input_cost / found.ideal.input_cost < 1.27
    else:
        assert found.shared == found.ideal


@pytest.mark.parametrize("children", [1, 2, 3, 8, 20, 100])
@pytest.mark.parametrize(("mark", "ttl"), [(MARK, "5m"), (MARK_1H, "1h")])
def test_a_warm_fan_out_writes_its_tail_only(children: int, mark: dict[str, str], ttl: str) -> None:
    """What the parent wrote is read by everybody; sharing pays from the first child on."""
    bill = {"5m": "ephemeral_5m_input_tokens", "1h": "ephemeral_1h_input_tokens"}[ttl]
    usage: Any = {"input_tokens": 0, "cache_creation": {bill: 100_000}}
    found = ask(snapshot(mark=mark, usage=usage), children)

    assert found.warm_tokens == 100_000
    assert found.cache_why == f"the parent's entry lives for another {({'5m': '299', '1h': '3,599'})[ttl]} s"
    expected = by_hand(found, ttl=ttl, warm=100_000, plan=found.decision.plan)
    assert found.shared.input_usd == pytest.approx(expected)
    assert found.break_even_children == 1
    assert found.saved > 0.9
    assert found.shared.input_cost <= (1.05 if children == 1 else 1.02) * found.ideal.input_cost


def test_nobody_waits_for_a_small_tail() -> None:
    """On a long warm prefix each child writes the tail for itself: waiting would save next to nothing."""
    found = ask(snapshot(400_000), 8)

    assert found.decision.plan == "all_at_once"
    assert found.shared.input_usd == pytest.approx(by_hand(found, ttl="5m", warm=400_000, plan="all_at_once"))
    assert 1 < found.shared.input_cost / found.ideal.input_cost < 1.02


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"mark": None}, "the parent's request marks nothing to be cached"),
        ({"usage": {}}, "no bill of the parent's call is known"),
        ({"usage": {"input_tokens": 50_000}}, "the parent's call neither read nor wrote the cache"),
        ({"warm": False}, "it is not known when the parent's call was sent"),
    ],
)
def test_what_is_not_known_to_be_warm_is_cold(change: dict[str, Any], why: str) -> None:
    """And the estimate says why."""
    found = ask(snapshot(**change))

    assert (found.warm_tokens, found.cache_why) == (0, why)
    assert found.to_json()["cache"] == "cold"


def test_an_expired_or_recomputed_prefix_is_cold() -> None:
    """The entry's time is up, or the bytes are not those that were sent."""
    parent = snapshot()

    late = ask(parent, now=SENT_AT + 400)
    assert (late.warm_tokens, late.cache_why) == (0, "the parent's call was sent 400 s ago and its entry lives for 5m")
    inexact = ask(replace(parent, exact=False))
    assert (inexact.warm_tokens, inexact.cache_why) == (0, "the request is not byte for byte what the parent sent")


def test_without_a_bill_tokens_are_guessed_and_said_to_be() -> None:
    """Four bytes are a token; a note tells how to do better."""
    parent = snapshot(usage={})
    found = ask(parent)

    assert (found.counted_by, found.prefix_tokens) == ("bytes", round(len(parent.body) / 4))
    assert any("four bytes each" in note for note in found.notes)


@pytest.mark.parametrize(
    "usage", [{"input_tokens": -5}, {"input_tokens": 10**40}, {"input_tokens": 9, "cache_read_input_tokens": -1}]
)
def test_a_bill_that_cannot_be_is_none(usage: dict[str, int]) -> None:
    """A reply file with nonsense for usage leads to a guess, not to nonsense dollars."""
    found = ask(snapshot(usage=usage))

    assert found.counted_by == "bytes"
    assert 0 < found.shared.cost < 1


def test_an_unknown_model_has_tokens_and_no_dollars() -> None:
    """The plan and the break-even go by the usual proportions, and the note says what to do."""
    found = ask(snapshot(model="claude-opus-5-7", warm=False), 8)

    assert (found.shared.input_usd, found.unshared.total_usd, found.ideal.output_usd) == (None, None, None)
    assert found.shared.usage.cache_write_tokens == found.prefix_tokens + found.tail_tokens
    assert found.shared.usage.cache_read_tokens == 7 * (found.prefix_tokens + found.tail_tokens)
    assert (found.decision.plan, found.break_even_children) == ("leader_first", 2)
    assert (found.named.cheaper, found.named.difference_usd, found.named.even_at_tokens) == (None, None, None)
    assert "The price of 'claude-opus-5-7' is not known" in found.notes[0]
    assert "NEXOFORK_PRICES" in found.notes[0]
    assert found.to_json()["price"] is None


def test_an_unknown_model_for_named_agents_leaves_the_rest() -> None:
    """The fork is priced; only the comparison is not."""
    found = ask(snapshot(), fresh_model="claude-novel-9")

    assert found.shared.input_usd is not None
    assert (found.named.model, found.named.cheaper, found.named.bill.total_usd) == ("claude-novel-9", None, None)
    assert any("claude-novel-9" in note for note in found.notes)


def test_below_the_minimum_nothing_is_shared() -> None:
    """Every child pays for all of it, with sharing or without, so it never pays."""
    found = ask(snapshot(2_000, model="claude-opus-4-6", warm=False), 20)

    assert found.break_even_children is None
    assert found.shared == found.unshared == found.ideal
    assert found.shared.usage.cache_write_tokens == found.shared.usage.cache_read_tokens == 0
    assert found.shared.input_usd == pytest.approx(found.shared.usage.input_tokens * 5e-6)
    assert found.saved == 0
    assert any("caches from 4,096 on" in note for note in found.notes)


def test_an_undocumented_minimum_is_said_to_be_where_it_matters() -> None:
    """A short prefix may or may not be cached."""
    assert any("not documented" in note for note in ask(snapshot(2_000)).notes)
    assert not ask(snapshot(100_000)).notes


def test_nothing_that_takes_a_marker_is_nothing_shared() -> None:
    """A sidecar without boilerplate on an unmarked request cannot be cached at all."""
    parent = snapshot(mark=None, tokens=50_000)
    found = ask(replace(parent, reply=None), boilerplate=False)

    assert found.break_even_children is None
    assert found.shared.usage.cache_write_tokens == 0
    assert any("can be marked" in note for note in found.notes)


def test_a_further_turn_reads_what_was_sent_and_writes_the_rest() -> None:
    """The second turn writes directive and first answer, the third the second answer."""
    found = ask(snapshot(warm=False), 2, turns=3, output_tokens=500)
    shared, own = found.prefix_tokens + found.tail_tokens, found.directive_tokens[0]

    later = shared * READ + (own + 500) * WRITE["5m"] + (shared + own + 500) * READ + 500 * WRITE["5m"]
    first = shared * WRITE["5m"] + own * IN
    assert found.shared.input_usd == pytest.approx(first + shared * READ + own * IN + 2 * later)
    # Alone, a child of several turns caches for itself: that is what sharing has to beat.
    assert found.unshared.input_usd == pytest.approx(2 * (first + later))
    assert found.break_even_children == 2
    assert found.shared.usage.output_tokens == 2 * 3 * 500


def test_a_child_alone_does_not_cache_where_that_costs_more() -> None:
    """Two turns on an hour's TTL: writing at twice the price and reading is dearer than paying twice."""
    found = ask(snapshot(mark=MARK_1H, warm=False), 1, turns=2, output_tokens=0)

    assert found.unshared.usage.cache_write_tokens == 0
    assert found.unshared.input_usd == pytest.approx(2 * IN * found.unshared.usage.input_tokens / 2)


def test_a_long_prompt_is_billed_at_its_own_price() -> None:
    """Haiku 5.5 costs five times as much above 100,000 tokens: the turn that passes them is dearer."""
    found = ask(
        snapshot(99_000, model="claude-haiku-5-5", warm=False, max_tokens=4_000), 1, turns=2, output_tokens=4_000
    )
    shared, own = found.prefix_tokens + found.tail_tokens, found.directive_tokens[0]

    first = shared * 0.125e-6 + own * 0.1e-6
    assert found.shared.input_usd == pytest.approx(first + shared * 0.05e-6 + (own + 4_000) * 0.625e-6)
    assert found.shared.output_usd == pytest.approx(4_000 * (0.5e-6 + 2.5e-6))


def test_named_agents_by_hand() -> None:
    """With 20,000 tokens each they are dearer than a warm fork, with 1,000 cheaper; in between both cost the same."""
    parent = snapshot()
    large, small = ask(parent, 8), ask(parent, 8, fresh_context_tokens=1_000)

    assert large.named.bill.input_usd == pytest.approx(8 * 20_000 * IN)
    assert large.named.cheaper == "fork"
    assert large.named.difference_usd == pytest.approx(8 * 20_000 * IN - large.shared.input_cost)
    assert small.named.cheaper == "named"
    assert small.named.difference_usd == pytest.approx(small.shared.input_cost - 8 * 1_000 * IN)
    assert large.named.even_at_tokens == small.named.even_at_tokens == math.floor(large.shared.input_cost / 8 / IN)


def test_named_agents_of_several_turns_cache_for_themselves() -> None:
    """Five turns with 20,000 tokens: written once, read four times, and what was said written as it comes."""
    found = ask(snapshot(), 1, turns=5, output_tokens=100)

    reads = sum(20_000 + 100 * turn for turn in range(4))
    assert found.named.bill.input_usd == pytest.approx((20_000 + 400) * WRITE["5m"] + reads * READ)


def test_a_cheaper_model_may_never_be_dearer(tmp_path: Path) -> None:
    """Agents on a model that costs nothing are cheaper at any size; on the dearest one never."""
    free = entry("free-1", price=0).replace("read = 0.5", "read = 0").replace("output = 9", "output = 0")
    prices = load_prices(written(tmp_path, free + entry("dear-1", price=1_000_000)))
    parent = snapshot()

    never = ask(parent, fresh_model="free-1", prices=prices).named
    always = ask(parent, fresh_model="dear-1", prices=prices, output_tokens=0).named
    assert (never.cheaper, never.even_at_tokens) == ("named", None)
    assert (always.cheaper, always.even_at_tokens) == ("fork", 0)


def test_equal_bills_are_called_equal(tmp_path: Path) -> None:
    """Where everything is free, nothing is cheaper and nothing is divided by zero."""
    free = entry(OPUS, price=0).replace("read = 0.5", "read = 0").replace("output = 9", "output = 0")
    found = ask(snapshot(), prices=load_prices(written(tmp_path, free)))

    assert (found.named.cheaper, found.named.difference_usd, found.saved) == ("same", 0, 0)
    assert found.break_even_children is None


def test_the_price_is_that_of_the_day(tmp_path: Path) -> None:
    """The estimate of a fork before a price change goes by the old price."""
    prices = load_prices(written(tmp_path, entry(day="2026-10-01", price=7) + entry(day="2026-01-01", price=3)))
    parent = snapshot(warm=False)

    before = ask(parent, prices=prices, now=1_790_000_000.0).tariff.facts  # 2026-09-21
    after = ask(parent, prices=prices, now=1_791_000_000.0).tariff.facts  # 2026-10-03
    assert before is not None
    assert after is not None
    assert (before.price.input, after.price.input) == (3, 7)


def test_no_answer_is_longer_than_the_request_allows() -> None:
    """Children inherit max_tokens."""
    found = ask(snapshot(max_tokens=300), 1, output_tokens=5_000)

    assert (found.output_tokens, found.shared.usage.output_tokens) == (300, 300)
    assert any("max_tokens is 300" in note for note in found.notes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"turns": 0}, "turns has to be a whole number from 1 to 1,000"),
        ({"turns": 10**9}, "turns"),
        ({"turns": 1.5}, "turns"),
        ({"turns": True}, "turns"),
        ({"output_tokens": -1}, "output_tokens has to be a whole number from 0"),
        ({"output_tokens": 10**5000}, "output_tokens"),
        ({"fresh_context_tokens": -1}, "fresh_context_tokens"),
        ({"fresh_context_tokens": 10**12}, "fresh_context_tokens"),
        ({"now": math.nan}, "now is nan"),
        ({"now": -1e300}, "now is -1e[+]300"),
    ],
)
def test_absurd_numbers_are_refused(change: dict[str, Any], said: str) -> None:
    """Before anything is worked out, with what would do."""
    with pytest.raises(ForkRefused, match=said):
        ask(snapshot(1_000), **change)


def test_directives_are_checked_as_for_a_fork() -> None:
    """None, one text instead of a list, an empty one, a fork of a fork."""
    parent = snapshot(1_000)
    with pytest.raises(ForkRefused, match="There are 0 directives; give one per child"):
        ask(parent, 0)
    with pytest.raises(ForkRefused, match="give a list"):
        estimate(parent, "Look.")
    with pytest.raises(BadDirective, match="is empty"):
        estimate(parent, ["Look.", " "])
    child = snapshot(messages=[{"role": "user", "content": [{"type": "text", "text": BOILERPLATE}]}])
    with pytest.raises(AlreadyAFork):
        ask(child)


def test_json_holds_all_of_it() -> None:
    """An estimate can be written as JSON, and names its assumptions."""
    found = json.loads(json.dumps(ask(snapshot(), 2).to_json(), allow_nan=False))

    assert (found["model"], found["children"], found["turns"], found["counted_by"]) == (OPUS, 2, 1, "bill")
    assert found["price"]["source"] == "provider's public price list, 2026-11"
    assert found["decision"]["plan"] in ("all_at_once", "leader_first")
    assert found["shared"]["usage"]["cache_read_input_tokens"] >= 200_000
    assert found["shared"]["input_usd"] < found["unshared"]["input_usd"]
    assert found["named"]["context_tokens"] == 20_000


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(600, 300_000),
    children=st.integers(1, 40),
    turns=st.integers(1, 6),
    output=st.integers(0, 4_000),
    hour=st.booleans(),
    warm=st.booleans(),
    model=st.sampled_from([OPUS, "claude-opus-4-6", "claude-haiku-5-5", "claude-novel-9"]),
)
@example(tokens=600, children=1, turns=2, output=722, hour=True, warm=False, model=OPUS)
@example(tokens=600, children=2, turns=2, output=722, hour=True, warm=False, model=OPUS)
@example(tokens=600, children=3, turns=2, output=722, hour=True, warm=False, model=OPUS)
def test_the_figures_hang_together(
    tokens: int, children: int, turns: int, output: int, hour: bool, warm: bool, model: str
) -> None:
    """Whatever is asked: the break-even is where the bills cross, and nothing undercuts what can be reached."""
    parent = snapshot(tokens, mark=MARK_1H if hour else MARK, warm=warm, model=model)
    found = ask(parent, children, turns=turns, output_tokens=output)

    shared, alone, ideal = found.shared, found.unshared, found.ideal
    assert ideal.input_cost <= shared.input_cost * (1 + 1e-9)
    assert shared.usage.prompt_tokens == alone.usage.prompt_tokens == ideal.usage.prompt_tokens
    pays = found.break_even_children is not None and found.break_even_children <= children
    # A lone child in the cold writes for five minutes instead of an hour: that may pay where two do not.
    assert pays == saves(found) or (children == 1 and hour and not warm)
    assert shared.output_cost == pytest.approx(alone.output_cost)
    if (even := found.named.even_at_tokens) is not None and 0 < even < 10_000_000:
        at, above = (
            ask(parent, children, turns=turns, output_tokens=output, fresh_context_tokens=even + step)
            for step in (0, 1)
        )
        assert at.named.cheaper in ("named", "same")
        assert above.named.cheaper in ("fork", "same")


@pytest.mark.parametrize(("children", "saved"), [(1, True), (2, False), (3, True), (4, True), (40, True)])
def test_the_break_even_is_where_sharing_pays_for_good(children: int, saved: bool) -> None:
    """One child writes for five minutes and two for an hour: one saves, two do not, and from three on all do."""
    parent = snapshot(600, mark=MARK_1H, warm=False)
    found = ask(parent, children, turns=2, output_tokens=722)

    assert saves(found) == saved
    assert found.break_even_children == 3


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(600, 300_000),
    words=st.integers(1, 20_000),
    turns=st.integers(1, 4),
    output=st.integers(0, 4_000),
    hour=st.booleans(),
    warm=st.booleans(),
    read=st.integers(0, 12_000),
)
@example(tokens=600, words=1, turns=2, output=722, hour=True, warm=False, read=200)
@example(tokens=10_000, words=20_000, turns=2, output=0, hour=True, warm=False, read=200)
def test_the_break_even_is_the_last_crossing(
    tokens: int, words: int, turns: int, output: int, hour: bool, warm: bool, read: int
) -> None:
    """At any price of reads, even one above that of writes: the last number that does not pay is the one before it."""
    known = model_facts(OPUS)
    assert known is not None
    facts = replace(known, price=replace(known.price, read=read / 1_000))
    forecast = Forecast(
        snapshot(tokens, mark=MARK_1H if hour else MARK, warm=warm),
        ["word " * words],
        tariff=Tariff(facts=facts),
        turns=turns,
        output=output,
        now=SENT_AT + 1,
        boilerplate=True,
    )

    found = forecast.break_even()
    assert (found is not None) == forecast.pays(MOST_CHILDREN)
    if found is not None:
        assert all(forecast.pays(children) for children in range(found, found + 300))
        assert found == 1 or not forecast.pays(found - 1)
