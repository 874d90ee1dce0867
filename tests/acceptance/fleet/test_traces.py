"""What a parent, its daemons and their tools do is one trace, and tells no more than it may."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import CacheSafeParams
from nexofork.bus.ledger import read_ledger
from nexofork.economics.ledger import distinct
from nexofork.wire import messages as wire
from tests.support.conversation import AGENT, BASH, MODEL, call, says
from tests.support.otlp import Collector, collector
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.fleet import Fleet, Process
    from tests.support.otlp import ExportedSpan

__all__ = ["collector"]

SECRET = "xyzzy-7421"
TODO = {"name": "Todo", "input_schema": {"type": "object"}}
INTERNAL, CLIENT, PRODUCER, CONSUMER = 1, 3, 4, 5
CONTENT = {"NEXOFORK_TELEMETRY_CONTENT": "1"}


async def traced_run(fleet: Fleet, collector: Collector, *turns: Any, **env: str) -> tuple[Process, str]:
    """A run of a parent in a process of its own, which is over and whose spans have arrived."""
    fleet.captured = await fleet.agent.ask(tools=[AGENT, BASH, TODO], max_tokens=16_000)
    directive = says(f"Find {SECRET}.", *turns)
    parent, (run_id,) = await fleet.parent_process(
        [directive], bubbled=["Todo"], echo=True, env={**collector.env, **env}
    )
    await parent.gone()
    await eventually(lambda: collector.named(f"process {fleet.pool}"))
    return parent, run_id


def path_of(collector: Collector, span: ExportedSpan) -> list[str]:
    """The names from a span up to the first of its trace, each with the process it was made in."""
    path, above = [f"{span.service}: {span.name}"], collector.parent_of(span)
    return path if above is None else path + path_of(collector, above)


async def test_a_run_is_one_trace_from_its_parent_to_the_tool_that_comes_back(
    collector: Collector, fleet: Fleet
) -> None:
    """Request, claim, model calls and tools hang together over processes; the tokens are those of the ledger."""
    await fleet.daemon(env=collector.env)

    _, run_id = await traced_run(
        fleet, collector, {"tools": [call("Todo", item=SECRET), call(command=f"echo {SECRET}")]}, f"{SECRET} is done."
    )

    pool = fleet.pool
    at_daemon = ["nexoforkd: fork.subagent", f"nexoforkd: process {pool}", f"parent: send {pool}"]
    tool = "execute_tool Todo"
    assert path_of(collector, collector.one(tool, "parent")) == [f"parent: {tool}", f"nexoforkd: {tool}", *at_daemon]
    assert path_of(collector, collector.one("execute_tool Bash")) == ["nexoforkd: execute_tool Bash", *at_daemon]
    chats = collector.named(f"chat {MODEL}")
    assert [path_of(collector, chat) for chat in chats] == 2 * [[f"nexoforkd: chat {MODEL}", *at_daemon]]
    assert len({span.trace_id for span in collector.spans}) == 1
    kinds = {span.name.split()[0]: span.kind for span in collector.spans}
    assert kinds == {
        "send": PRODUCER,
        "process": CONSUMER,
        "fork.subagent": INTERNAL,
        "chat": CLIENT,
        "execute_tool": INTERNAL,
    }
    booked = [booking for booking in distinct(await read_ledger(fleet.bus)) if booking.run_id == run_id]
    assert [tokens_on(chat) for chat in chats] == [
        (one.message_id, one.usage.prompt_tokens, one.usage.cache_read_tokens, one.usage.cache_write_tokens)
        for one in booked
    ]
    assert [chat.attributes["gen_ai.usage.output_tokens"] for chat in chats] == [
        one.usage.output_tokens for one in booked
    ]
    assert [chat.attributes["gen_ai.response.finish_reasons"] for chat in chats] == [["tool_use"], ["end_turn"]]
    forked = collector.one("fork.subagent").attributes
    assert (forked["fork_run_id"], forked["status"], forked["fork_label"]) == (run_id, "completed", "fork")
    assert (forked["parent_agent"], forked["query_source"]) == ("main", "agent:builtin:fork")
    assert (forked["mode"], forked["skip_transcript"]) == ("fork_and_forget", False)
    sent = CacheSafeParams.from_parent_request((fleet.folder / "body.json").read_bytes())
    assert forked["cache_key_hash"] == f"{sent.cache_key_hash:016x}"
    assert forked["gen_ai.usage.input_tokens"] == sum(one.usage.prompt_tokens for one in booked)


def tokens_on(chat: ExportedSpan) -> tuple[Any, ...]:
    """A call's id and what it was billed for."""
    usage = "gen_ai.usage"
    keys = ("input_tokens", "cache_read.input_tokens", "cache_write.input_tokens")
    return (chat.attributes["gen_ai.response.id"], *(chat.attributes[f"{usage}.{key}"] for key in keys))


