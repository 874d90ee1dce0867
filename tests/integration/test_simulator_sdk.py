"""The real SDK takes the simulator for the provider: every way of calling, every kind of block, every error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anthropic
import httpx2
import pytest
from anthropic import AsyncStream
from anthropic.types import Message, RawMessageStreamEvent, TextBlock, ThinkingBlock, ToolUseBlock

from nexofork.simulator import Simulator, simulator_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from anthropic.types import MessageParam, TextBlockParam, ToolParam

    from nexofork.simulator import ThreadedSimulator

MODEL = "claude-opus-5-5"
KEY = "sk-sim-sdk"
INPUT = {"zeta": "naïve 😀 — ключ", "alpha": [1, {"nested": True}], "empty": {}}
TURN = {
    "thinking": "Zuerst überlege ich, was zu tun ist.",
    "text": "Ergebnis: 😀 très bien, и всё.",
    "tools": [{"name": "Bash", "input": INPUT}, {"name": "Bash", "input": {}}],
}
SYSTEM: list[TextBlockParam] = [
    {"type": "text", "text": "be brief " * 400, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
]
TOOLS: list[ToolParam] = [{"name": "Bash", "description": "Runs a command.", "input_schema": {"type": "object"}}]


@pytest.fixture
async def provider() -> AsyncIterator[Simulator]:
    """A fresh simulator in this loop."""
    async with Simulator() as simulator:
        yield simulator


@pytest.fixture
async def client(provider: Simulator) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """The asynchronous client pointed at it."""
    async with anthropic.AsyncAnthropic(api_key=KEY, base_url=provider.url, max_retries=0) as sdk:
        yield sdk


@pytest.fixture
def threaded() -> Iterator[ThreadedSimulator]:
    """A simulator for the blocking client."""
    with simulator_thread() as simulator:
        yield simulator


@pytest.fixture
def blocking(threaded: ThreadedSimulator) -> Iterator[anthropic.Anthropic]:
    """The blocking client pointed at it."""
    with anthropic.Anthropic(api_key=KEY, base_url=threaded.url, max_retries=0) as sdk:
        yield sdk


def scripted(**turn: Any) -> list[MessageParam]:
    """A conversation that makes the model say this turn."""
    return [{"role": "user", "content": "@sim " + json.dumps(turn)}]


def check(message: Any) -> None:
    """The message is the turn, block by block, as the SDK's own types."""
    thinking, said, first, second = message.content
    assert (thinking.type, said.type, first.type, second.type) == ("thinking", "text", "tool_use", "tool_use")
    assert (thinking.thinking, said.text) == (TURN["thinking"], TURN["text"])
    assert thinking.signature
    assert list(first.input.items()) == list(INPUT.items())
    assert second.input == {}
    assert first.id != second.id
    assert message.stop_reason == "tool_use"
    assert message.usage.cache_creation.ephemeral_1h_input_tokens > 512
    assert message.usage.output_tokens > 10


async def test_async_create(client: anthropic.AsyncAnthropic) -> None:
    """A whole message through `messages.create`."""
    message = await client.messages.create(
        model=MODEL, max_tokens=1000, system=SYSTEM, tools=TOOLS, messages=scripted(**TURN)
    )

    check(message)
    assert [type(block) for block in message.content] == [ThinkingBlock, TextBlock, ToolUseBlock, ToolUseBlock]


@pytest.mark.parametrize("escape", [False, True])
async def test_async_stream_helper(client: anthropic.AsyncAnthropic, escape: bool) -> None:
    """`messages.stream` assembles the same message, with raw UTF-8 and with escapes split in the middle."""
    async with client.messages.stream(
        model=MODEL, max_tokens=1000, system=SYSTEM, tools=TOOLS, messages=scripted(**TURN, escape=escape)
    ) as stream:
        said = "".join([text async for text in stream.text_stream])
        message = await stream.get_final_message()

    assert said == TURN["text"]
    check(message)


