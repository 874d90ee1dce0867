"""Cache breaks seen in the field, 1 to 18: prompt, tools, parameters and the history of a fork.

Each test is named after its entry in the list of known breaks and shows that a fork cannot express it, refuses it
before any request, or reports it by name. Entries 19 to 36 are in ``test_cache_breaks_in_flight``. All 36 can occur in
process; what only another host adds (6's container block, 26's remote credential) is tested here as far as it does.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import CacheSafeParams, ForkOverrides, FunctionTools, capture
from nexofork.core.boilerplate import BOILERPLATE, PLACEHOLDER_RESULT, reminder
from nexofork.errors import CacheBreak, NothingCaptured
from tests.support.conversation import AGENT, BASH, MARK, agent_calls, call, request, says, text
from tests.support.gateway import llm_behind
from tests.support.parents import Parent, body_of, fork, results_in
from tests.support.witness import is_grown, stripped

if TYPE_CHECKING:
    from nexofork import AnthropicProvider, DefaultForkSubagent, ForkResult
    from nexofork.simulator import Simulator

TWO_TURNS = says("Work.", {"tools": [call(command="ls")]}, {"text": "Done."})


async def bash(arguments: dict[str, Any]) -> str:
    """Pretend to run a command."""
    return "ok"


TOOLS = FunctionTools({"Bash": bash})


async def run(
    forks: DefaultForkSubagent, snapshot: CacheSafeParams, llm: AnthropicProvider, said: str = TWO_TURNS, **more: Any
) -> ForkResult:
    """Run one fork to its end."""
    return await (await forks.fork(fork(snapshot, llm, said, tool_dispatcher=TOOLS, **more))).result()


async def refused(
    sim: Simulator, forks: DefaultForkSubagent, snapshot: CacheSafeParams, llm: AnthropicProvider, **fields: Any
) -> CacheBreak:
    """Try to override request fields; return the refusal, having seen that nothing was sent."""
    before = sim.request_count
    with pytest.raises(CacheBreak) as found:
        await forks.fork(fork(snapshot, llm, overrides=ForkOverrides(request=fields)))
    assert sim.request_count == before
    return found.value


def raw(sim: Simulator, index: int) -> bytes:
    """The bytes of a request."""
    body = sim.body(index)
    assert body is not None
    return body


async def test_01_a_rendered_prompt_that_was_never_recorded_is_refused(sim: Simulator, parent: Parent) -> None:
    """Without a recorded request there is no snapshot, and so no fallback prompt to diverge with."""
    with pytest.raises(NothingCaptured, match="Let the parent make one call first"):
        parent.capture.snapshot()

    assert sim.request_count == 0


async def test_02_text_that_is_composed_in_later_is_in_the_snapshot(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """What is added below the caller's arguments is captured, because capture sits at the transport."""
    composed = [text("You are an agent."), text("Added by middleware.")]
    await parent.client.messages.create(**request(), extra_body={"system": composed})

    await run(forks, parent.capture.snapshot(), llm)

    assert body_of(sim, 1)["system"] == composed
    assert sim.log[1].read > 0


