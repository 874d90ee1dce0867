"""When children start: at once where the cache is warm, at the leader's first byte where it is not."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import pytest

from nexofork import ForkParams
from nexofork.wire import messages as wire
from tests.support.fan_outs import Row, child_records, directives, fan_out, parent_of

if TYPE_CHECKING:
    from nexofork.simulator import RequestRecord
    from tests.support.fan_outs import Outcome
    from tests.support.fleet import Fleet

pytestmark = pytest.mark.alone

DAEMONS = 3
FIRST_BYTE_S = 1.5
"""Short for a model; the bar is a share of it, and twenty sends take two busy cores a quarter of a second."""
SLOW_S = 15.0
LIMIT_S = 2.0
PATIENCE_S = 11.5
"""How long a leader of a short prefix is given, and a little."""


async def started(fleet: Fleet, row: Row) -> tuple[Outcome, list[RequestRecord]]:
    """Run a fan-out on three daemons; returns the first request of each child, in order of arrival."""
    await fleet.daemons(DAEMONS, slots=64)
    snapshot = await parent_of(fleet, row)
    first = fleet.sim.request_count
    async with fleet.connect() as forks:
        outcome = await fan_out(fleet, row, snapshot, forks)
    return outcome, child_records(fleet.sim, first=first)


@pytest.mark.parametrize("ttl", ["5m", "1h"])
async def test_a_warm_parent_with_a_small_tail_makes_nobody_wait(fleet: Fleet, ttl: str) -> None:
    """The median child calls before any response has begun, and its log says why."""
    row = Row(children=20, warmth="warm", ttl=ttl, tokens=150_000, reply="text", delay_s=2 * FIRST_BYTE_S)
    outcome, calls = await started(fleet, row)

    first_byte = min(call.first_byte_at or 0.0 for call in calls)
    assert median(call.received_at for call in calls) < first_byte
    assert {(result.decision or {})["plan"] for result in outcome.results} == {"all_at_once"}
    assert max((result.decision or {}).get("waited_s", 0.0) for result in outcome.results) == 0
    reports = await fleet.reports(outcome.results[0].run_id)
    starts = [call for report in reports if (call := wire.announced_call(report)) is not None]
    assert starts[0].decision is not None
    assert starts[0].decision["plan"] == "all_at_once"
    assert outcome.verdict.ratio <= 1.02


async def test_cold_children_start_at_the_first_byte_of_one(fleet: Fleet) -> None:
    """Nobody calls before the leader's response begins, and the last one within 1.3 times what that took."""
    row = Row(children=20, warmth="file", delay_s=FIRST_BYTE_S)
    outcome, (leader, *others) = await started(fleet, row)

    assert leader.first_byte_at is not None
    took = leader.first_byte_at - leader.received_at
    assert min(call.received_at for call in others) >= leader.first_byte_at
    assert max(call.received_at for call in others) - leader.received_at <= 1.3 * took
    roles = [(result.decision or {})["role"] for result in outcome.results]
    assert sorted(roles) == ["follower"] * (row.children - 1) + ["leader"]


@pytest.mark.ops
async def test_a_slow_leader_is_not_waited_for(fleet: Fleet) -> None:
    """Another one leads beside it after a while, the others follow that one, and only the slow one is late."""
    row = Row(children=6, warmth="file", tokens=10_000)
    await fleet.daemons(DAEMONS)
    snapshot = await parent_of(fleet, row)
    fleet.sim.script({"fault": {"first_byte_s": SLOW_S}, "times": 1})
    async with fleet.connect() as forks:
        outcome = await fan_out(fleet, row, snapshot, forks)
    slow, second, *others = child_records(fleet.sim, first=0)

    assert second.first_byte_at is not None
    assert slow.first_byte_at is not None
    assert second.received_at - slow.received_at <= PATIENCE_S
    assert all(second.first_byte_at <= call.received_at < slow.first_byte_at for call in others)
    assert outcome.verdict.writes == 2
    assert max((result.decision or {}).get("waited_s", 0.0) for result in outcome.results) < SLOW_S


async def test_nobody_waits_longer_than_the_limit(fleet: Fleet) -> None:
    """Where no response begins, everybody goes alone when the operator's limit has passed."""
    row = Row(children=6, warmth="file")
    await fleet.daemons(DAEMONS, leader_wait_s=LIMIT_S)
    snapshot = await parent_of(fleet, row)
    async with fleet.connect() as forks:
        handles = await forks.fork_each(
            ForkParams(cache_safe=snapshot, prompt_messages="x"), directives(row, hold="first byte")
        )
        await fleet.sim.received(row.children)
        arrivals = [call.received_at for call in child_records(fleet.sim, first=0)]
        fleet.sim.release("first byte")
        results = [await handle.result() for handle in handles]

    assert LIMIT_S <= max(arrivals) - min(arrivals) <= LIMIT_S + 1
    roles = sorted((result.decision or {})["role"] for result in results)
    assert roles == ["alone"] * (row.children - 1) + ["leader"]


@pytest.mark.ops
@pytest.mark.breaks_prefix("the second parent is a file that was never sent, so its children look like strangers")
async def test_a_slow_model_does_not_end_the_waiting(fleet: Fleet) -> None:
    """That reads of a warm prefix begin slowly says little about writing one: the next cold fan-out has one leader."""
    warm = Row(children=3, warmth="warm", tokens=150_000, reply="text", delay_s=3.0)
    cold = Row(children=5, warmth="file", tokens=150_000)
    await fleet.daemons(DAEMONS)
    async with fleet.connect() as forks:
        await fan_out(fleet, warm, await parent_of(fleet, warm), forks)
        outcome = await fan_out(fleet, cold, await parent_of(fleet, cold), forks)

    assert outcome.verdict.writes == 1, outcome.line(cold)
