from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkStatus
from nexofork.run.events import CallFailedOnce
from nexofork.simulator import SimulatorConfig
from tests.support.conversation import says
from tests.support.parents import Parent, fork, open_llm

if TYPE_CHECKING:
    from nexofork import AnthropicProvider, CacheSafeParams, DefaultForkSubagent
    from nexofork.simulator import Simulator
    from tests.conftest import StartSimulator

BAD_KEY = "sk-sim-team-revoked"


@pytest.fixture
async def snapshot(parent: Parent) -> CacheSafeParams:
    """A parent that has made one call."""
    return await parent.ask()


@pytest.mark.parametrize(
    ("fault", "end"),
    [
        ({"status": 400, "message": "no such thing"}, "BadRequest"),
        ({"status": 429, "message": "spend cap reached"}, "RateLimited"),
        ({"status": 429, "retry_after": 3600}, "RateLimited"),
        ({"status": 413}, "TooLarge"),
        ({"error_event_after": 3, "type": "invalid_request_error"}, "StreamFailed"),
    ],
)
async def test_an_error_that_will_not_go_away_is_a_named_end_after_one_attempt(
    sim: Simulator,
    snapshot: CacheSafeParams,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    fault: dict[str, Any],
    end: str,
) -> None:
    """The fork fails under the error's name, with what to do, and the bytes are not sent again."""
    result = await (await forks.fork(fork(snapshot, llm, says("Go.", {"text": "Done.", "fault": fault})))).result()

    assert (result.status, result.end, result.turns) == (ForkStatus.FAILED, end, 0)
    assert result.error
    assert sim.request_count == 2


async def test_a_rejected_key_is_a_named_end(start_simulator: StartSimulator, forks: DefaultForkSubagent) -> None:
    """A 401 ends the fork as `Unauthorized`, and says which variables to look at."""
    sim = await start_simulator(SimulatorConfig(invalid_keys=frozenset({BAD_KEY})))
    async with Parent(sim.url) as parent, open_llm(sim.url, key=BAD_KEY) as llm:
        result = await (await forks.fork(fork(await parent.ask(), llm))).result()

    assert (result.status, result.end) == (ForkStatus.FAILED, "Unauthorized")
    assert "ANTHROPIC_API_KEY" in (result.error or "")
    assert sim.request_count == 2


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 529, "times": 2},
        {"status": 500, "times": 2},
        {"status": 429, "retry_after": 0, "times": 2},
        {"cut_after_events": 4, "times": 2},
        {"error_event_after": 4, "times": 2},
    ],
    ids=lambda fault: next(iter(fault)) + str(next(iter(fault.values()))),
)
async def test_a_passing_error_is_retried_with_the_same_bytes_and_recorded(
    sim: Simulator,
    snapshot: CacheSafeParams,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    fault: dict[str, Any],
) -> None:
    """Two failures, then success: one reply, its retries recorded, and every attempt that was billed is counted."""
    directive = says("Go.", {"text": "The whole answer.", "fault": fault})
    handle = await forks.fork(fork(snapshot, llm, directive))
    events = [event async for event in handle.events()]
    result = await handle.result()

    assert (result.status, result.final_text) == (ForkStatus.COMPLETED, "The whole answer.")
    assert [one.retries for one in result.calls if one.complete] == [2]
    assert (result.turns, len(result.calls)) == (1, len([record for record in sim.log[1:] if record.status == 200]))
    assert result.usage.prompt_tokens == sum(record.prompt_tokens for record in sim.log[1:] if record.status == 200)
    assert [event.turn for event in events if isinstance(event, CallFailedOnce)] == [1, 1]
    assert len({record.body_sha256 for record in sim.log[1:]}) == 1
    assert sim.request_count == 4


async def test_an_error_that_stays_ends_the_fork_after_the_last_attempt(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """An overloaded API is asked four times and then named."""
    handle = await forks.fork(fork(snapshot, llm, says("Go.", {"text": "Done.", "fault": {"status": 529}})))
    result = await handle.result()

    assert (result.status, result.end) == (ForkStatus.FAILED, "Overloaded")
    assert sim.request_count == 5


async def test_a_failing_child_leaves_its_siblings_alone(
    snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """One fork's error is its own."""
    handles = await forks.fork_each(
        fork(snapshot, llm),
        [says("One.", {"text": "x", "fault": 400}), says("Two.", {"text": "x"}), says("Three.", {"text": "x"})],
    )

    assert [(await handle.result()).ok for handle in handles] == [False, True, True]


async def test_what_was_said_before_a_later_failure_is_kept(
    snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A fork that fails in its second turn still shows the text and the bill of its first."""
    turns = ({"text": "First words.", "tools": [{"name": "Bash"}]}, {"text": "never", "fault": 400})
    result = await (await forks.fork(fork(snapshot, llm, says("Go.", *turns)))).result()

    assert (result.status, result.final_text, result.turns) == (ForkStatus.FAILED, "First words.", 1)
    assert result.usage.cache_read_tokens > 0
