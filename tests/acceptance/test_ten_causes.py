"""The ten likeliest ways to lose the cache, one at a time: the run's warning and `explain` name each of them alike.

Chosen by how often they were reported in the field and how silently they cost: what a child renders anew (a session id
in the prompt, tools in another order, fewer tools, another name of the model, another default of effort, a cut history,
a shortened result), and what equal bytes meet (an entry that ran out, another workspace's key, siblings that write at
the same time). Three rarer ones follow: a stripped ttl, a prompt below the minimum, and an entry out of sight.

What is injected is a snapshot that is not what the parent sent, with the reply the parent really got: that is what a
child that renders its own request does. The warning cannot see the parent's bytes, so it names the part the API finds
changed; ``explain`` is given both and names that part and what is wrong with it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from nexofork import CacheSafeParams
from nexofork.cli import run_command
from nexofork.core.explain import Explanation, Sent, explain
from nexofork.core.usage import Usage
from nexofork.run.events import CacheBreakDetected
from tests.support.conversation import AGENT, BASH, MARK, MARK_1H, MODEL, agent_calls, request, says, text
from tests.support.gateway import Gateway
from tests.support.parents import Parent, fork, open_llm, usage_in_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nexofork import AnthropicProvider, DefaultForkSubagent
    from nexofork.simulator import Simulator

SESSIONS = "4b1c0b5e-8d6a-4a6e-9d0d-2f6d5a3c1e77", "07d4e4f1-1c0e-4d0b-8a35-1f0c9d2b6f10"
PROMPT = "You are an agent. Session: {}. Be careful."
SHORTENED = "line 0\nline 0\n[truncated]"
READ = {"name": "Read", "input_schema": {"type": "object"}}
DONE = {"text": "Done."}


def long_history() -> dict[str, Any]:
    """A parent with tools used and a session of its own."""
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [text("Begin.", tokens=2_000)]},
        {"role": "assistant", "content": [text("I begin.")]},
        {"role": "user", "content": [text("Use the tools.")]},
    ]
    for number in range(3):
        use = {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": {"n": number}}
        shown = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": f"line {number}\n" * 400}
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [shown]}]
    messages[-1]["content"].append(text(says("Go on.", agent_calls(2)), mark=MARK))
    return request(
        model=f"{MODEL}-20260101",
        system=[text(PROMPT.format(SESSIONS[0]))],
        tools=[AGENT, BASH, READ],
        output_config={"effort": "low"},
        messages=messages,
    )


def put(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change that sets what is at a path."""

    def change(body: dict[str, Any]) -> None:
        target: Any = body
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value

    return change


def cut_history(body: dict[str, Any]) -> None:
    """Keep the end of the history, as a window over it does."""
    del body["messages"][:2]


RENDERED_ANEW: list[tuple[str, str, Callable[[dict[str, Any]], None]]] = [
    (
        "system_changed",
        "session_id",
        put("system", value=[text(PROMPT.format(SESSIONS[1]))]),
    ),
    ("tools_changed", "tools_reordered", put("tools", value=[BASH, READ, AGENT])),
    ("tools_changed", "tools_missing", put("tools", value=[AGENT, BASH])),
    ("model_changed", "model_alias", put("model", value=MODEL)),
    ("parameters_changed", "effort_differs", put("output_config", value={"effort": "high"})),
    ("messages_changed", "history_sliced", cut_history),
    (
        "messages_changed",
        "tool_result_truncated",
        put("messages", 4, "content", 0, "content", value=SHORTENED),
    ),
]


async def warned(
    forks: DefaultForkSubagent, snapshot: CacheSafeParams, llm: AnthropicProvider, **more: Any
) -> tuple[str, str]:
    """Run a fork and return the cause its warning names, and what it says."""
    handle = await forks.fork(fork(snapshot, llm, says("Look.", DONE), **more))
    result = await handle.result()
    assert result.ok, result.error
    (warning,) = [event.check async for event in handle.events() if isinstance(event, CacheBreakDetected)]
    assert warning == result.cache
    assert warning.cause is not None
    return warning.cause, warning.detail


