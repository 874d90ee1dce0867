from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from nexofork import CacheSafeParams
from tests.support.conversation import MARK_1H, request, says
from tests.support.gateway import Gateway, llm_behind
from tests.support.parents import Parent, fork, open_llm

if TYPE_CHECKING:
    from nexofork import AnthropicProvider, DefaultForkSubagent
    from nexofork.engine.cache_check import CacheCheck
    from nexofork.simulator import Simulator

MARKER = b',"cache_control":{"type":"ephemeral"}'
MARKER_1H = b',"cache_control":{"type":"ephemeral","ttl":"1h"}'


async def first_check(
    forks: DefaultForkSubagent, snapshot: CacheSafeParams, llm: AnthropicProvider, **more: Any
) -> CacheCheck:
    """Run a fork and return the verdict on its first call."""
    result = await (await forks.fork(fork(snapshot, llm, says("Go.", {"text": "Done."}), **more))).result()
    assert result.ok, result.error
    assert result.cache is not None
    return result.cache


def aged(snapshot: CacheSafeParams, sim: Simulator, seconds: float) -> CacheSafeParams:
    """Let time pass for the simulator and for the snapshot alike."""
    assert snapshot.sent_at is not None
    sim.clock.advance(seconds)
    return replace(snapshot, sent_at=snapshot.sent_at - seconds)


async def test_a_hit_has_no_cause(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """What the parent left is what the child read, to the token."""
    check = await first_check(forks, await parent.ask(tokens=5_000), llm)

    assert (check.cause, check.broken, check.read, check.expected_read) == (None, False, 5_000, 5_000)
    assert check.hit_ratio == pytest.approx(sim.log[1].read / sim.log[1].prompt_tokens)


async def test_an_expired_entry_is_named(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The age and the remedy are in the detail."""
    check = await first_check(forks, aged(await parent.ask(), sim, 400), llm)

    assert check.cause == "expired"
    assert "400 s old" in check.detail


async def test_another_workspace_is_named(sim: Simulator, parent: Parent, forks: DefaultForkSubagent) -> None:
    """The first call of a provider with another workspace's key says whose cache it met."""
    async with open_llm(sim.url, key="sk-sim-strangers") as stranger:
        check = await first_check(forks, await parent.ask(), stranger)

    assert check.cause == "workspace"
    assert "wrkspc_strangers" in check.detail


async def test_a_prompt_below_the_minimum_is_named(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Nothing read, nothing written, and the minimum is told."""
    check = await first_check(forks, await parent.ask(tokens=300), llm)

    assert (check.cause, check.read, check.written) == ("below_minimum", 0, 0)
    assert "1024" in check.detail


async def test_lost_markers_are_not_taken_for_a_short_prompt(
    sim: Simulator, parent: Parent, forks: DefaultForkSubagent
) -> None:
    """A long prompt that neither reads nor writes was stripped of its markers on the way."""
    snapshot = await parent.ask(tokens=50_000)
    async with llm_behind(sim, lambda body: body.replace(MARKER, b"")) as llm:
        check = await first_check(forks, snapshot, llm)

    assert (check.cause, check.read, check.written) == ("not_cached", 0, 0)
    assert "cache_control" in check.detail


@pytest.mark.breaks_prefix("the gateway changes the request")
async def test_a_swapped_model_is_named(sim: Simulator, parent: Parent, forks: DefaultForkSubagent) -> None:
    """A router that answers with another model has another cache, and the check says which."""
    snapshot = await parent.ask(tokens=20_000)
    async with llm_behind(sim, lambda body: body.replace(b"claude-opus-4-8", b"claude-sonnet-5")) as llm:
        check = await first_check(forks, snapshot, llm)

    assert check.cause == "model"
    assert "claude-sonnet-5" in check.detail


async def test_a_stripped_ttl_is_named(sim: Simulator, llm: AnthropicProvider, forks: DefaultForkSubagent) -> None:
    """The parent asked for an hour and was billed for five minutes; after ten the entry is gone."""
    gateway = Gateway(lambda body: body.replace(MARKER_1H, MARKER))
    async with Parent(sim.url, http_client=httpx2.AsyncClient(transport=gateway)) as parent:
        snapshot = await parent.ask(mark=MARK_1H)
    assert sim.log[0].write_5m > 0

    check = await first_check(forks, aged(snapshot, sim, 600), llm)

    assert check.cause == "ttl_stripped"


async def test_an_unmarked_parent_is_named_on_the_leader_alone(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The first child writes for its siblings and says so; they read and have nothing to report."""
    snapshot = await parent.ask(mark=None)

    checks = [await first_check(forks, snapshot, llm) for _ in range(3)]

    assert [check.cause for check in checks] == ["unmarked", None, None]
    assert "for its siblings" in checks[0].detail


async def test_a_fork_without_any_marker_is_not_taken_for_a_short_one(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A sidecar on an unmarked request has nothing shared to mark; the prompt's length is not the reason."""
    await parent.ask(request(mark=None, tokens=20_000))
    body = sim.body(0)
    assert body is not None
    snapshot = CacheSafeParams.from_parent_request(body, sent_at=time.time())

    check = await first_check(forks, snapshot, llm, boilerplate=False)

    assert (check.cause, check.read, check.written) == ("unmarked", 0, 0)


async def test_a_parent_that_was_never_sent_is_named(
    sim: Simulator, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Without a time of sending the check says that it cannot know."""
    check = await first_check(forks, CacheSafeParams.from_parent_request(request()), llm)

    assert check.cause == "parent_unknown"


@pytest.mark.breaks_prefix("the mapping is not what the parent sent")
async def test_a_recomputed_snapshot_that_differs_is_named(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A mapping that was rebuilt, and is not what was sent, misses as `inexact`."""
    await parent.ask()
    rebuilt = request(system=[{"type": "text", "text": "You are the agent of a long session?"}])

    check = await first_check(forks, CacheSafeParams.from_parent_request(rebuilt, sent_at=time.time()), llm)

    assert check.cause == "inexact"
