from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkResult
from nexofork.core.prompt import ForkBase
from nexofork.core.snapshot import CacheSafeParams
from tests.support.conversation import request, says, text
from tests.support.parents import body_of, fork
from tests.support.witness import is_grown, stripped

if TYPE_CHECKING:
    from nexofork import AnthropicProvider, DefaultForkSubagent
    from nexofork.simulator import Simulator
    from tests.support.parents import Parent

DONE = {"text": "Scope: all\nResult: done", "delay_s": 0.1}


async def test_a_prewarm_writes_the_prefix_and_every_child_reads_it(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """One call without output writes; all children, the leader too, read; its bytes are the parent's, grown."""
    snapshot = await parent.ask(mark=None, tokens=20_000)
    params = fork(snapshot, llm, warm_up="prewarm")

    handles = await forks.fork_each(params, [says(f"Part {n}.", DONE) for n in range(4)])
    results = [await handle.result() for handle in handles]

    assert all(result.ok for result in results)
    prewarm, *children = sim.log[1:]
    assert (prewarm.prewarm, prewarm.output, prewarm.write_5m > 20_000) == (True, 0, True)
    assert [child.write_5m for child in children] == [0] * 4
    assert {child.read for child in children} == {prewarm.write_5m}
    sent, first = sim.body(1), sim.body(2)
    assert sent is not None
    assert first is not None
    assert is_grown(stripped(sent).replace(b'"max_tokens":0', b'"max_tokens":4000'), stripped(first))


async def test_a_prewarm_is_part_of_its_leaders_bill(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """It is a call of turn 0, counted in the usage and not as a turn; the decision says who led."""
    snapshot = await parent.ask(mark=None)
    result = await (await forks.fork(fork(snapshot, llm, says("A.", DONE), warm_up="prewarm"))).result()

    assert [call.turn for call in result.calls] == [0, 1]
    assert ForkResult.from_wire(result.to_wire()).calls == result.calls
    assert result.turns == 1
    assert result.usage.cache_write_tokens == sim.log[1].write_5m > 0
    assert result.decision is not None
    assert (result.decision["plan"], result.decision["role"]) == ("prewarm", "leader")


async def test_a_model_that_refuses_a_prewarm_costs_nothing(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The leader's own call writes instead, the others wait for it, and the decision says what was refused."""
    snapshot = await parent.ask(mark=None)
    sim.load_script([{"fault": 400, "times": 1}])

    handles = await forks.fork_each(
        fork(snapshot, llm, warm_up="prewarm"), [says(f"Part {n}.", DONE) for n in range(3)]
    )
    results = [await handle.result() for handle in handles]

    assert all(result.ok for result in results)
    assert sim.log[1].status == 400
    assert sum(record.write_5m > 0 for record in sim.log[2:]) == 1
    (leader,) = [result for result in results if result.decision and result.decision["role"] == "leader"]
    assert leader.decision is not None
    assert "prewarm_failed" in leader.decision


@pytest.mark.parametrize(
    "changes",
    [
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "tool", "name": "Bash"}},
    ],
)
def test_what_the_provider_refuses_with_a_prewarm_is_known(changes: dict[str, Any]) -> None:
    """Such a request is never sent."""
    assert not ForkBase(CacheSafeParams.from_parent_request(request(**changes))).allows_prewarm


def test_a_prefix_that_nothing_shared_follows_is_not_prewarmed() -> None:
    """Without boilerplate and open calls there is no user message to end the request with."""
    snapshot = CacheSafeParams.from_parent_request(request(messages=[{"role": "user", "content": [text("Hi.")]}]))

    assert ForkBase(snapshot).allows_prewarm
    assert not ForkBase(snapshot, boilerplate=False).allows_prewarm


async def test_a_parents_thinking_settings_are_kept_in_a_prewarm(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Nothing but max_tokens and stream differs from what the children send."""
    snapshot = await parent.ask(mark=None, thinking={"type": "adaptive"}, output_config={"effort": "low"})

    await (await forks.fork(fork(snapshot, llm, says("A.", DONE), warm_up="prewarm"))).result()

    sent = body_of(sim, 1)
    assert (sent["max_tokens"], sent["stream"]) == (0, False)
    assert (sent["thinking"], sent["output_config"]) == ({"type": "adaptive"}, {"effort": "low"})
