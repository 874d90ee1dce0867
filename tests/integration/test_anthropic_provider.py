from __future__ import annotations

import asyncio
import json
import logging
import socket
import tracemalloc
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from anthropic import AsyncAnthropic

from nexofork.core.rope import Rope
from nexofork.providers.anthropic import AnthropicProvider, Timeouts
from nexofork.providers.failures import (
    BadRequest,
    ConnectionLost,
    ContextOverflow,
    Overloaded,
    RateLimited,
    ServerFault,
    StreamFailed,
    TooLarge,
    Unauthorized,
)
from nexofork.providers.provider import (
    BlockFinished,
    CallRepeated,
    CallRetried,
    MessageFinished,
    MessageStarted,
    ModelRequest,
    TextDelta,
)
from nexofork.providers.retry import RetryPolicy
from nexofork.simulator import Simulator, SimulatorConfig
from tests.integration.rawserver import plain_response, raw_server
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from nexofork.core.reply import Reply
    from nexofork.errors import ProviderError
    from nexofork.providers.outgoing import Transport
    from nexofork.providers.provider import ProviderEvent

    MakeProvider = Callable[..., AbstractAsyncContextManager["Rig"]]

VERSION = ("anthropic-version", "2026-10-21")
SSE = b"".join(
    b"event: %s\r\ndata: %s\r\n\r\n" % (kind, data)
    for kind, data in [
        (b"message_start", b'{"type":"message_start","message":{"id":"msg_1","model":"m","usage":{"input_tokens":4}}}'),
        (b"content_block_start", b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}'),
        (b"x", b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hello"}}'),
        (b"content_block_stop", b'{"type":"content_block_stop","index":0}'),
        (b"x", b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}'),
        (b"message_stop", b'{"type":"message_stop"}'),
    ]
)


class Rig:
    """A provider and the waits it asked for."""

    def __init__(self, provider: AnthropicProvider, slept: list[float]) -> None:
        self.provider = provider
        self.slept = slept

    async def events(self, request: ModelRequest) -> list[ProviderEvent]:
        """Every event of a call."""
        return [event async for event in self.provider.stream(request)]

    async def reply(self, request: ModelRequest) -> Reply:
        """The reply at the end of a call."""
        last = (await self.events(request))[-1]
        assert isinstance(last, MessageFinished)
        return last.reply


@pytest.fixture(params=["httpx2", "aiohttp"])
def transport(request: pytest.FixtureRequest) -> Transport:
    """Every claim holds on both transports."""
    return "httpx2" if request.param == "httpx2" else "aiohttp"


@pytest.fixture
def make(transport: Transport) -> MakeProvider:
    """Opens providers whose retries wait for nobody."""

    @asynccontextmanager
    async def open_provider(url: str, *, api_key: str = "sk-sim-main", **settings: Any) -> AsyncIterator[Rig]:
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        provider = AnthropicProvider.from_env(
            base_url=url, api_key=api_key, transport=transport, sleep=sleep, **settings
        )
        async with provider:
            yield Rig(provider, slept)

    return open_provider


def a_request(*turns: dict[str, Any], headers: tuple[tuple[str, str], ...] = (VERSION,), **fields: Any) -> ModelRequest:
    """A request whose answers are scripted."""
    text = "Hello" + (f"\n@sim {json.dumps(turns)}" if turns else "")
    body = {
        "max_tokens": 1024,
        "messages": [{"role": "user", "content": text}],
        "model": "claude-opus-5",
        "stream": True,
    }
    raw = json.dumps({key: value for key, value in (body | fields).items() if value is not None}).encode()
    return ModelRequest(body=Rope([raw]), headers=headers)


async def test_the_body_arrives_byte_for_byte_and_unchunked(make: MakeProvider) -> None:
    """Pieces of a body arrive as one plain body: the very bytes, with their length, not in HTTP chunks."""
    prefix = bytes(range(256)) * 2000
    body = Rope([memoryview(prefix)[:-1000], b'{"\xc3\xa9":', memoryview(prefix)[-1000:]])
    async with raw_server(plain_response(SSE, "content-type: text/event-stream")) as server, make(server.url) as rig:
        await rig.reply(ModelRequest(body=body, headers=(VERSION,)))

        assert server.bodies == [bytes(body)]
        assert ("content-length", str(len(body))) in server.headers(0)
        assert "transfer-encoding" not in dict(server.headers(0))


async def test_a_retry_sends_the_same_bytes_and_headers(make: MakeProvider) -> None:
    """The second attempt cannot be told from the first."""
    busy = plain_response(b"{}", status="529 Overloaded")
    ok = plain_response(SSE, "content-type: text/event-stream")
    async with raw_server(busy, ok) as server, make(server.url) as rig:
        await rig.reply(a_request(headers=(VERSION, ("anthropic-beta", "b-2026"))))

        assert server.bodies[0] == server.bodies[1]
        assert server.headers(0) == server.headers(1)


async def test_version_betas_and_query_are_the_parents(make: MakeProvider) -> None:
    """What the parent sent goes out once, as it was; a beta it did not send does not."""
    ok = plain_response(SSE, "content-type: text/event-stream")
    request = ModelRequest(
        body=Rope([b"{}"]),
        headers=(("anthropic-version", "2023-06-01"), ("anthropic-beta", "one-2025,two-2026")),
        query=(("beta", "true"),),
    )
    async with raw_server(ok) as server, make(server.url) as rig:
        await rig.reply(request)

        sent = server.headers(0)
        assert [value for name, value in sent if name == "anthropic-version"] == ["2023-06-01"]
        assert [value for name, value in sent if name == "anthropic-beta"] == ["one-2025,two-2026"]
        assert server.heads[0].startswith(b"POST /v1/messages?beta=true HTTP/1.1\r\n")
        assert "NOT_GIVEN" not in server.heads[0].decode()


async def test_a_beta_of_the_client_does_not_change_the_prefix() -> None:
    """A client set up with betas of its own sends only the parent's."""
    ok = plain_response(SSE, "content-type: text/event-stream")
    async with (
        raw_server(ok) as server,
        AsyncAnthropic(base_url=server.url, api_key="k", default_headers={"anthropic-beta": "own"}) as client,
    ):
        rig = Rig(AnthropicProvider(client), [])
        await rig.reply(a_request())
        await rig.reply(a_request(headers=(VERSION, ("anthropic-beta", "parents"))))

        assert "anthropic-beta" not in dict(server.headers(0))
        assert [value for name, value in server.headers(1) if name == "anthropic-beta"] == ["parents"]


async def test_a_reply_is_streamed_in_order_and_kept_as_bytes(make: MakeProvider) -> None:
    """Start, text as it comes, finished blocks, the whole: thinking and tool input in the bytes the model made."""
    turn = {
        "thinking": "Let me see: é",
        "text": "I will look \N{GRINNING FACE}.",
        "tools": [{"name": "Read", "input": {"z": 1, "a": {"y": [1, 2], "b": "ü"}}}],
        "deltas": 5,
    }
    request = a_request(turn, tools=[{"name": "Read", "input_schema": {"type": "object"}}])
    async with Simulator(SimulatorConfig(escape_non_ascii=True)) as sim, make(sim.url) as rig:
        events = await rig.events(request)

    kinds = [type(event) for event in events]
    assert kinds[0] is MessageStarted
    assert kinds[-1] is MessageFinished
    assert kinds.count(BlockFinished) == 3
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == turn["text"]
    last = events[-1]
    assert isinstance(last, MessageFinished)
    thinking, text, tool = last.reply.blocks
    assert (thinking.value["thinking"], text.value["text"]) == (turn["thinking"], turn["text"])
    assert thinking.value["signature"]
    assert list(tool.value["input"]) == ["z", "a"]
    assert last.reply.stop_reason == "tool_use"
    assert last.reply.usage.output_tokens > 0


async def test_a_reply_can_be_sent_back(make: MakeProvider) -> None:
    """The API accepts an assembled reply in the next turn, signed thinking included."""
    turns: list[dict[str, Any]] = [
        {"thinking": "Hm.", "tools": [{"name": "Read", "input": {"path": "a"}}]},
        {"text": "Done."},
    ]
    first = a_request(*turns, tools=[{"name": "Read", "input_schema": {"type": "object"}}])
    async with Simulator() as sim, make(sim.url) as rig:
        reply = await rig.reply(first)
        result = {"type": "tool_result", "tool_use_id": reply.tool_uses[0].id, "content": "x"}
        body = json.loads(bytes(first.body))
        body["messages"] += [{"role": "assistant", "content": "REPLY"}, {"role": "user", "content": [result]}]
        raw = json.dumps(body).encode().replace(b'"REPLY"', reply.content)

        answer = await rig.reply(ModelRequest(body=Rope([raw]), headers=(VERSION,)))

    assert answer.text == "Done."


async def test_a_truncated_tool_call_is_named(make: MakeProvider) -> None:
    """A call that `max_tokens` cut off is reported as such, and what is left is valid."""
    turn = {"text": "Writing.", "tools": [{"name": "Write", "input": {"p": "a" * 50}}], "stop_reason": "max_tokens"}
    request = a_request(turn, tools=[{"name": "Write", "input_schema": {"type": "object"}}])
    async with Simulator() as sim, make(sim.url) as rig:
        reply = await rig.reply(request)

    assert reply.stop_reason == "max_tokens"
    assert [block.kind for block in reply.blocks] == ["text"]
    assert reply.truncated_tool_use is not None
    assert reply.truncated_tool_use.name == "Write"


async def test_the_response_says_who_is_billed(make: MakeProvider) -> None:
    """Workspace, organisation and request id are on the first event, and the provider remembers the workspace."""
    async with Simulator() as sim, make(sim.url, api_key="sk-sim-blue") as rig:
        assert rig.provider.workspace_id is None

        started = (await rig.events(a_request()))[0]

        assert isinstance(started, MessageStarted)
        assert started.workspace_id == "wrkspc_blue"
        assert started.organization_id == "org_default"
        assert started.request_id == sim.log[0].request_id
        assert rig.provider.workspace_id == "wrkspc_blue"


async def test_ids_in_headers_do_not_repeat_the_key(make: MakeProvider) -> None:
    """They are stored with every call, so the key that was sent is taken out and their length is limited."""
    key = "sk-ant-api03-Zk29fjQ0aLw8xTnB-4vR7yHcE1sPdMuGqXoJbW5"
    ids = (
        f"anthropic-workspace-id: {key}",
        f"anthropic-organization-id: {'x' * 8000}",
        "content-type: text/event-stream",
    )
    async with raw_server(plain_response(SSE, *ids)) as server, make(server.url, api_key=key) as rig:
        started = (await rig.events(a_request()))[0]

        assert isinstance(started, MessageStarted)
        assert (started.workspace_id, started.organization_id) == ("[redacted]", "x" * 256)


@pytest.mark.parametrize("cookie", ["a=b", "\xff=\x80; path=/"])
async def test_a_servers_cookies_are_not_kept(make: MakeProvider, cookie: str) -> None:
    """No later call carries them, and none fails because no header can hold one."""
    answer = plain_response(SSE, "content-type: text/event-stream", "set-cookie: COOKIE")
    async with (
        raw_server(answer.replace(b"COOKIE", cookie.encode("latin-1"))) as server,
        make(server.url) as rig,
    ):
        for _ in range(2):
            assert (await rig.reply(a_request())).text == "hello"

        assert "cookie" not in dict(server.headers(1))


async def test_a_plain_server_is_enough(make: MakeProvider) -> None:
    """A compatible server without ids, cache counts or HTTP chunks works as it is."""
    bare = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + SSE
    async with raw_server(bare) as server, make(server.url) as rig:
        events = await rig.events(a_request())

        started, last = events[0], events[-1]
        assert isinstance(started, MessageStarted)
        assert isinstance(last, MessageFinished)
        assert (started.workspace_id, started.usage.input_tokens) == (None, 4)
        assert last.reply.text == "hello"
        assert rig.provider.workspace_id is None


async def test_a_prewarm_is_answered_without_a_stream(make: MakeProvider) -> None:
    """A body that does not ask to stream gets the same events, so a pre-warm goes through the same door."""
    async with Simulator() as sim, make(sim.url) as rig:
        events = await rig.events(a_request(max_tokens=0, stream=None))

        assert [type(event) for event in events] == [MessageStarted, MessageFinished]
        assert sim.log[0].prewarm


async def test_connections_are_used_again(make: MakeProvider) -> None:
    """Calls one after the other share a connection, streamed to the end or not."""
    ok = plain_response(SSE, "content-type: text/event-stream")
    async with raw_server(ok) as server, make(server.url) as rig:
        for _ in range(3):
            async with aclosing(rig.provider.stream(a_request())) as events:
                async for event in events:
                    if isinstance(event, MessageFinished):
                        break

        assert (len(server.heads), server.connections) == (3, 1)


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ({"status": 429, "retry_after": 0}, RateLimited),
        ({"status": 429, "retry_after": 7}, RateLimited),
        ({"status": 529}, Overloaded),
        ({"status": 500}, ServerFault),
        ({"cut_after_events": 0}, ConnectionLost),
        ({"cut_after_events": 1}, ConnectionLost),
        ({"cut_after_events": 4}, ConnectionLost),
        ({"error_event_after": 3}, StreamFailed),
        ({"error_event_after": 0, "type": "api_error"}, StreamFailed),
    ],
)
async def test_a_passing_fault_is_announced_and_survived(
    make: MakeProvider, fault: dict[str, Any], named: type[ProviderError]
) -> None:
    """The failed attempt is reported by name, its events are void, and the same bytes succeed the second time."""
    request = a_request({"text": "Here I am.", "deltas": 4, "fault": fault | {"times": 1}})
    async with Simulator() as sim, make(sim.url) as rig:
        events = await rig.events(request)

        retried = [event for event in events if isinstance(event, CallRetried)]
        assert [(type(event.error), event.attempt) for event in retried] == [(named, 1)]
        assert rig.slept == [retried[0].delay_s]
        after = events[events.index(retried[0]) + 1 :]
        assert isinstance(after[0], CallRepeated)
        assert isinstance(after[1], MessageStarted)
        assert "".join(event.text for event in after if isinstance(event, TextDelta)) == "Here I am."
        assert sim.body(0) == sim.body(1) == bytes(request.body)
        if "retry_after" in fault:
            assert rig.slept == [fault["retry_after"]]


