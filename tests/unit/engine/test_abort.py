from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import AbortToken, ForkStatus, FunctionTools
from nexofork.errors import ProviderError
from nexofork.providers.provider import TextDelta
from nexofork.run.abort import Abort, AbortReason
from nexofork.run.events import ForkEnded
from nexofork.run.params import prepare
from nexofork.run.prefix_gate import Warmth
from nexofork.run.run import ForkRun
from tests.support.conversation import call, says
from tests.support.parents import fork, open_llm

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from nexofork import AnthropicProvider, CacheSafeParams, DefaultForkSubagent
    from nexofork.providers.provider import ModelRequest, ProviderEvent
    from nexofork.run.events import ForkEvent
    from nexofork.simulator import Simulator
    from tests.support.parents import Parent

HANGS = says("Wait.", {"fault": "hang"})
STALLS = says("Wait.", {"text": "a long report", "fault": {"hang_after_events": 4}})


class SlowTool:
    """A tool that runs until it is cancelled."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, arguments: dict[str, Any]) -> str:
        """Wait for ever."""
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return ""


@pytest.fixture
async def snapshot(parent: Parent) -> CacheSafeParams:
    """A parent that has made one call."""
    return await parent.ask()


async def test_abort_before_the_start_sends_nothing(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A fork aborted before its task ran makes no model call."""
    handle = await forks.fork(fork(snapshot, llm))
    handle.abort("changed my mind")

    result = await handle.result()

    assert (result.status, result.end) == (ForkStatus.ABORTED, "parent")
    assert result.abort == Abort(reason=AbortReason.PARENT, note="changed my mind")
    assert (sim.request_count, result.turns) == (1, 0)


