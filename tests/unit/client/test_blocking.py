from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from anthropic import Anthropic

from nexofork import BlockingForkSubagent, DelegateMode, ForkStatus, FunctionTools, Permissions, capture
from nexofork.errors import BadDirective, ForkRefused
from nexofork.run.events import ForkAsked, ForkEnded, ForkStarted, ToolFinished
from tests.support.conversation import KEY, call, declared, request, says
from tests.support.parents import fork, open_llm, usage_in_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nexofork import AnthropicProvider, CacheSafeParams
    from nexofork.simulator import ThreadedSimulator

HANGS = says("Wait.", {"fault": "hang"})
HELD = says("Wait.", {"text": "a b c", "hold": {"gate": "rest", "after_events": 3}})


@pytest.fixture
def snapshot(threaded_sim: ThreadedSimulator) -> Iterator[CacheSafeParams]:
    """A synchronous parent that has made one call with its own client."""
    with Anthropic(base_url=threaded_sim.url, api_key=KEY, max_retries=0) as client:
        recording = capture(client)
        client.messages.create(**request(tools=declared("Buy")))
        yield recording.snapshot()


@pytest.fixture
def forks(threaded_sim: ThreadedSimulator) -> Iterator[BlockingForkSubagent]:
    """The blocking factory."""
    with BlockingForkSubagent() as factory:
        yield factory


@pytest.fixture
def llm(threaded_sim: ThreadedSimulator, forks: BlockingForkSubagent) -> AnthropicProvider:
    """A provider opened and closed in the loop the forks run in."""
    return forks.enter(open_llm(threaded_sim.url))


def test_a_synchronous_parent_forks_and_shares_its_cache(
    threaded_sim: ThreadedSimulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: BlockingForkSubagent
) -> None:
    """Three children of a plain `Anthropic` client, each with a tool call, all on the parent's prefix."""

    async def bash(arguments: dict[str, Any]) -> str:
        return "ok"

    turns = ({"tools": [call(command="ls")]}, {"text": "Scope: s\nResult: r"})
    params = fork(snapshot, llm, tool_dispatcher=FunctionTools({"Bash": bash}))

    handles = forks.fork_each(params, [says(f"Part {n}.", *turns) for n in range(3)])
    results = [handle.result(timeout=30) for handle in handles]

    assert [result.ok for result in results] == [True] * 3
    records = threaded_sim.log[1:]
    assert all(record.read >= 5_000 for record in records)
    ours = {one.message_id: one.usage for result in results for one in result.calls}
    assert ours == {record.message_id: usage_in_log(record) for record in records}


def test_questions_are_answered_without_a_loop(
    threaded_sim: ThreadedSimulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: BlockingForkSubagent
) -> None:
    """The event names the question, the handle takes the answer, and the child goes on with it."""
    directive = says("Go.", {"tools": [call("Buy", what="milk")]}, {"text": "Done."})
    handle = forks.fork(fork(snapshot, llm, directive, permissions=Permissions(mode="bubble"), tool_dispatcher=shop()))
    asked = next(event for event in handle.events() if isinstance(event, ForkAsked))

    with pytest.raises(ForkRefused, match="no open ask"):
        handle.answer("other", True)
    handle.answer(asked.ask_id, False, note="there is some")

    assert (asked.name, asked.arguments) == ("Buy", {"what": "milk"})
    assert handle.result(timeout=30).ok
    assert b"permission was denied: there is some." in (threaded_sim.body(2) or b"")


def shop() -> FunctionTools:
    """A tool that changes something."""

    async def buy(arguments: dict[str, Any]) -> str:
        return f"bought {arguments['what']}"

    return FunctionTools({"Buy": buy})


def test_events_can_be_followed_without_a_loop(
    snapshot: CacheSafeParams, llm: AnthropicProvider, forks: BlockingForkSubagent
) -> None:
    """A plain for loop sees the run from start to end."""
    handle = forks.fork(fork(snapshot, llm, says("Go.", {"tools": [call()]}, {"text": "Done."})))

    kinds = [type(event) for event in handle.events()]

    assert (kinds[0], kinds[-1]) == (ForkStarted, ForkEnded)
    assert ToolFinished in kinds
    assert handle.status is ForkStatus.COMPLETED


def test_abort_reaches_the_running_child(
    threaded_sim: ThreadedSimulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: BlockingForkSubagent
) -> None:
    """The server sees the socket close, and the result says who and why."""
    handle = forks.fork(fork(snapshot, llm, HANGS))
    threaded_sim.received(2)

    handle.abort("enough")

    result = handle.result(timeout=10)
    assert (result.status, result.error) == (ForkStatus.ABORTED, "enough")
    threaded_sim.closed_early(1)


def test_a_result_that_is_late_raises_and_the_fork_goes_on(
    threaded_sim: ThreadedSimulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: BlockingForkSubagent
) -> None:
    """A timeout of the wait is not a timeout of the fork."""
    handle = forks.fork(fork(snapshot, llm, HELD))
    with pytest.raises(TimeoutError):
        handle.result(timeout=0.05)
    assert handle.status is ForkStatus.RUNNING

    threaded_sim.release("rest")

    assert handle.result(timeout=10).ok


def test_sync_mode_returns_a_finished_fork(
    snapshot: CacheSafeParams, llm: AnthropicProvider, forks: BlockingForkSubagent
) -> None:
    """The call itself is the wait."""
    assert forks.fork(fork(snapshot, llm, mode=DelegateMode.SYNC)).status is ForkStatus.COMPLETED


def test_a_refusal_is_raised_in_the_callers_thread(
    threaded_sim: ThreadedSimulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: BlockingForkSubagent
) -> None:
    """The named error arrives as it is, and nothing was sent."""
    with pytest.raises(BadDirective):
        forks.fork(fork(snapshot, llm, " "))

    assert len(threaded_sim.log) == 1


def test_leaving_the_context_aborts_the_forks_and_ends_the_thread(
    threaded_sim: ThreadedSimulator, snapshot: CacheSafeParams
) -> None:
    """Nothing is left running, not even the loop."""
    before = threading.active_count()

    with BlockingForkSubagent() as factory:
        llm = factory.enter(open_llm(threaded_sim.url))
        handle = factory.fork(fork(snapshot, llm, HANGS))
        threaded_sim.received(2)
        assert threading.active_count() > before

    assert handle.status is ForkStatus.ABORTED
    assert not [thread for thread in threading.enumerate() if thread.name == "nexofork"]


def test_forking_outside_the_context_is_refused(
    threaded_sim: ThreadedSimulator, snapshot: CacheSafeParams, llm: AnthropicProvider
) -> None:
    """Forks need an owner here too."""
    with pytest.raises(ForkRefused, match="with BlockingForkSubagent"):
        BlockingForkSubagent().fork(fork(snapshot, llm))

    assert len(threaded_sim.log) == 1


def test_a_detached_fork_is_not_aborted_by_dropping_its_handle(
    threaded_sim: ThreadedSimulator, snapshot: CacheSafeParams, llm: AnthropicProvider, forks: BlockingForkSubagent
) -> None:
    """It goes on to its end."""
    over = threading.Event()
    ended: list[ForkEnded] = []

    def observe(event: object) -> None:
        if isinstance(event, ForkEnded):
            ended.append(event)
            over.set()

    handle = forks.fork(fork(snapshot, llm, HELD, on_message=observe))
    threaded_sim.received(2)
    handle.detach()
    del handle

    threaded_sim.release("rest")

    assert over.wait(10)
    assert ended[0].result.ok