@pytest.mark.parametrize(
    ("fault", "named", "words"),
    [
        ({"status": 429, "retry_after": 3600}, RateLimited, "wait 3600 s"),
        ({"status": 429}, RateLimited, "spend cap"),
        ({"status": 400, "message": "max_tokens: too many"}, BadRequest, "max_tokens: too many"),
        ({"status": 400, "message": "prompt is too long: 9 tokens > 8 maximum"}, ContextOverflow, "earlier turn"),
        ({"status": 401}, Unauthorized, "ANTHROPIC_API_KEY"),
        ({"status": 403}, Unauthorized, "ANTHROPIC_API_KEY"),
        ({"status": 413}, TooLarge, "too large"),
        ({"error_event_after": 2, "type": "invalid_request_error"}, StreamFailed, "invalid_request_error"),
    ],
)
async def test_a_lasting_fault_is_raised_at_once(
    make: MakeProvider, fault: dict[str, Any], named: type[ProviderError], words: str
) -> None:
    """What a retry cannot mend, or only after too long a wait, ends the call after one request and says why."""
    async with Simulator() as sim, make(sim.url) as rig:
        with pytest.raises(named, match=words) as failure:
            await rig.events(a_request({"fault": fault}))

        assert sim.request_count == 1
        assert failure.value.request_id == sim.log[0].request_id
        assert rig.slept == []