async def test_async_raw_events(client: anthropic.AsyncAnthropic) -> None:
    """`messages.create(stream=True)` yields typed events in order."""
    events = await client.messages.create(
        model=MODEL, max_tokens=1000, system=SYSTEM, messages=scripted(**TURN), stream=True
    )
    kinds = [event.type async for event in events]

    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4


async def test_exact_bytes_through_the_sdk(client: anthropic.AsyncAnthropic, provider: Simulator) -> None:
    """Bytes posted as they are arrive as they are, and the stream parses."""
    body = (
        b'{ "stream":true,"model":"claude-opus-5","max_tokens":9,  "messages":[{"content":"h\xc3\xa9","role":"user"}]}'
    )
    events = await client.post(
        "/v1/messages",
        content=body,
        cast_to=Message,
        stream=True,
        stream_cls=AsyncStream[RawMessageStreamEvent],
        options={"headers": {"content-type": "application/json"}, "timeout": 30},
    )
    kinds = [event.type async for event in events]

    assert kinds[-1] == "message_stop"
    assert provider.body(0) == body


async def test_async_beta(client: anthropic.AsyncAnthropic, provider: Simulator) -> None:
    """The beta namespace, whole and streamed, with a beta header."""
    arguments: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 1000,
        "system": SYSTEM,
        "messages": scripted(**TURN),
        "betas": ["some-beta-2026-01-01"],
    }
    check(await client.beta.messages.create(**arguments))
    async with client.beta.messages.stream(**arguments) as stream:
        message = await stream.get_final_message()

    assert message.usage.cache_read_input_tokens == provider.log[0].write_1h
    assert provider.log[1].headers["anthropic-beta"] == "some-beta-2026-01-01"


def test_blocking_create_and_stream(blocking: anthropic.Anthropic, threaded: ThreadedSimulator) -> None:
    """The blocking client, whole, streamed, raw and beta; all but the first read the cache."""
    arguments: dict[str, Any] = {"model": MODEL, "max_tokens": 1000, "system": SYSTEM, "messages": scripted(**TURN)}
    check(blocking.messages.create(**arguments))
    with blocking.messages.stream(**arguments) as stream:
        assert "".join(stream.text_stream) == TURN["text"]
    assert [event.type for event in blocking.messages.create(**arguments, stream=True)][-1] == "message_stop"
    assert blocking.beta.messages.create(**arguments).stop_reason == "tool_use"

    threaded.finished(4)
    assert [record.read > 0 for record in threaded.log] == [False, True, True, True]


async def test_a_tool_loop_with_echoed_objects(client: anthropic.AsyncAnthropic) -> None:
    """Blocks echoed as SDK objects, thinking included, are accepted and the loop goes on."""
    messages: list[MessageParam] = [
        {"role": "user", "content": "@sim " + json.dumps([TURN, {"thinking": "more", "text": "done"}, {"text": "end"}])}
    ]
    for expected in ("tool_use", "end_turn", "end_turn"):
        message = await client.messages.create(model=MODEL, max_tokens=1000, tools=TOOLS, messages=messages)
        assert message.stop_reason == expected
        calls = [block for block in message.content if block.type == "tool_use"]
        messages.append({"role": "assistant", "content": message.content})
        messages.append(
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "ok"} for call in calls]
                or "go on",
            }
        )


async def test_count_tokens(client: anthropic.AsyncAnthropic) -> None:
    """The counter agrees with the bill."""
    counted = await client.messages.count_tokens(model=MODEL, system=SYSTEM, messages=scripted(text="x"))
    message = await client.messages.create(model=MODEL, max_tokens=10, system=SYSTEM, messages=scripted(text="x"))

    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_creation_input_tokens or 0)