def sent(sim: Simulator, index: int, *, at: float | None = None) -> Sent:
    """A request as the simulator received and billed it."""
    body, record = sim.body(index), sim.log[index]
    assert body is not None
    return Sent(
        body=body,
        headers={name: value for name, value in record.headers.items() if name.startswith("anthropic-")},
        workspace_id=record.workspace,
        sent_at=at,
        usage=usage_in_log(record),
    )


def explained(folder: Path, capfd: pytest.CaptureFixture[str], a: Sent, b: Sent) -> Explanation:
    """Explain two requests by the library and by the command line, and return what both say."""
    explanation = explain(a, b, minimum_tokens=1024)
    words: list[str] = []
    for name, side in (("a", a), ("b", b)):
        (folder / f"{name}.json").write_bytes(side.body)
        words += [word for key, value in side.headers.items() for word in (f"--header-{name}", f"{key}:{value}")]
        words += [f"--header-{name}", f"anthropic-workspace-id:{side.workspace_id}"]
        if side.sent_at is not None:
            words += [f"--sent-at-{name}", datetime.fromtimestamp(side.sent_at, UTC).isoformat()]
        assert side.usage is not None
        (folder / f"reply-{name}.json").write_text(json.dumps({"content": [], "usage": side.usage.to_wire()}))
        words += [f"--reply-{name}", str(folder / f"reply-{name}.json")]
    capfd.readouterr()
    code = run_command(arguments=["explain", str(folder / "a.json"), str(folder / "b.json"), "--json", *words])
    shown = json.loads(capfd.readouterr().out)
    assert shown == json.loads(json.dumps(explanation.to_json()))
    assert code == int(explanation.loses)
    return explanation