async def test_attempts_are_bounded(make: MakeProvider) -> None:
    """An API that stays overloaded is asked four times, with growing waits, and then the error is raised."""
    async with Simulator() as sim, make(sim.url) as rig:
        with pytest.raises(Overloaded) as failure:
            await rig.events(a_request({"fault": {"status": 529}}))

        assert sim.request_count == 4
        assert rig.slept == sorted(rig.slept)
        assert len(rig.slept) == 3
        assert failure.value.__notes__ == ["Attempts made: 4 of at most 4."]


async def test_a_refused_key_is_named(make: MakeProvider) -> None:
    """A wrong key is an error that says where keys come from."""
    config = SimulatorConfig(invalid_keys=frozenset({"sk-wrong"}))
    async with Simulator(config) as sim, make(sim.url, api_key="sk-wrong") as rig:
        with pytest.raises(Unauthorized, match="ANTHROPIC_API_KEY"):
            await rig.events(a_request())


async def test_a_missing_key_is_named_before_anything_is_sent() -> None:
    """Without any credentials the call fails with advice and not with a TypeError."""
    async with Simulator() as sim, AsyncAnthropic(base_url=sim.url, api_key="k") as client:
        client.api_key = None
        with pytest.raises(Unauthorized, match="no request was sent"):
            await Rig(AnthropicProvider(client), []).events(a_request())

        assert sim.request_count == 0