async def test_a_prewarm(client: anthropic.AsyncAnthropic) -> None:
    """`max_tokens=0` passes the client and comes back empty."""
    message = await client.messages.create(model=MODEL, max_tokens=0, system=SYSTEM, messages=scripted(text="x"))

    assert (message.content, message.stop_reason, message.usage.output_tokens) == ([], "max_tokens", 0)


async def test_diagnostics_are_parsed(client: anthropic.AsyncAnthropic) -> None:
    """The SDK's typed reason, whole and on the stream."""
    first = await client.messages.create(model=MODEL, max_tokens=50, system=SYSTEM, messages=scripted(text="x"))
    arguments: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 50,
        "system": "other",
        "messages": scripted(text="x"),
        "diagnostics": {"previous_message_id": first.id},
    }
    second = await client.messages.create(**arguments)
    async with client.messages.stream(**arguments) as stream:
        third = await stream.get_final_message()

    for message in (second, third):
        assert message.diagnostics is not None
        assert message.diagnostics.cache_miss_reason is not None
        assert message.diagnostics.cache_miss_reason.type == "system_changed"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, anthropic.BadRequestError),
        (401, anthropic.AuthenticationError),
        (403, anthropic.PermissionDeniedError),
        (404, anthropic.NotFoundError),
        (429, anthropic.RateLimitError),
        (500, anthropic.InternalServerError),
        (529, anthropic.InternalServerError),
    ],
)
async def test_statuses_become_the_sdks_errors(
    client: anthropic.AsyncAnthropic, status: int, error: type[anthropic.APIStatusError]
) -> None:
    """Each status is raised as its class, with the body and the request id."""
    with pytest.raises(error) as caught:
        await client.messages.create(model=MODEL, max_tokens=10, messages=scripted(fault={"status": status}))

    assert caught.value.status_code == status
    assert caught.value.request_id is not None


async def test_the_sdk_retries_with_the_same_bytes(provider: Simulator) -> None:
    """Two overloads and a third try that succeeds, all three alike."""
    provider.script({"fault": {"status": 529, "retry_after": 0.01}, "times": 2})
    async with anthropic.AsyncAnthropic(api_key=KEY, base_url=provider.url, max_retries=2) as sdk:
        message = await sdk.messages.create(model=MODEL, max_tokens=50, messages=scripted(text="third"))

    assert message.content[0].type == "text"
    assert [record.status for record in provider.log] == [529, 529, 200]
    assert len({record.body_sha256 for record in provider.log}) == 1


async def test_an_error_event_is_an_error_with_status_200(client: anthropic.AsyncAnthropic) -> None:
    """What the provider sends in the middle of a stream is raised from the loop."""
    fault = {"error_event_after": 3, "type": "overloaded_error"}
    events = await client.messages.create(
        model=MODEL, max_tokens=50, messages=scripted(text="abc", fault=fault), stream=True
    )
    with pytest.raises(anthropic.APIStatusError) as caught:
        async for _ in events:
            pass

    assert caught.value.status_code == 200
    assert "overloaded_error" in str(caught.value)


async def test_a_cut_stream_is_an_error(client: anthropic.AsyncAnthropic) -> None:
    """A socket closed in the middle is not taken for an end."""
    events = await client.messages.create(
        model=MODEL, max_tokens=50, messages=scripted(text="abc", fault={"cut_after_events": 3}), stream=True
    )
    with pytest.raises(httpx2.RemoteProtocolError):
        async for _ in events:
            pass


async def test_closing_a_stream_is_seen(client: anthropic.AsyncAnthropic, provider: Simulator) -> None:
    """Leaving the stream early closes the socket, and the simulator notices."""
    turn = {"text": "word ", "repeat": 1000, "deltas": 1000, "delta_delay_s": 0.01}
    async with client.messages.stream(model=MODEL, max_tokens=2000, messages=scripted(**turn)) as stream:
        async for _ in stream.text_stream:
            break

    await provider.closed_early(1)
    assert provider.log[0].output < 1000
