"""Laws that hold for any prompt, any history of requests and any garbage."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nexofork.simulator import CATALOG, Clock, SimulatorConfig, count_block_tokens
from nexofork.simulator.breakpoints import Breakpoint
from nexofork.simulator.cache import Prefix, PromptCache
from nexofork.simulator.canon import canonical, parse_body
from nexofork.simulator.errors import ApiError
from nexofork.simulator.events import stream_events
from nexofork.simulator.intake import Intake
from nexofork.simulator.invalidation import level_digests
from nexofork.simulator.log import RequestLog
from nexofork.simulator.prompt import Prompt, lay_out
from nexofork.simulator.reply import compose
from nexofork.simulator.signatures import Signer, bind
from nexofork.simulator.turns import Turn
from tests.unit.simulator.client import MODEL, assistant, joined, mark, request, tool, user

texts = st.text(min_size=1, max_size=40).filter(lambda value: value.strip() != "")
blocks = st.builds(lambda value: {"type": "text", "text": value}, texts)
messages = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "assistant"]),
        st.one_of(texts, st.lists(blocks, min_size=1, max_size=5)),
    ),
    min_size=1,
    max_size=8,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


def chain(prompt: Prompt, body: dict[str, Any]) -> list[bytes]:
    """The cumulative hashes of a request."""
    return prompt.chain(level_digests(body, model=CATALOG[MODEL], version="2026-10-21", betas=""))


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, list[Breakpoint], float]]:
    """Requests over one growing row of blocks: length, breakpoints, time."""
    history = []
    now = 0.0
    for _ in range(draw(st.integers(1, 12))):
        length = draw(st.integers(1, 60))
        hours = draw(st.lists(st.integers(0, length - 1), max_size=2, unique=True))
        after = max(hours, default=-1) + 1
        minutes = draw(st.lists(st.integers(after, length - 1), max_size=2, unique=True)) if after < length else []
        points = [Breakpoint(position=n, ttl="1h") for n in sorted(hours)]
        points += [Breakpoint(position=n, ttl="5m") for n in sorted(minutes)]
        now += draw(st.sampled_from([0.0, 100.0, 299.0, 301.0, 4000.0]))
        history.append((length, points, now))
    return history


@given(history=histories(), sizes=st.lists(st.integers(1, 400), min_size=60, max_size=60))
def test_the_four_counters_always_add_up_to_the_prompt(
    history: list[tuple[int, list[Breakpoint], float]], sizes: list[int]
) -> None:
    """Read, both writes and fresh input are the prompt, whatever was cached before."""
    cache = PromptCache()
    totals = [sum(sizes[: n + 1]) for n in range(60)]
    links = [str(n).encode() for n in range(60)]
    for length, points, now in history:
        prefix = Prefix(
            workspace="w", chain=links[:length], totals=totals[:length], breakpoints=points, minimum_tokens=512
        )

        plan = cache.plan(prefix, now=now)
        cache.commit(plan)

        assert plan.bill.total == totals[length - 1]
        assert min(plan.bill.read, plan.bill.write_5m, plan.bill.write_1h, plan.bill.fresh) >= 0
        assert bool(points) or plan.bill.fresh == plan.bill.total


@given(opening=messages, more=messages)
def test_appending_never_changes_an_earlier_hash(opening: list[dict[str, Any]], more: list[dict[str, Any]]) -> None:
    """The chain of a longer conversation begins with the chain of the shorter one."""
    short, long = request(*opening), request(*opening, *more)

    before, after = chain(lay_out(short), short), chain(lay_out(long), long)

    assert after[: len(before)] == before
    assert len(set(after)) == len(after)


@given(opening=messages, index=st.integers(0, 100), extra=texts)
def test_a_changed_block_changes_every_hash_from_there_on(
    opening: list[dict[str, Any]], index: int, extra: str
) -> None:
    """Nothing after a difference can hit."""
    changed = json.loads(json.dumps(opening))
    message = changed[index % len(changed)]
    if isinstance(message["content"], str):
        message["content"] += extra
    else:
        message["content"][0]["text"] += extra
    first = sum(len(m["content"]) if isinstance(m["content"], list) else 1 for m in opening[: index % len(opening)])
    one, other = request(*opening), request(*changed)

    links, others = chain(lay_out(one), one), chain(lay_out(other), other)

    assert others[:first] == links[:first]
    assert not set(others[first:]) & set(links[first:])


@given(content=st.lists(blocks, min_size=1, max_size=20))
def test_tokens_are_additive(content: list[dict[str, Any]]) -> None:
    """A prompt costs the sum of its blocks, marked or not."""
    marked = [{**block, "cache_control": {"type": "ephemeral"}} for block in content]

    assert lay_out(request(user(*content))).tokens == sum(map(count_block_tokens, marked))


@given(value=json_values)
def test_parsing_keeps_the_order_of_keys(value: Any) -> None:
    """What was written in canonical form comes back byte for byte."""
    body = canonical({"value": value})

    assert canonical(parse_body(body)) == body


THOUGHT = {
    "type": "thinking",
    "thinking": "t",
    "signature": Signer("simulator").sign("t", bind(request())),
}
RICH = request(
    user("q", {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}),
    assistant("a", {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}}),
    user({"type": "tool_result", "tool_use_id": "toolu_1", "content": [mark({"type": "text", "text": "out"})]}, "next"),
    assistant(THOUGHT, "a"),
    user({"type": "document", "source": {"type": "text"}, "citations": {"enabled": True}}, "more"),
    assistant(
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"type": "web_search_result"}]},
    ),
    user(mark({"type": "text", "text": '@sim {"text": "hello"}'})),
    model="claude-opus-5",
    system=[{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
    tools=[tool(), {"type": "web_search_20250305", "name": "web_search"}],
    tool_choice={"type": "auto"},
    thinking={"type": "adaptive"},
    output_config={"effort": "low"},
    cache_control={"type": "ephemeral"},
    diagnostics={"previous_message_id": None},
    metadata={"user_id": "u"},
    speed="fast",
    stop_sequences=["END"],
    context_management={"edits": []},
    mcp_servers=[{"type": "url"}],
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, inner in items for found in [(*path, key), *places(inner, (*path, key))]]


@settings(max_examples=200)
@given(path=st.sampled_from(places(RICH)), junk=json_values, remove=st.booleans())
def test_a_damaged_request_is_answered_or_refused_and_never_crashes(
    path: tuple[Any, ...], junk: Any, remove: bool
) -> None:
    """Whatever one part of a rich request is replaced by, the outcome is an answer or an error of the API."""
    body = json.loads(json.dumps(RICH))
    holder = body
    for key in path[:-1]:
        holder = holder[key]
    if remove:
        del holder[path[-1]]
    else:
        holder[path[-1]] = junk
    clock = Clock()
    log = RequestLog(kept_body_bytes=0, on_finish=lambda record: None)
    headers = {"anthropic-version": "2023-06-01"}
    record = log.open(method="POST", path="/v1/messages", body=b"", headers=headers, now=clock.now())
    config = SimulatorConfig()

    with suppress(ApiError):
        Intake(config, clock).accept(json.dumps(body).encode(), headers, config.tenant("k"), record)


@given(said=texts, deltas=st.one_of(st.none(), st.integers(1, 50)), escape=st.booleans(), limit=st.integers(1, 60))
def test_a_streamed_reply_is_the_reply(said: str, deltas: int | None, escape: bool, limit: int) -> None:
    """However it is split or cut, the deltas join to the content, within the output limit."""
    turn = Turn(
        blocks=(
            {"type": "thinking", "thinking": said},
            {"type": "text", "text": said},
            {"type": "tool_use", "name": "Bash", "input": {said: said}},
        )
    )
    body = request()

    reply = compose(turn, max_tokens=limit, bind=lambda: bind(body), signer=Signer("s"), escape=escape, omit=False)
    events = [
        json.loads(event.data.decode().partition("data: ")[2])
        for event in stream_events(reply, message={}, usage={}, deltas=deltas, escape=escape)
    ]

    assert joined(events) == [block.text for block in reply.blocks]
    assert reply.output_tokens <= limit