async def test_a_body_over_the_limit_is_named(make: MakeProvider) -> None:
    """The API's own size check comes back as TooLarge."""
    async with Simulator(SimulatorConfig(max_body_bytes=1000)) as sim, make(sim.url) as rig:
        with pytest.raises(TooLarge):
            await rig.events(a_request(system="x" * 5000))


async def test_silence_before_the_response_ends_the_attempt(make: MakeProvider) -> None:
    """A server that never answers is left after the first-byte timeout and asked again."""
    request = a_request({"text": "Late.", "fault": {"hang": True, "times": 1}})
    async with Simulator() as sim, make(sim.url, timeouts=Timeouts(first_byte_s=0.3, idle_s=30)) as rig:
        events = await rig.events(request)

        retried = next(event for event in events if isinstance(event, CallRetried))
        assert "no response began within 0.3 s" in str(retried.error)
        await sim.closed_early(1)


@pytest.mark.parametrize("timeouts", [Timeouts(first_byte_s=0.4, idle_s=0.4), Timeouts(first_byte_s=30, idle_s=0.4)])
async def test_silence_in_mid_stream_ends_the_attempt(make: MakeProvider, timeouts: Timeouts) -> None:
    """A stream that stops moving is left after the idle timeout and the call repeated."""
    request = a_request({"text": "Slow.", "deltas": 4, "fault": {"hang_after_events": 3, "times": 1}})
    async with Simulator() as sim, make(sim.url, timeouts=timeouts) as rig:
        events = await rig.events(request)

        assert [type(event.error) for event in events if isinstance(event, CallRetried)] == [ConnectionLost]
        await sim.closed_early(1)


