"""A parent's Agent calls become children on other hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkStatus, Reply
from nexofork.errors import BadDirective, ForkRefused

if TYPE_CHECKING:
    from tests.support.fleet import Fleet


def agent(call_id: str, **arguments: Any) -> dict[str, Any]:
    """An Agent call."""
    return {"type": "tool_use", "id": call_id, "name": "Agent", "input": arguments}


async def test_each_agent_call_without_a_type_becomes_a_fork(fleet: Fleet) -> None:
    """Two of three calls fork, with their prompts as directives; the typed one is somebody else's business."""
    await fleet.daemon()
    reply = Reply.from_response(
        [
            agent("t1", prompt="first part"),
            agent("t2", prompt="look", subagent_type="Explore"),
            agent("t3", prompt="rest"),
        ]
    )
    async with fleet.connect() as forks:
        handles = await forks.fork_tool_uses(await fleet.snapshot(), reply)
        results = [await handle.result() for handle in handles]

    assert [result.directive for result in results] == ["first part", "rest"]
    assert {result.status for result in results} == {ForkStatus.COMPLETED}


@pytest.mark.parametrize(
    ("calls", "error"),
    [
        ([{"type": "text", "text": "no calls here"}], ForkRefused),
        ([agent("t1", prompt="look", subagent_type="Explore")], ForkRefused),
        ([agent("t1", prompt="one"), agent("t2")], BadDirective),
    ],
)
async def test_a_reply_without_anything_to_fork_is_refused(
    fleet: Fleet, calls: list[dict[str, Any]], error: type[ForkRefused]
) -> None:
    """Nothing is published, not even for the calls that would have been fine."""
    snapshot = await fleet.snapshot()
    async with fleet.connect() as forks:
        with pytest.raises(error):
            await forks.fork_tool_uses(snapshot, Reply.from_response(calls))

    assert fleet.sim.request_count == 1
