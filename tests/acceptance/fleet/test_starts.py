"""When children start: at once where the cache is warm, at the leader's first byte where it is not."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from nexofork.wire import messages as wire
from tests.support.fan_outs import Row, child_records, fan_out, parent_of

if TYPE_CHECKING:
    from nexofork.simulator import RequestRecord
    from tests.support.fan_outs import Outcome
    from tests.support.fleet import Fleet

DAEMONS = 3
FIRST_BYTE_S = 1.0


async def started(fleet: Fleet, row: Row) -> tuple[Outcome, list[RequestRecord]]:
    """Run a fan-out on three daemons; returns the first request of each child, in order of arrival."""
    await fleet.daemons(DAEMONS, slots=64)
    snapshot = await parent_of(fleet, row)
    first = fleet.sim.request_count
    async with fleet.connect() as forks:
        outcome = await fan_out(fleet, row, snapshot, forks)
    return outcome, child_records(fleet.sim, first=first)


async def test_a_warm_parent_with_a_small_tail_makes_nobody_wait(fleet: Fleet) -> None:
    """The median child calls before any response has begun, and its log says why."""
    row = Row(children=20, warmth="warm", tokens=150_000, reply="text", delay_s=2 * FIRST_BYTE_S)
    outcome, calls = await started(fleet, row)

    first_byte = min(call.first_byte_at or 0.0 for call in calls)
    assert median(call.received_at for call in calls) < first_byte
    assert {(result.decision or {})["plan"] for result in outcome.results} == {"all_at_once"}
    assert max((result.decision or {})["waited_s"] for result in outcome.results) == 0
    starts = [
        report for report in await fleet.reports(outcome.results[0].run_id) if isinstance(report, wire.CallStarted)
    ]
    assert starts[0].decision is not None
    assert starts[0].decision["plan"] == "all_at_once"


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
