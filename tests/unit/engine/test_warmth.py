from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from nexofork import DefaultForkSubagent
from nexofork.run.events import FanOutDecided, WaitedForLeader
from nexofork.run.prefix_gate import Warmth
from tests.support.conversation import says
from tests.support.decisions import LEADER_FIRST
from tests.support.parents import Parent, fork

if TYPE_CHECKING:
    from nexofork import AnthropicProvider
    from nexofork.simulator import Simulator

QUICKLY = {"text": "Done."}


class Ticking:
    """A clock that moves with every look at it."""

    def __init__(self, step_s: float = 0.001) -> None:
        self.at = 0.0
        self._step_s = step_s

    def __call__(self) -> float:
        """Return the time, a step later than before."""
        self.at += self._step_s
        return self.at


async def test_simultaneous_cold_children_pay_one_write(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Of ten children that start together on a prefix nobody wrote, one writes it and nine read it."""
    snapshot = await parent.ask(mark=None, tokens=20_000)
    # Without the delay the first entry is there before the next request arrives, whoever waits or not.
    slow = [says(f"Part {n}.", {"text": "Done.", "delay_s": 0.2}) for n in range(10)]

    handles = await forks.fork_each(fork(snapshot, llm), slow)
    for handle in handles:
        await handle.result()

    written = sorted(record.write_5m for record in sim.log[1:])
    assert written[:9] == [0] * 9
    assert written[9] > 20_000
    assert sorted(record.read for record in sim.log[1:]) == [0] + [written[9]] * 9


async def test_followers_start_when_the_leaders_response_begins(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Nobody else sends before the first byte, and everybody does right after it, long before the leader's end."""
    snapshot = await parent.ask(mark=None)
    leading = says("Lead.", {"text": "a b c", "hold": {"gate": "rest", "after_events": 3}})
    first = await forks.fork(fork(snapshot, llm, says("Lead.", {"text": "a b c", "hold": "begin"})))
    await sim.received(2)
    others = await forks.fork_each(fork(snapshot, llm), [leading, says("Follow.", QUICKLY)])
    waiting = [aiter(handle.events()) for handle in others]
    for events in waiting:
        await anext(events)
        assert isinstance(await anext(events), FanOutDecided)
    assert sim.request_count == 2

    sim.release("begin")

    assert (await first.result()).ok
    await sim.received(4)
    assert isinstance(await anext(waiting[1]), WaitedForLeader)
    assert (await others[1].result()).ok
    sim.release("rest")
    assert (await others[0].result()).ok
    assert [record.write_5m > 0 for record in sim.log[1:]] == [True, False, False]


async def test_when_the_leader_fails_another_takes_over(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The next in line writes the prefix; the rest read it."""
    snapshot = await parent.ask(mark=None)
    handles = await forks.fork_each(
        fork(snapshot, llm), [says("A.", {"text": "x", "fault": 400}), *(says(f"{n}.", QUICKLY) for n in range(4))]
    )

    results = [await handle.result() for handle in handles]

    assert [result.ok for result in results] == [False, True, True, True, True]
    assert sum(record.write_5m > 0 for record in sim.log[1:]) == 1
    assert sum(record.read > 0 for record in sim.log[1:]) == 3


async def test_when_the_leader_is_aborted_another_takes_over(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """An abort before the first byte frees the place."""
    snapshot = await parent.ask(mark=None)
    leader, *others = await forks.fork_each(
        fork(snapshot, llm), [says("A.", {"fault": "hang"}), says("B.", QUICKLY), says("C.", QUICKLY)]
    )
    await sim.received(2)

    leader.abort()

    assert [(await handle.result()).ok for handle in others] == [True, True]
    assert sum(record.write_5m > 0 for record in sim.log[1:]) == 1


async def test_followers_of_a_slow_leader_go_on_after_the_deadline(
    sim: Simulator, parent: Parent, llm: AnthropicProvider
) -> None:
    """Nobody waits longer than `leader_wait_s`; going alone costs a write and is said."""
    snapshot = await parent.ask(mark=None)
    async with DefaultForkSubagent(leader_wait_s=0.05) as forks:
        leader, follower = await forks.fork_each(
            fork(snapshot, llm, warm_up="leader_first"), [says("A.", {"fault": "hang"}), says("B.", QUICKLY)]
        )
        events = [event async for event in follower.events()]
        leader.abort()

    (waited,) = [event for event in events if isinstance(event, WaitedForLeader)]
    assert 0.05 <= waited.waited_s < 5
    assert (await follower.result()).ok
    assert sim.log[2].write_5m > 0


async def test_a_warm_prefix_is_not_waited_for(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Once a sibling's response began, later children start at once, whatever that sibling still does."""
    snapshot = await parent.ask(mark=None)
    first = await forks.fork(
        fork(snapshot, llm, says("A.", {"text": "a b c", "hold": {"gate": "rest", "after_events": 3}}))
    )
    await sim.begun(2)

    result = await (await forks.fork(fork(snapshot, llm, says("B.", QUICKLY)))).result()

    assert result.usage.cache_write_tokens == 0
    sim.release("rest")
    assert (await first.result()).ok


async def test_who_does_not_wait_has_waited_no_time() -> None:
    """A clock that moved between two looks at it is no wait, so a lone fork reports none."""
    lead = await Warmth(now=Ticking()).enter("prefix", LEADER_FIRST)

    assert (lead.role, lead.waited_s) == ("leader", 0.0)


async def test_warmth_ends_with_the_ttl_counted_from_the_sending() -> None:
    """Shortly before the entry's time is over the next one leads again."""
    clock = Ticking(step_s=0.0)
    warmth = Warmth(now=clock)
    first = await warmth.enter("prefix", LEADER_FIRST)
    clock.at = 100.0
    first.began(ttl_s=300.0)

    clock.at = 294.0
    assert (await warmth.enter("prefix", LEADER_FIRST)).role == "follower"
    clock.at = 296.0
    assert (await warmth.enter("prefix", LEADER_FIRST)).role == "leader"


async def test_a_slow_leader_gets_another_beside_it() -> None:
    """After four times the expected first-byte time, and no less than ten seconds, the next one leads."""
    clock = Ticking(step_s=0.0)
    warmth = Warmth(now=clock)
    slow = await warmth.enter("prefix", LEADER_FIRST)
    clock.at = 10.1
    beside = await warmth.enter("prefix", LEADER_FIRST)

    assert (slow.role, beside.role) == ("leader", "leader")
    slow.began(ttl_s=300.0)
    assert (await warmth.enter("prefix", LEADER_FIRST)).role == "follower"


async def test_a_leader_that_pauses_for_long_is_not_waited_for() -> None:
    """A rate limit of a minute hands the lead on; a short pause before trying again does not."""
    warmth = Warmth()
    first = await warmth.enter("prefix", LEADER_FIRST)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(warmth.enter("prefix", LEADER_FIRST))
        await asyncio.sleep(0)
        first.pauses(0.5)
        assert not waiting.done()
        first.pauses(60.0)

    assert waiting.result().role == "leader"


async def test_nobody_waits_where_it_is_not_worth_it() -> None:
    """All at once means that nobody leads."""
    warmth = Warmth()
    at_once = replace(LEADER_FIRST, plan="all_at_once")

    assert [(await warmth.enter("prefix", at_once)).role for _ in range(3)] == ["free"] * 3


async def test_prefixes_are_led_independently() -> None:
    """Waiting is per prefix."""
    warmth = Warmth(now=Ticking())
    await warmth.enter("one", LEADER_FIRST)

    async with asyncio.timeout(5):
        assert (await warmth.enter("other", LEADER_FIRST)).role == "leader"


async def test_a_prefix_that_the_provider_does_not_cache_is_not_waited_for_nor_counted_on() -> None:
    """Its first response says so: later children start at once, and are quoted the full price."""
    warmth = Warmth()
    (await warmth.enter("prefix", LEADER_FIRST)).began(ttl_s=300.0, cached=False)

    assert not warmth.is_warm("prefix")
    assert (await warmth.enter("prefix", LEADER_FIRST)).role == "follower"


async def test_a_leader_that_leaves_while_others_come_leaves_one_leader() -> None:
    """Who waited and who comes in the same moment agree on the prefix."""
    warmth = Warmth()
    first = await warmth.enter("prefix", LEADER_FIRST)
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(warmth.enter("prefix", LEADER_FIRST)) for _ in range(2)]
        await asyncio.sleep(0)
        first.gave_up()
        waiting.append(tasks.create_task(warmth.enter("prefix", LEADER_FIRST)))
        (leader,), _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert leader.result().role == "leader"
        leader.result().began(ttl_s=300.0)

    assert sorted(task.result().role for task in waiting) == ["follower", "follower", "leader"]
