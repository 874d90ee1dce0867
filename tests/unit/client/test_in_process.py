from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import (
    AnthropicProvider,
    DefaultForkSubagent,
    DelegateMode,
    ForkOverrides,
    ForkStatus,
    FunctionTools,
    ParentContext,
)
from nexofork.economics.ledger import price_calls, total
from nexofork.errors import BadDirective, CacheBreak, ForkRefused
from nexofork.run.abort import AbortReason
from nexofork.run.events import CallBegan, ForkEnded, TextStreamed
from nexofork.tools.dispatch import NoTools, ToolOutcome
from tests.support.conversation import KEY, call, says
from tests.support.parents import Parent, body_of, fork
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from nexofork import CacheSafeParams
    from nexofork.run.events import ForkEvent
    from nexofork.simulator import Simulator
    from nexofork.tools.dispatch import ToolCall

HANGS = says("Wait.", {"fault": "hang"})
STALLS = says("Wait.", {"text": "a long report", "fault": {"hang_after_events": 4}})


@pytest.fixture
async def snapshot(parent: Parent) -> CacheSafeParams:
    """A parent that has made one call."""
    return await parent.ask()


async def test_leaving_the_context_aborts_what_runs_and_waits_for_it(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider
) -> None:
    """When the block is left every fork has ended, tools included."""
    cleaned: list[str] = []
    running = asyncio.Event()

    async def slow(arguments: dict[str, Any]) -> str:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("tool")
        return ""

    async with DefaultForkSubagent() as forks:
        calling = await forks.fork(fork(snapshot, llm, STALLS))
        working = await forks.fork(
            fork(snapshot, llm, says("Run.", {"tools": [call()]}), tool_dispatcher=FunctionTools({"Bash": slow}))
        )
        await sim.begun(3)
        await running.wait()

    assert cleaned == ["tool"]
    for handle in (calling, working):
        result = await handle.result()
        assert (result.status, result.abort and result.abort.reason) == (ForkStatus.ABORTED, AbortReason.SHUTDOWN)


async def test_leaving_the_context_at_once_sends_nothing(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider
) -> None:
    """A fork whose task has not even begun is aborted like the others."""
    async with DefaultForkSubagent() as forks:
        handle = await forks.fork(fork(snapshot, llm, HANGS))

    assert (handle.status, sim.request_count) == (ForkStatus.ABORTED, 1)


async def test_what_the_caller_raises_leaves_the_context_as_it_is(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider
) -> None:
    """The caller's own exception is not wrapped, and its forks have ended when it arrives."""
    handles = []

    async def work() -> None:
        async with DefaultForkSubagent() as forks:
            handles.append(await forks.fork(fork(snapshot, llm, HANGS)))
            await sim.received(2)
            await forks.fork(fork(snapshot, llm, ""))

    with pytest.raises(BadDirective):
        await work()

    assert [handle.status for handle in handles] == [ForkStatus.ABORTED]


async def test_cancelling_the_caller_ends_its_forks_and_passes_on(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider
) -> None:
    """A cancelled parent leaves no fork behind, and whoever holds a handle learns the end."""
    handles = []

    async def work() -> None:
        async with DefaultForkSubagent() as forks:
            handles.append(await forks.fork(fork(snapshot, llm, HANGS)))
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as tasks:
        caller = tasks.create_task(work())
        await sim.received(2)
        caller.cancel()

    assert caller.cancelled()
    assert (await handles[0].result()).status is ForkStatus.ABORTED
    await sim.closed_early(1)


async def test_forking_outside_the_context_is_refused(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider
) -> None:
    """Forks need an owner, before and after."""
    factory = DefaultForkSubagent()
    with pytest.raises(ForkRefused, match="async with"):
        await factory.fork(fork(snapshot, llm))
    async with factory:
        pass
    with pytest.raises(ForkRefused, match="async with"):
        await factory.fork(fork(snapshot, llm))
    assert sim.request_count == 1