async def test_an_aborted_token_prevents_the_start(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A fork below a token that was already thrown ends with that token's cause and sends nothing."""
    token = AbortToken()
    token.abort(AbortReason.BUDGET, "spent")

    result = await (await forks.fork(fork(snapshot, llm, external_abort=token))).result()

    assert (result.status, result.end, result.error) == (ForkStatus.ABORTED, "budget", "spent")
    assert sim.request_count == 1


@pytest.mark.parametrize("directive", [HANGS, STALLS], ids=["before the first byte", "in mid-stream"])
async def test_abort_during_the_model_call_closes_the_socket(
    sim: Simulator,
    snapshot: CacheSafeParams,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    directive: str,
) -> None:
    """Before the first byte or in mid-stream, the server sees the client leave."""
    handle = await forks.fork(fork(snapshot, llm, directive))
    await (sim.received(2) if directive is HANGS else sim.begun(2))
    handle.abort("superseded")

    result = await handle.result()

    async with asyncio.timeout(10):
        await sim.closed_early(1)
    assert (result.status, result.error) == (ForkStatus.ABORTED, "superseded")
    assert sim.request_count == 2


async def test_abort_during_a_tool_cancels_the_tool(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The running tool sees a cancellation, and no further call is made."""
    tool = SlowTool()
    directive = says("Run.", {"text": "I run it.", "tools": [call()]})
    handle = await forks.fork(fork(snapshot, llm, directive, tool_dispatcher=FunctionTools({"Bash": tool})))
    await tool.started.wait()
    handle.abort("enough")

    result = await handle.result()

    assert tool.cancelled.is_set()
    assert (result.status, result.turns, result.final_text) == (ForkStatus.ABORTED, 1, "I run it.")
    assert sim.request_count == 2


async def test_a_tool_that_swallows_the_cancellation_does_not_keep_the_fork_alive(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The run ends as aborted at its next step, without another model call."""
    started = asyncio.Event()

    async def stubborn(arguments: dict[str, Any]) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "I carry on"
        return ""

    handle = await forks.fork(
        fork(snapshot, llm, says("Run.", {"tools": [call()]}), tool_dispatcher=FunctionTools({"Bash": stubborn}))
    )
    await started.wait()
    handle.abort()

    assert (await handle.result()).status is ForkStatus.ABORTED
    assert sim.request_count == 2


async def test_abort_after_the_end_changes_nothing(
    snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A finished fork stays what it was."""
    handle = await forks.fork(fork(snapshot, llm))
    before = await handle.result()

    handle.abort("too late")

    assert await handle.result() is before
    assert (handle.status, before.abort) == (ForkStatus.COMPLETED, None)


async def test_the_first_of_two_aborts_counts(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The second abort neither fails nor changes the reason."""
    handle = await forks.fork(fork(snapshot, llm, HANGS))
    await sim.received(2)

    handle.abort("first")
    handle.abort("second")

    assert (await handle.result()).error == "first"


async def test_external_abort_reaches_every_fork_below_it(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Throwing the caller's token ends all forks started with it."""
    token = AbortToken()
    handles = [await forks.fork(fork(snapshot, llm, STALLS, external_abort=token)) for _ in range(3)]
    await sim.begun(4)

    token.abort(note="stop all")

    results = [await handle.result() for handle in handles]
    assert {(result.status, result.error) for result in results} == {(ForkStatus.ABORTED, "stop all")}


async def test_a_timeout_ends_the_fork_alone(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A timed-out fork has its own status; the caller's token and the siblings are untouched."""
    token = AbortToken()
    sibling = await forks.fork(fork(snapshot, llm, says("Go.", {"hold": "gate"}), external_abort=token))
    await sim.received(2)
    handle = await forks.fork(fork(snapshot, llm, HANGS, external_abort=token, timeout=0.05, boilerplate=False))

    result = await handle.result()
    sim.release("gate")

    assert (result.status, result.end, result.error) == (ForkStatus.TIMED_OUT, "deadline", "no end within 0.05 s")
    assert token.cause is None
    assert (await sibling.result()).ok


async def test_a_childs_abort_never_reaches_the_callers_token_or_its_siblings(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Abort goes one way."""
    token = AbortToken()
    first, second = await forks.fork_each(
        fork(snapshot, llm, external_abort=token),
        [says("One.", {"text": "a b c", "hold": {"gate": "gate", "after_events": 3}}), says("Two.", {"hold": "gate"})],
    )
    await sim.received(3)

    first.abort("only this one")

    assert (await first.result()).status is ForkStatus.ABORTED
    sim.release("gate")
    assert (await second.result()).ok
    assert token.cause is None


async def test_the_timeout_counts_the_wait_for_a_leader(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A fork that times out while it waits for its sibling's first byte has sent nothing."""
    snapshot = await parent.ask(mark=None)
    leader = await forks.fork(fork(snapshot, llm, HANGS))
    await sim.received(2)

    result = await (await forks.fork(fork(snapshot, llm, "Second.", timeout=0.05))).result()
    leader.abort()

    assert (result.status, result.turns) == (ForkStatus.TIMED_OUT, 0)
    assert sim.request_count == 2


async def test_a_run_whose_own_task_is_cancelled_says_how_it_ended_and_lets_it_pass(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider
) -> None:
    """Whoever watches still learns the end; the cancellation is not swallowed."""
    params = fork(snapshot, llm, HANGS)
    base, prompt = prepare(params)
    seen: list[ForkEvent] = []
    run = ForkRun(
        params,
        run_id="run-1",
        base=base,
        prompt=prompt,
        token=AbortToken(),
        warmth=Warmth(),
        emit=seen.append,
    )
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(run.run())
        await sim.received(2)
        task.cancel()

    assert task.cancelled()
    assert isinstance(seen[-1], ForkEnded)
    assert seen[-1].result.abort == Abort(reason=AbortReason.SHUTDOWN, note="its task was cancelled")
    await sim.closed_early(1)


class Breaking:
    """A provider whose call breaks with an error of its own when it is cancelled."""

    diagnostics = False
    workspace_id: str | None = None

    def __init__(self) -> None:
        self.called = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ProviderEvent]:
        """Wait until cancelled, then fail."""
        self.called.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ProviderError("The connection broke.", retryable=False) from None
        yield TextDelta(text="")


async def test_a_call_that_breaks_over_its_abort_is_aborted(
    snapshot: CacheSafeParams, forks: DefaultForkSubagent
) -> None:
    """What fails because it was cancelled did not fail: whoever aborted it is told so, and a hand-over stays one."""
    provider = Breaking()
    handle = await forks.fork(fork(snapshot, provider))
    await provider.called.wait()

    await handle.abort("enough")
    result = await handle.result()

    assert (result.status, result.end, result.error) == (ForkStatus.ABORTED, "parent", "enough")


async def test_a_call_that_was_never_sent_is_not_in_the_ledger(
    snapshot: CacheSafeParams, forks: DefaultForkSubagent
) -> None:
    """A fork that is aborted while its provider still connects has cost nothing, and the ledger says nothing of it."""
    connecting, never = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connecting.set()
        await never.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, open_llm(f"https://127.0.0.1:{port}") as unreachable:
        handle = await forks.fork(fork(snapshot, unreachable))
        await connecting.wait()  # and waits for the server's part of the TLS handshake
        await handle.abort("enough")
        result = await handle.result()
        never.set()

    assert (result.status, result.end) == (ForkStatus.ABORTED, "parent")
    assert forks.ledger.calls == []


async def test_a_call_that_was_sent_and_aborted_is_in_the_ledger(
    sim: Simulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The server has it, so it may be billed: every request it received is booked."""
    handle = await forks.fork(fork(snapshot, llm, HANGS))
    await sim.received(2)
    await handle.abort("enough")
    await handle.result()

    assert [call.outcome for call in forks.ledger.calls] == ["unconfirmed"]
    assert len(forks.ledger.calls) == sim.request_count - 1


async def test_a_server_that_cannot_be_reached_bills_nothing(
    snapshot: CacheSafeParams, forks: DefaultForkSubagent
) -> None:
    """Attempts that found no server are booked as failed, so no cost of theirs is unknown."""
    async with open_llm("http://127.0.0.1:9") as unreachable:
        result = await (await forks.fork(fork(snapshot, unreachable))).result()

    assert result.status is ForkStatus.FAILED
    assert {call.outcome for call in forks.ledger.calls} == {"failed"}