async def test_a_run_that_is_taken_over_stays_in_its_trace(collector: Collector, fleet: Fleet) -> None:
    """Killed in its second call, the first daemon's spans and the second's are of the trace the parent began."""
    doomed = await fleet.daemon("doomed", env=collector.env)
    turns = ({"tools": [call(command="true")]}, {"text": "Done.", "hold": "second"})
    parent, (run_id,) = await fleet.parent_process([says("plum", *turns)], env=collector.env)
    await fleet.until_logged(run_id, lambda report: isinstance(report, wire.CallStarted) and report.turn == 2)
    await eventually(lambda: collector.named("execute_tool Bash"))

    await doomed.kill()
    await fleet.daemon("heir", env=collector.env)
    await fleet.until_logged(run_id, lambda report: isinstance(report, wire.Claimed) and report.epoch == 2)
    fleet.sim.release("second")
    await parent.gone()
    await eventually(lambda: collector.named(f"process {fleet.pool}"))

    taken = collector.one(f"process {fleet.pool}")
    assert taken.attributes["messaging.nats.delivery.attempt"] == 2
    assert collector.parent_of(taken) == collector.one(f"send {fleet.pool}")
    assert len(collector.named(f"chat {MODEL}")) == 2
    assert len({span.trace_id for span in collector.spans}) == 1


async def test_a_run_that_is_handed_over_is_one_trace_over_three_processes(collector: Collector, fleet: Fleet) -> None:
    """Parent, first and second daemon: every span leads up to the parent's, and each call's tokens are the ledger's."""
    first = await fleet.daemon("first", env=collector.env)
    turns = ({"tools": [call(command="true")]}, {"text": "Done.", "hold": "second"})
    parent, (run_id,) = await fleet.parent_process([says("quince", *turns)], env=collector.env)
    await fleet.until_logged(run_id, lambda report: isinstance(report, wire.CallStarted) and report.turn == 2)

    first.signal(signal.SIGTERM)
    await first.gone()
    await fleet.daemon("second", env=collector.env)
    await fleet.until_logged(run_id, lambda report: isinstance(report, wire.Claimed) and report.epoch == 2)
    fleet.sim.release("second")
    await parent.gone()
    pool = fleet.pool
    await eventually(lambda: len(collector.named(f"process {pool}")) == 2)

    for span in collector.spans:
        assert path_of(collector, span)[-1] == f"parent: send {pool}", span
    assert len({span.trace_id for span in collector.spans}) == 1
    assert len({span.process for span in collector.spans}) == 3
    answered = {chat.attributes.get("gen_ai.response.id"): chat for chat in collector.named(f"chat {MODEL}")}
    billed = [one for one in distinct(await read_ledger(fleet.bus)) if one.run_id == run_id]
    assert len(billed) >= 2
    for one in billed:
        if one.outcome == "confirmed":
            usage = one.usage
            tokens = (one.message_id, usage.prompt_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
            assert tokens_on(answered[one.message_id]) == tokens


@pytest.mark.parametrize("env", [{}, CONTENT], ids=["by default", "switched on"])
async def test_content_is_exported_only_where_it_is_switched_on(
    collector: Collector, fleet: Fleet, env: dict[str, str]
) -> None:
    """Directive, replies, arguments, results, refusals and errors are in nothing that leaves a process, or in all."""
    daemon = await fleet.daemon(env={**collector.env, **env})
    tools = [
        call("Todo", item=SECRET),
        call(command=f"echo {SECRET}; false"),
        call("FileRead", file_path=f"/no/{SECRET}"),
        call("Agent", prompt=SECRET),
    ]

    await traced_run(
        fleet,
        collector,
        {"tools": tools, "fault": {"status": 529, "message": SECRET, "times": 1}},
        {"text": SECRET, "stop_reason": "refusal"},
        **env,
    )
    daemon.signal(signal.SIGTERM)
    await daemon.gone()

    assert collector.one("fork.subagent").attributes["status"] == "refused"
    found = [span.name for span in collector.spans if SECRET in repr(span)]
    if env:
        assert {"fork.subagent", f"chat {MODEL}", "execute_tool Todo", "execute_tool Bash"} <= set(found)
    else:
        assert found == []
        assert not any(SECRET.encode() in body for body in collector.raw)
    assert "nexofork.tokens" in collector.metrics


async def test_without_a_setting_nothing_is_added_to_messages(fleet: Fleet) -> None:
    """A fan-out's bytes on the wire are what they were."""
    await fleet.daemon()

    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(says("pear", "Done.")))
        await handle.result()

    assert not any("traceparent" in entry.raw.headers for entry in await fleet.entries(handle.run_id))