async def test_nobody_listening_is_a_lost_connection(make: MakeProvider) -> None:
    """A refused connection is retried, then raised with the address to check."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with make(f"http://127.0.0.1:{port}", retry=RetryPolicy(attempts=2)) as rig:
        with pytest.raises(ConnectionLost, match="ANTHROPIC_BASE_URL") as failure:
            await rig.events(a_request())

        assert failure.value.retryable
        assert len(rig.slept) == 1


@pytest.mark.parametrize(
    "answer",
    [
        plain_response(b"data: {not json}\n\n", "content-type: text/event-stream"),
        plain_response(b"<html>Welcome to the hotel</html>", "content-type: text/html"),
        plain_response(b"[1", "content-type: application/json"),
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\ndata",
        b"this is not HTTP\r\nconnection: close\r\n\r\n",
    ],
)
async def test_nonsense_is_a_named_failure(make: MakeProvider, answer: bytes) -> None:
    """Whatever a proxy or a broken server says, the caller gets a ProviderError that may be retried."""
    async with raw_server(answer) as server, make(server.url, retry=RetryPolicy(attempts=2)) as rig:
        with pytest.raises((ConnectionLost, StreamFailed)) as failure:
            await rig.events(a_request())

        assert failure.value.retryable
        assert len(server.heads) == 2


async def test_what_came_before_an_error_has_happened(make: MakeProvider) -> None:
    """A start that arrives in one chunk with an error is still announced: its cache writes can be read by others."""
    error = b'event: error\ndata: {"type":"error","error":{"type":"invalid_request_error","message":"No"}}\n\n'
    answer = plain_response(SSE[: SSE.index(b"event: content_block_start")] + error, "content-type: text/event-stream")
    async with raw_server(answer) as server, make(server.url) as rig:
        events = rig.provider.stream(a_request())
        first = await anext(events)
        with pytest.raises(StreamFailed, match="No"):
            await anext(events)

    assert isinstance(first, MessageStarted)


async def test_cancelling_the_task_closes_the_socket(make: MakeProvider) -> None:
    """A fork that is aborted in mid-stream stops being billed: the server sees the client leave."""
    request = a_request({"text": "Never ends", "deltas": 4, "hold": {"gate": "end", "after_events": 3}})
    started = asyncio.Event()

    async with Simulator() as sim, make(sim.url) as rig:

        async def read() -> None:
            async for _ in rig.provider.stream(request):
                started.set()

        async with asyncio.TaskGroup() as group:
            reader = group.create_task(read())
            await started.wait()
            reader.cancel()

        async with asyncio.timeout(PATIENCE_S):
            await sim.closed_early(1)
        assert reader.cancelled()
        assert sim.request_count == 1


async def test_cancelling_before_the_response_closes_the_socket(make: MakeProvider) -> None:
    """The same holds while the model is still thinking about its first byte."""
    request = a_request({"text": "Later", "hold": {"gate": "start", "after_events": 0}})
    async with Simulator() as sim, make(sim.url) as rig:
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(rig.events(request))
            await sim.received(1)
            reader.cancel()

        async with asyncio.timeout(PATIENCE_S):
            await sim.closed_early(1)


async def test_closing_the_iterator_closes_the_socket(make: MakeProvider) -> None:
    """Leaving the loop early and closing the iterator is enough."""
    request = a_request({"text": "Never ends", "deltas": 4, "hold": {"gate": "end", "after_events": 3}})
    async with Simulator() as sim, make(sim.url) as rig:
        async with aclosing(rig.provider.stream(request)) as events:
            first = await anext(events)

        assert isinstance(first, MessageStarted)
        async with asyncio.timeout(PATIENCE_S):
            await sim.closed_early(1)


async def test_a_closed_provider_says_so(make: MakeProvider) -> None:
    """Using a provider after its end is one clear error and no retries."""
    async with Simulator() as sim:
        async with make(sim.url) as rig:
            await rig.events(a_request())
        with pytest.raises(ConnectionLost, match="closed") as failure:
            await rig.events(a_request())

    assert not failure.value.retryable
    assert rig.slept == []


async def test_a_given_client_stays_open() -> None:
    """A provider closes only a client of its own."""
    async with Simulator() as sim, AsyncAnthropic(base_url=sim.url, api_key="k") as client:
        async with AnthropicProvider(client) as provider:
            await Rig(provider, []).reply(a_request())

        assert not client.is_closed()


async def test_debug_logging_does_not_disturb_a_call(make: MakeProvider, caplog: pytest.LogCaptureFixture) -> None:
    """The SDK's debug log, which dumps a request's options, copes with a body in pieces."""
    caplog.set_level(logging.DEBUG)
    async with Simulator() as sim, make(sim.url) as rig:
        assert (await rig.reply(a_request({"text": "Fine."}))).text == "Fine."


async def test_many_requests_share_one_copy_of_the_prefix(make: MakeProvider) -> None:
    """A hundred running requests of one 450 KB snapshot do not hold a hundred copies of it."""
    prefix = b"p" * 450_000
    ok = plain_response(SSE, "content-type: text/event-stream")
    tracemalloc.start()
    try:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(raw_server(ok, held=True, keep_bodies=False))
            rig = await stack.enter_async_context(make(server.url))
            before, _ = tracemalloc.get_traced_memory()
            async with asyncio.TaskGroup() as group:
                for number in range(100):
                    body = Rope([memoryview(prefix), b"%d" % number])
                    group.create_task(rig.reply(ModelRequest(body=body, headers=(VERSION,))))
                await server.received(100)
                held = tracemalloc.get_traced_memory()[0] - before
                server.go.set()
    finally:
        tracemalloc.stop()

    assert held < 20_000_000


async def test_a_burst_is_not_throttled_by_the_pool(make: MakeProvider) -> None:
    """Three hundred forks can be in flight at once."""
    ok = plain_response(SSE, "content-type: text/event-stream")
    async with raw_server(ok, held=True) as server, make(server.url) as rig, asyncio.TaskGroup() as group:
        tasks = [group.create_task(rig.reply(a_request())) for _ in range(300)]
        await server.received(300)
        server.go.set()

    assert {task.result().text for task in tasks} == {"hello"}