async def test_03_a_child_reuses_the_parents_bytes_and_never_renders_them_again(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Unusual white space, escapes and key order of the parent are in the child as they were."""
    odd = json.dumps(request(mark=MARK), indent=1).replace("long session", "l\\u006fng session").encode()
    await parent.client.post("/v1/messages", content=odd, cast_to=object, options={"timeout": 30.0})

    await run(forks, parent.capture.snapshot(), llm)

    assert b"l\\u006fng session" in raw(sim, 1)
    assert raw(sim, 1).startswith(odd[: odd.index(b"@sim")])
    assert sim.log[1].read == sim.log[0].prompt_tokens


async def test_04_a_session_id_in_the_prompt_is_the_parents_in_every_child(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Children share the parent's scratch path, and a parent of another session has another cache key."""
    system = [text("Scratch: /tmp/session-41f0.")]
    snapshot = await parent.ask(system=system)
    other = CacheSafeParams.from_parent_request(request(system=[text("Scratch: /tmp/session-9c3e.")]))

    await run(forks, snapshot, llm)

    assert body_of(sim, 1)["system"] == system
    assert other.cache_key_hash != snapshot.cache_key_hash
    assert other.dimensions["system"] != snapshot.dimensions["system"]


async def test_05_the_prompt_is_sent_again_unchanged_on_every_turn(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A child's later requests carry the same system prompt as its first and as the parent's."""
    await run(forks, await parent.ask(), llm)

    systems = [body_of(sim, index)["system"] for index in range(3)]
    assert systems[0] == systems[1] == systems[2]


async def test_06_what_is_a_childs_own_stands_behind_everything_shared(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Agent id, notes and reminder come after the boilerplate, or not at all."""
    overrides = ForkOverrides(agent_id="agent-0815", critical_system_reminder="Stay in /srv/child.")
    notes = ["Work.", "cwd: /srv/child, git: main, OS: linux"]

    await (await forks.fork(fork(await parent.ask(), llm, notes, overrides=overrides))).result()

    body = raw(sim, 1)
    shared_end = body.index(json.dumps(BOILERPLATE, ensure_ascii=False).encode())
    assert min(body.index(b"cwd: /srv/child"), body.index(b"Stay in /srv/child.")) > shared_end
    assert b"agent-0815" not in body
    assert [block["text"] for block in body_of(sim, 1)["messages"][-1]["content"][-3:]] == [
        *notes,
        reminder("Stay in /srv/child."),
    ]


async def test_07_a_flag_that_flips_after_the_request_changes_nothing(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The caller's own objects may change; the snapshot is what was sent."""
    body = request()
    snapshot = await parent.ask(body)
    sent = json.dumps(body["system"])
    body["system"][0]["text"] = "Flag is on. Another persona."

    await run(forks, snapshot, llm)

    assert json.dumps(body_of(sim, 1)["system"]) == sent


async def test_08_a_narrowed_tool_set_is_refused_and_a_filter_keeps_the_bytes(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Fewer tools are a named refusal; the way to narrow is a filter, which the request does not show."""

    class ReadOnly:
        def deny(self, name: str, arguments: dict[str, Any]) -> str | None:
            return "this fork only reads."

    snapshot = await parent.ask()
    error = await refused(sim, forks, snapshot, llm, tools=[AGENT])

    await run(forks, snapshot, llm, tool_filter=ReadOnly())

    assert (error.fields, "tools" in error.loses) == (("tools",), True)
    assert body_of(sim, 2)["tools"] == [AGENT, BASH]
    assert results_in(sim, 2)[0]["content"] == "Bash was not run: this fork only reads."


async def test_09_a_tool_list_refreshed_by_the_parent_does_not_reach_running_children(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A child keeps the list it was forked with on every turn, whatever the parent sends meanwhile."""
    snapshot = await parent.ask()
    await parent.ask(tools=[AGENT])

    await run(forks, snapshot, llm)

    assert [body_of(sim, index)["tools"] for index in (2, 3)] == [[AGENT, BASH]] * 2
    assert sim.log[2].read == sim.log[0].prompt_tokens


async def test_10_the_order_of_tools_is_the_parents_and_part_of_the_key(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Children send the list as it was; another order is another cache key, named by its dimension."""
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("zeta", "Agent", "alpha", "Bash")]
    snapshot = await parent.ask(tools=tools)
    shuffled = CacheSafeParams.from_parent_request(request(tools=sorted(tools, key=str)))

    await run(forks, snapshot, llm)

    assert [tool["name"] for tool in body_of(sim, 2)["tools"]] == ["zeta", "Agent", "alpha", "Bash"]
    assert shuffled.dimensions["tools"] != snapshot.dimensions["tools"]


async def test_11_a_missing_tool_server_never_shrinks_the_list(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A fork that can run no tool at all still sends them all; a call is answered, not hidden."""
    handle = await forks.fork(fork(await parent.ask(), llm, TWO_TURNS))

    assert (await handle.result()).ok
    assert body_of(sim, 2)["tools"] == [AGENT, BASH]
    (answer,) = results_in(sim, 2)
    assert (answer["is_error"], "no tool 'Bash'" in answer["content"]) == (True, True)


async def test_12_effort_is_the_parents_and_overriding_it_is_refused(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """There is no default of the fork's own that could differ."""
    snapshot = await parent.ask(output_config={"effort": "low"})
    error = await refused(sim, forks, snapshot, llm, output_config={"effort": "high"})

    await run(forks, snapshot, llm)

    assert (error.fields, error.loses) == (("output_config",), "messages")
    assert body_of(sim, 1)["output_config"] == {"effort": "low"}
    assert sim.log[1].read == 5_000


async def test_13_thinking_and_output_limit_are_the_parents(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A smaller output limit would clamp the budget, so it is refused like switching thinking off."""
    thinking = {"type": "enabled", "budget_tokens": 2_048}
    snapshot = await parent.ask(thinking=thinking)
    fields = [
        (await refused(sim, forks, snapshot, llm, **change)).fields
        for change in ({"thinking": {"type": "disabled"}}, {"max_tokens": 1_024})
    ]

    await run(forks, snapshot, llm)

    assert fields == [("thinking",), ("max_tokens",)]
    assert (body_of(sim, 1)["thinking"], body_of(sim, 1)["max_tokens"]) == (thinking, 4_000)
    assert sim.log[1].read == 5_000


@pytest.mark.breaks_prefix("a router between here and the provider swaps the model")
async def test_14_another_model_is_refused_and_a_swapped_one_is_named(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The fork runs the parent's pinned model; if a router changes it, the result says so."""
    snapshot = await parent.ask(model="claude-opus-4-8-20260101")
    error = await refused(sim, forks, snapshot, llm, model="claude-opus-4-8")
    await run(forks, snapshot, llm)
    async with llm_behind(sim, lambda body: body.replace(b"claude-opus-4-8-20260101", b"claude-sonnet-5")) as router:
        swapped = await run(forks, snapshot, router)

    assert error.fields == ("model",)
    assert sim.log[1].model == "claude-opus-4-8-20260101"
    assert swapped.cache is not None
    assert swapped.cache.cause == "model"


async def test_15_the_whole_history_is_there(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Sixty messages with tool calls and interim text are neither cut to the last forty nor thinned out."""
    history: list[dict[str, Any]] = [{"role": "user", "content": [text("Begin.", tokens=1_500)]}]
    for number in range(30):
        use = {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": {"n": number}}
        answer = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": f"result {number}"}
        history.append({"role": "assistant", "content": [text(f"Interim {number}."), use]})
        history.append({"role": "user", "content": [answer]})
    history[-1]["content"].append(text(says("Go on.", agent_calls(2)), mark=MARK))
    snapshot = await parent.ask(request(messages=history))

    await run(forks, snapshot, llm)

    sent = body_of(sim, 0)["messages"]
    assert body_of(sim, 1)["messages"][: len(sent)] == sent
    assert sim.log[1].read == sim.log[0].prompt_tokens


async def test_16_reminders_in_the_history_and_of_the_child_stay_where_they_were(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The parent's are not scrubbed, the child's own are part of its transcript and sent again."""
    said = [text("<system-reminder>Be brief.</system-reminder>", tokens=3_000)]
    said.append(text(says("Go on.", agent_calls(2)), mark=MARK))
    snapshot = await parent.ask(request(messages=[{"role": "user", "content": said}]))

    await run(forks, snapshot, llm, overrides=ForkOverrides(critical_system_reminder="Never push."))

    assert all(raw(sim, index).count(b"Be brief.") == 1 for index in range(3))
    assert [raw(sim, index).count(b"Never push.") for index in (1, 2)] == [1, 2]


async def test_17_nothing_is_sent_twice_and_no_field_is_added(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The start-up context occurs once, and the child's top-level fields are the parent's and what it may edit."""
    snapshot = await parent.ask(system=[text("Start-up context 7331.")])

    await run(forks, snapshot, llm)

    assert raw(sim, 1).count(b"Start-up context 7331.") == 1
    assert set(body_of(sim, 1)) == set(body_of(sim, 0)) | {"stream", "diagnostics"}
    assert is_grown(stripped(raw(sim, 0)), stripped(raw(sim, 1)))


async def test_18_open_tool_calls_are_answered_and_never_filtered(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """At the end of the history and in its middle, every call is there with one constant answer."""
    lost = {"type": "tool_use", "id": "toolu_lost", "name": "Bash", "input": {"command": "ls"}}
    body = request(
        messages=[
            {"role": "user", "content": [text("Begin.", tokens=2_000)]},
            {"role": "assistant", "content": [lost]},
            {"role": "user", "content": [text(says("Never mind.", agent_calls(3)), mark=MARK)]},
        ]
    )
    repaired = CacheSafeParams.from_parent_request(body)
    with capture(parent.client) as recording:
        await parent.client.post("/v1/messages", content=repaired.body, cast_to=object, options={"timeout": 30.0})
        snapshot = recording.snapshot()

    await run(forks, snapshot, llm)

    assert (repaired.answered, repaired.exact) == (("toolu_lost",), False)
    messages = body_of(sim, 1)["messages"]
    assert messages[2]["content"][0] == {
        "type": "tool_result",
        "tool_use_id": "toolu_lost",
        "content": PLACEHOLDER_RESULT,
    }
    calls = [block["id"] for block in messages[3]["content"] if block["type"] == "tool_use"]
    answers = [block for block in messages[4]["content"] if block["type"] == "tool_result"]
    assert [answer["tool_use_id"] for answer in answers] == calls
    assert {answer["content"] for answer in answers} == {PLACEHOLDER_RESULT}
    assert sim.log[1].read == sim.log[0].prompt_tokens
