from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from anthropic import AsyncAnthropic

from nexofork import AnthropicProvider, CacheSafeParams, Reply
from nexofork.core.usage import Usage
from nexofork.run.cache_check import CacheCheck
from tests.support.conversation import KEY, MARK, MARK_1H, agent_calls, request, says, text
from tests.support.gateway import Gateway, llm_behind
from tests.support.parents import Parent, fork, open_llm

if TYPE_CHECKING:
    from nexofork import DefaultForkSubagent
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


def forgotten(snapshot: CacheSafeParams, sim: Simulator) -> CacheSafeParams:
    """Let the provider drop its entries though they are young: only its clock goes on."""
    sim.clock.advance(400)
    return snapshot


async def test_an_entry_dropped_early_is_told_from_a_changed_request(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The API finds the same request, so it is the provider's doing."""
    check = await first_check(forks, forgotten(await parent.ask(), sim), llm)

    assert (check.cause, check.diagnosis) == ("evicted", "same")


async def test_a_named_agents_first_run_breaks_nothing_and_a_later_one_that_misses_does(
    sim: Simulator, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Nobody sent its prefix, so the first writes it without an alarm; what should have been read then is missed."""
    body = json.dumps(request(tokens=6_000)).encode()
    own = CacheSafeParams.from_parent_request(body, headers={"anthropic-version": "2023-06-01"})
    named: dict[str, Any] = {"boilerplate": False, "query_source": "agent:named:Explore"}

    first = await first_check(forks, own, llm, **named)
    second = await first_check(forks, own, llm, **named)
    third = await first_check(forks, forgotten(own, sim), llm, **named)

    assert (first.cause, first.read, first.written) == (None, 0, 6_000)
    assert (second.cause, second.read) == (None, 6_000)
    assert third.broken
    assert third.read == 0


async def test_without_a_diagnosis_nothing_is_claimed(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A server that says nothing about changes leaves a miss unexplained."""
    llm.diagnostics = False

    check = await first_check(forks, forgotten(await parent.ask(), sim), llm)

    assert (check.cause, check.diagnosis) == ("unexplained", None)


async def test_a_known_parent_without_a_time_has_most_likely_expired(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The API knows its response and finds no change: it was sent, and its entry is gone."""
    snapshot = forgotten(replace(await parent.ask(), sent_at=None), sim)

    check = await first_check(forks, snapshot, llm)

    assert (check.cause, check.diagnosis) == ("expired", "same")


async def test_a_response_that_the_api_does_not_know_is_named(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A reply that was given elsewhere: there is no entry here to read."""
    reply = Reply.from_response({"id": "msg_elsewhere", "content": [{"type": "text", "text": "Hi."}]})
    snapshot = CacheSafeParams.from_parent_request(sim_body(request()), reply=reply, sent_at=time.time())

    check = await first_check(forks, snapshot, llm)

    assert (check.cause, check.diagnosis) == ("parent_unknown", "previous_message_not_found")
    assert "workspace" in check.detail


async def test_a_parent_whose_response_has_not_begun_is_named(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Its entry cannot be read yet, however equal the bytes are."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(parent.ask(answer={"text": "At last.", "delay_s": 1.0}))
        await sim.received(1)
        body = sim.body(0)
        assert body is not None
        snapshot = CacheSafeParams.from_parent_request(body, sent_at=time.time())

        check = await first_check(forks, snapshot, llm)

    assert (check.cause, check.read) == ("not_yet_visible", 0)
    assert "first byte" in check.detail


def sim_body(body: dict[str, Any]) -> bytes:
    """A request as bytes."""
    return json.dumps(body, separators=(",", ":")).encode()


async def test_a_parent_that_marked_too_early_is_named(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """All that was cached is read, and it is not much; nothing is wrong with the bytes."""
    said = [text("Shared.", tokens=1_500, mark=MARK), text(says("Go on.", agent_calls(1)), tokens=8_000)]
    snapshot = await parent.ask(request(messages=[{"role": "user", "content": said}]))

    check = await first_check(forks, snapshot, llm)

    assert (check.cause, check.read) == ("marked_early", check.expected_read)
    assert "Mark the parent's last block" in check.detail


@pytest.mark.breaks_prefix("the gateway changes the request")
async def test_a_gateway_that_rewrites_the_prompt_is_named(
    sim: Simulator, parent: Parent, forks: DefaultForkSubagent
) -> None:
    """What was sent is what the parent sent; the API received something else, and says which part."""
    snapshot = await parent.ask()
    async with llm_behind(sim, lambda body: body.replace(b"a long session", b"a very long session")) as llm:
        check = await first_check(forks, snapshot, llm)

    assert (check.cause, check.diagnosis) == ("system_changed", "system_changed")
    assert "rewrites requests" in check.detail
    assert "5000 cached tokens" in check.detail


def test_a_verdict_is_small_on_the_wire_and_comes_back() -> None:
    """What is empty or said by the usage is left out, and what a later version adds is ignored."""
    usage = Usage(cache_read_tokens=96, cache_write_5m_tokens=4)
    hit = CacheCheck(hit_ratio=0.96, read=96, written=4, fresh=0, expected_read=96)
    miss = replace(hit, cause="evicted", detail="Gone.", diagnosis="same")

    assert hit.to_wire() == {"expected_read": 96}
    assert CacheCheck.from_wire(hit.to_wire(), usage) == hit
    assert CacheCheck.from_wire(miss.to_wire() | {"later": 1}, usage) == miss


class OldServer(Gateway):
    """A server from before there were diagnostics."""

    def __init__(self) -> None:
        super().__init__(lambda body: body)
        self.refused = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Refuse the field as one that is not known."""
        if b'"diagnostics":' not in await request.aread():
            return await super().handle_async_request(request)
        self.refused += 1
        error = {"type": "invalid_request_error", "message": "diagnostics: Extra inputs are not permitted"}
        return httpx2.Response(400, json={"type": "error", "error": error}, request=request)


async def test_a_server_that_refuses_diagnostics_is_not_asked_again(
    sim: Simulator, parent: Parent, forks: DefaultForkSubagent
) -> None:
    """Every child that had asked asks once more without; later ones never do, and all of them read."""
    snapshot = await parent.ask()
    server = OldServer()
    async with AsyncAnthropic(
        base_url=sim.url, api_key=KEY, max_retries=0, http_client=httpx2.AsyncClient(transport=server)
    ) as client:
        llm = AnthropicProvider(client)
        at_once = await forks.fork_each(fork(snapshot, llm), [says(f"Part {n}.", {"text": "Done."}) for n in range(4)])
        results = [await handle.result() for handle in at_once]
        refused = server.refused
        later = await first_check(forks, snapshot, llm)

    assert [result.error for result in results] == [None] * 4
    assert [result.cache.cause for result in results if result.cache] == [None] * 4
    assert 1 <= refused <= 4
    assert (server.refused, later.cause) == (refused, None)
    assert sum(call.retries for result in results for call in result.calls) == refused


@pytest.mark.parametrize(("cached", "broken"), [(4_600, True), (4_900, False)])
async def test_half_of_the_prompt_is_where_a_miss_begins(
    parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent, cached: int, broken: bool
) -> None:
    """A first call that reads a little less than half of its prompt is a miss; one that reads a little more is none."""
    said = [text("Shared.", tokens=cached, mark=MARK), text(says("Go on.", agent_calls(1)), tokens=9_200 - cached)]
    snapshot = await parent.ask(request(messages=[{"role": "user", "content": said}]))

    check = await first_check(forks, snapshot, llm)

    assert 0.45 < check.hit_ratio < 0.55
    assert (check.hit_ratio < 0.5, check.broken) == (broken, broken)