@pytest.mark.breaks_prefix("the snapshot is not what the parent sent")
@pytest.mark.parametrize(("cause", "likely", "change"), RENDERED_ANEW, ids=[case[1] for case in RENDERED_ANEW])
async def test_what_a_child_renders_anew_is_named(
    cause: str,
    likely: str,
    change: Callable[[dict[str, Any]], None],
    sim: Simulator,
    parent: Parent,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One to seven: the warning names the part, `explain` the part and the reason."""
    recorded = await parent.ask(long_history())
    body = json.loads(recorded.body)
    change(body)
    rendered = replace(recorded, body=json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())

    said, detail = await warned(forks, rendered, llm)

    explanation = explained(tmp_path, capfd, sent(sim, 0), sent(sim, 1))
    assert said == explanation.cause == cause
    assert explanation.divergence is not None
    assert explanation.divergence.likely_cause == likely
    assert "capture(client)" in detail
    missed = sim.log[0].prompt_tokens - sim.log[1].read
    assert explanation.tokens_lost == missed
    guessed = explain(replace(sent(sim, 0), usage=None), replace(sent(sim, 1), usage=None))
    assert guessed.tokens_lost == pytest.approx(missed, rel=0.02)


async def test_an_entry_that_ran_out_is_named(
    sim: Simulator,
    parent: Parent,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Eight: after five minutes, though the API finds the same request."""
    snapshot = await parent.ask()
    assert snapshot.sent_at is not None
    sim.clock.advance(400)

    said, detail = await warned(forks, replace(snapshot, sent_at=snapshot.sent_at - 400), llm)

    at = snapshot.sent_at
    explanation = explained(tmp_path, capfd, sent(sim, 0, at=at - 400), sent(sim, 1, at=at))
    assert (said, explanation.cause, explanation.divergence) == ("expired", "expired", None)
    assert "ttl of 1h" in detail


async def test_another_workspaces_key_is_named(
    sim: Simulator, parent: Parent, forks: DefaultForkSubagent, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nine: by the ids in the responses, and not taken for a request that is not known."""
    snapshot = await parent.ask()
    async with open_llm(sim.url, key="sk-sim-strangers") as stranger:
        said, detail = await warned(forks, snapshot, stranger)

    explanation = explained(tmp_path, capfd, sent(sim, 0), sent(sim, 1))
    assert (said, explanation.cause, explanation.divergence) == ("workspace", "workspace", None)
    assert "wrkspc_strangers" in detail


async def test_siblings_that_write_at_the_same_time_are_named(
    sim: Simulator,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Ten: on a cold prefix, where nobody waits for the first byte of another."""
    snapshot = CacheSafeParams.from_parent_request(json.dumps(request()).encode())
    slow = [says(f"Part {n}.", {"text": "Done.", "delay_s": 0.3}) for n in range(3)]

    handles = await forks.fork_each(fork(snapshot, llm, warm_up="all_at_once"), slow)
    results = [await handle.result() for handle in handles]

    assert [result.cache.cause for result in results if result.cache] == ["not_yet_visible"] * 3
    explanation = explained(tmp_path, capfd, sent(sim, 0, at=1000.0), sent(sim, 1, at=1000.1))
    assert explanation.cause == "not_yet_visible"


async def test_a_stripped_ttl_is_named(
    sim: Simulator,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A proxy made five minutes of the hour that the parent asked for."""
    proxy = Gateway(lambda body: body.replace(b',"ttl":"1h"', b""))
    async with Parent(sim.url, http_client=httpx2.AsyncClient(transport=proxy)) as agent:
        snapshot = await agent.ask(mark=MARK_1H)
    sim.clock.advance(600)
    assert snapshot.sent_at is not None

    said, _ = await warned(forks, replace(snapshot, sent_at=snapshot.sent_at - 600), llm)

    asked = replace(sent(sim, 0, at=snapshot.sent_at - 600), body=snapshot.body)
    explanation = explained(tmp_path, capfd, asked, sent(sim, 1, at=snapshot.sent_at))
    assert (said, explanation.cause) == ("ttl_stripped", "ttl_stripped")


async def test_a_prompt_below_the_minimum_is_named(
    sim: Simulator,
    parent: Parent,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Nothing was cached, and nothing is lost."""
    said, _ = await warned(forks, await parent.ask(tokens=300), llm)

    explanation = explained(tmp_path, capfd, sent(sim, 0), sent(sim, 1))
    assert (said, explanation.cause, explanation.loses) == ("below_minimum", "below_minimum", False)


async def test_an_entry_out_of_sight_is_named(
    sim: Simulator,
    parent: Parent,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Automatic caching on a plain string, and a reply of 25 blocks that take no marker behind it."""
    hidden = [{"type": "thinking", "thinking": f"Step {number}."} for number in range(25)]
    answer = {"blocks": [*hidden, {"type": "text", "text": "I fork."}]}
    said_by_user = text(says("Go on.", answer), tokens=5_000)["text"]
    body = request(messages=[{"role": "user", "content": said_by_user}]) | {"cache_control": MARK}
    await parent.client.messages.create(**body)
    snapshot = parent.capture.snapshot()

    said, detail = await warned(forks, snapshot, llm)

    explanation = explained(tmp_path, capfd, sent(sim, 0), sent(sim, 1))
    assert (said, explanation.cause, explanation.divergence) == ("lookback", "lookback", None)
    assert "plain string" in detail


async def test_a_hit_has_nothing_to_explain(
    sim: Simulator,
    parent: Parent,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Without an injected cause neither of them says anything."""
    result = await (await forks.fork(fork(await parent.ask(long_history()), llm, says("Look.", DONE)))).result()

    assert result.cache is not None
    assert (result.cache.cause, result.cache.diagnosis) == (None, None)
    assert explained(tmp_path, capfd, sent(sim, 0, at=1.0), sent(sim, 1, at=2.0)).cause is None


def test_usage_without_cache_fields_divides_by_nothing() -> None:
    """A server that reports no cache counts is no reason to fail."""
    body = json.dumps(request()).encode()

    assert explain(Sent(body=body, usage=Usage()), Sent(body=body, usage=Usage())).cause is None