async def test_sync_mode_returns_a_finished_fork(
    snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The handle that comes back has its result."""
    handle = await forks.fork(fork(snapshot, llm, mode=DelegateMode.SYNC))

    assert handle.status is ForkStatus.COMPLETED


async def test_cancelling_a_sync_wait_aborts_the_child_and_passes_on(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The child ends, the server sees it leave, and the cancellation reaches the caller."""
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(forks.fork(fork(snapshot, llm, HANGS, mode=DelegateMode.SYNC)))
        await sim.received(2)
        waiting.cancel()

    assert waiting.cancelled()
    async with asyncio.timeout(10):
        await sim.closed_early(1)


async def test_a_sync_wait_can_be_given_a_deadline_by_the_caller(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """`asyncio.timeout` around the wait works as around any other."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await forks.fork(fork(snapshot, llm, HANGS, mode=DelegateMode.SYNC))

    await sim.closed_early(1)


async def test_sync_siblings_run_side_by_side(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """`fork_each` waits for all of them together, not for one after the other."""
    held = [says(f"Part {n}.", {"text": "a b c", "hold": {"gate": "all", "after_events": 3}}) for n in range(3)]
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(forks.fork_each(fork(snapshot, llm, mode=DelegateMode.SYNC), held))
        async with asyncio.timeout(10):
            await sim.begun(4)
        assert not waiting.done()
        sim.release("all")

    assert [handle.status for handle in waiting.result()] == [ForkStatus.COMPLETED] * 3


async def test_cancelling_a_sync_wait_for_siblings_aborts_them_all(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """No sibling is left running for a caller that stopped waiting."""
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(forks.fork_each(fork(snapshot, llm, mode=DelegateMode.SYNC), [STALLS] * 3))
        await sim.begun(4)
        waiting.cancel()

    assert waiting.cancelled()
    await sim.closed_early(3)


async def test_fork_each_starts_all_or_none(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """One bad directive refuses the whole set before anything is sent."""
    with pytest.raises(BadDirective):
        await forks.fork_each(fork(snapshot, llm), ["Good.", "Also good.", "  "])

    assert sim.request_count == 1


async def test_an_override_is_refused_unless_the_cache_may_break(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The refusal names the field and what it would lose; nothing is sent."""
    overrides = ForkOverrides(request={"system": "You are somebody else."})

    with pytest.raises(CacheBreak, match="`system`") as refused:
        await forks.fork(fork(snapshot, llm, overrides=overrides))

    assert refused.value.fields == ("system",)
    assert "allow_cache_break=True" in str(refused.value)
    assert sim.request_count == 1


@pytest.mark.breaks_prefix("the override is allowed to")
async def test_an_allowed_override_is_sent_and_the_miss_is_named(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """With leave to break the cache the field is replaced, and the result says why it missed."""
    overrides = ForkOverrides(request={"system": "You are somebody else."})

    handle = await forks.fork(fork(snapshot, llm, overrides=overrides, allow_cache_break=True))
    result = await handle.result()

    assert body_of(sim, 1)["system"] == "You are somebody else."
    assert result.cache is not None
    assert (result.ok, result.cache.cause) == (True, "override")


@pytest.mark.breaks_prefix("the override is allowed to")
async def test_a_fork_on_another_model_is_billed_at_that_models_price(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The result names the model that was asked, and its cost is the simulator's."""
    overrides = ForkOverrides(request={"model": "claude-haiku-4-5"})

    handle = await forks.fork(fork(snapshot, llm, overrides=overrides, allow_cache_break=True))
    result = await handle.result()

    assert result.model == sim.log[1].model == "claude-haiku-4-5"
    assert result.cost_usd == pytest.approx(sim.log[1].price_usd)


@pytest.mark.parametrize("field", ["messages", "stream", "cache_control"])
async def test_what_the_runtime_builds_cannot_be_overridden(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent, field: str
) -> None:
    """Not even with leave to break the cache."""
    overrides = ForkOverrides(request={field: []})

    with pytest.raises(ForkRefused, match=field):
        await forks.fork(fork(snapshot, llm, overrides=overrides, allow_cache_break=True))

    assert sim.request_count == 1


async def test_every_call_is_in_the_ledger(sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider) -> None:
    """Attempts that failed, were cut off or came to their end are told apart, and the tokens are the server's."""
    scripts = [
        says("Go.", {"text": "done", "fault": {"status": 529, "times": 2}}),
        says("Go on.", {"text": "a long report", "fault": {"cut_after_events": 4, "times": 1}}),
    ]
    async with DefaultForkSubagent() as forks:
        for handle in await forks.fork_each(fork(snapshot, llm, "x"), scripts):
            assert (await handle.result()).ok
        stalled = await forks.fork(fork(snapshot, llm, STALLS))
        async for event in stalled.events():
            if isinstance(event, CallBegan):
                break
        await stalled.abort("enough")
        await stalled.result()

    calls = sorted(forks.ledger.calls, key=lambda one: (one.run_id, one.attempt))
    assert sorted((one.outcome, one.attempt) for one in calls) == [
        ("confirmed", 2),
        ("confirmed", 3),
        ("failed", 1),
        ("failed", 2),
        ("unconfirmed", 1),
        ("unconfirmed", 1),
    ]
    known = {one.message_id: one.billed for one in calls if one.billed}
    for record in sim.log[1:]:
        if record.status == 200:
            billed = known[record.message_id or ""]
            assert billed is not None
            assert billed[:4] == (record.fresh, record.read, record.write_5m, record.write_1h)
    sums = total(price_calls(calls))
    assert sums.confirmed == 2
    assert 0 < sums.money.ideal < sums.money.billed < sums.money.unshared


async def test_an_attempt_that_was_never_sent_is_not_billed(sim: Simulator, snapshot: CacheSafeParams) -> None:
    """Aborted between two attempts, the second one is known not to have happened."""
    waiting = asyncio.Event()

    async def sleep(_: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    patient = AnthropicProvider.from_env(base_url=sim.url, api_key=KEY, sleep=sleep)
    async with DefaultForkSubagent() as forks, patient:
        refused = says("Go.", {"fault": {"status": 429, "retry_after": 30}})
        handle = await forks.fork(fork(snapshot, patient, refused))
        await waiting.wait()
        await handle.abort("enough")
        await handle.result()

    assert [(one.attempt, one.outcome) for one in forks.ledger.calls] == [(1, "failed")]
    assert len(sim.log) == 2


async def test_a_sync_wait_streams_what_the_child_does(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """While the caller still waits, its observer gets the text that has come so far; the rest comes before the end."""
    seen: list[ForkEvent] = []
    began = asyncio.Event()

    def observe(event: ForkEvent) -> None:
        seen.append(event)
        if isinstance(event, TextStreamed):
            began.set()

    held = says("Wait.", {"text": "a b c", "hold": {"gate": "rest", "after_events": 4}})
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(forks.fork(fork(snapshot, llm, held, mode=DelegateMode.SYNC, on_message=observe)))
        await began.wait()
        assert not waiting.done()
        sim.release("rest")

    assert "".join(event.text for event in seen if isinstance(event, TextStreamed)) == "a b c"
    assert isinstance(seen[-1], ForkEnded)


async def test_fork_and_forget_returns_before_the_model_has_answered(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """It is what a fork does unless it is told to wait; the caller has its handle at once."""
    held = says("Wait.", {"text": "done", "hold": "all"})
    async with asyncio.timeout(PATIENCE_S):
        handle = await forks.fork(fork(snapshot, llm, held))
    assert handle.status is ForkStatus.RUNNING

    sim.release("all")
    assert (await handle.result()).final_text == "done"


async def test_a_fork_is_its_parents_agent_unless_it_has_an_id_of_its_own(
    snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Tools see who calls them."""
    seen: list[str] = []

    class Tools(NoTools):
        async def dispatch(self, one: ToolCall) -> ToolOutcome:
            seen.append(one.context.agent_id)
            return ToolOutcome(content="ok")

    params = fork(
        snapshot,
        llm,
        says("Run.", {"tools": [call()]}, "done"),
        tool_dispatcher=Tools(),
        parent_ctx=ParentContext(agent_id="boss"),
    )
    for overrides in (ForkOverrides(), ForkOverrides(agent_id="child-7")):
        assert (await (await forks.fork(replace(params, overrides=overrides))).result()).ok

    assert seen == ["boss", "child-7"]
