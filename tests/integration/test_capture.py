from __future__ import annotations

import asyncio
import gzip
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from anthropic import Anthropic, APIStatusError, AsyncAnthropic, DefaultAsyncHttpxClient

from nexofork.core.rope import Rope
from nexofork.errors import NothingCaptured
from nexofork.providers.anthropic import AnthropicProvider
from nexofork.providers.capture import CannotCapture, capture, uncaptured
from nexofork.providers.provider import ModelRequest
from nexofork.simulator import Simulator, simulator_thread
from tests.integration.rawserver import plain_response, raw_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Turn = Callable[[AsyncAnthropic, dict[str, Any]], Awaitable[object]]

READ_TOOL = {"name": "Read", "input_schema": {"type": "object"}}


def arguments(*turns: dict[str, Any], text: str = "Grüße") -> dict[str, Any]:
    """What a parent passes to ``messages.create``; the turns are what the model will say."""
    script = f"\n@sim {json.dumps(turns, ensure_ascii=False)}" if turns else ""
    return {
        "max_tokens": 512,
        "model": "claude-opus-5",
        "system": "Be brief.",
        "tools": [READ_TOOL],
        "messages": [{"role": "user", "content": text + script}],
    }


SAID = {"thinking": "Hm, ä.", "text": "Reading.", "tools": [{"name": "Read", "input": {"z": 1, "a": "é"}}], "deltas": 3}


async def create(client: AsyncAnthropic, request: dict[str, Any]) -> object:
    """One plain call."""
    return await client.messages.create(**request)


async def create_stream(client: AsyncAnthropic, request: dict[str, Any]) -> object:
    """One call that streams raw events."""
    stream = await client.messages.create(**request, stream=True)
    return [event async for event in stream]


async def messages_stream(client: AsyncAnthropic, request: dict[str, Any]) -> object:
    """One call through the streaming helper."""
    async with client.messages.stream(**request) as stream:
        return await stream.get_final_message()


async def beta_create(client: AsyncAnthropic, request: dict[str, Any]) -> object:
    """One beta call."""
    return await client.beta.messages.create(**request, betas=["context-1m-2025-08-07"])


async def beta_stream(client: AsyncAnthropic, request: dict[str, Any]) -> object:
    """One beta call through the streaming helper."""
    async with client.beta.messages.stream(**request, betas=["context-1m-2025-08-07"]) as stream:
        return await stream.get_final_message()


async def raw_response(client: AsyncAnthropic, request: dict[str, Any]) -> object:
    """One call whose raw response is kept."""
    return await (await client.messages.with_raw_response.create(**request)).parse()


async def streaming_response(client: AsyncAnthropic, request: dict[str, Any]) -> object:
    """One call whose response is read by the caller."""
    async with client.messages.with_streaming_response.create(**request) as response:
        return await response.read()


TURNS = [create, create_stream, messages_stream, beta_create, beta_stream, raw_response, streaming_response]


@pytest.mark.parametrize("turn", TURNS)
async def test_every_way_to_call_is_recorded_in_bytes(turn: Turn) -> None:
    """The snapshot is the request the server received and the reply it sent, however the parent called."""
    async with Simulator() as sim, AsyncAnthropic(base_url=sim.url, api_key="sk-sim-red") as client:
        recording = capture(client)
        before = time.time()

        await turn(client, arguments(SAID))

        params = recording.snapshot()
        assert params.body == sim.body(0)
        assert dict(params.headers)["anthropic-version"] == sim.log[0].headers["anthropic-version"]
        assert dict(params.headers).get("anthropic-beta") == sim.log[0].headers.get("anthropic-beta")
        assert params.exact
        assert (params.workspace_id, params.organization_id) == ("wrkspc_red", "org_default")
        assert params.sent_at is not None
        assert before <= params.sent_at <= time.time()
        assert params.reply is not None
        assert [block.kind for block in params.reply.blocks] == ["thinking", "text", "tool_use"]
        assert params.reply.blocks[0].value["signature"]
        assert list(params.reply.tool_uses[0].input.items()) == [("z", 1), ("a", "é")]
        assert params.reply.message_id == sim.log[0].message_id
        assert params.reply.stop_reason == "tool_use"


@pytest.mark.parametrize("turn", TURNS)
async def test_capture_changes_nothing_the_server_can_see(turn: Turn) -> None:
    """Bytes and headers on the wire are the same with and without capture, and no request is added."""
    message = json.dumps(
        {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": {}}
    ).encode()
    stream = b'event: message_start\ndata: {"type":"message_start","message":%b}\n\n' % message
    streamed = turn in (create_stream, messages_stream, beta_stream)
    answer = (
        plain_response(stream, "content-type: text/event-stream")
        if streamed
        else plain_response(message, "content-type: application/json")
    )
    async with raw_server(answer) as server, AsyncAnthropic(base_url=server.url, api_key="k") as client:
        plain = await turn(client, arguments())
        with capture(client):
            captured = await turn(client, arguments())
        after = await turn(client, arguments())

        assert len(server.heads) == 3
        assert server.bodies[0] == server.bodies[1] == server.bodies[2]
        assert server.heads[0] == server.heads[1] == server.heads[2]
        assert repr(plain) == repr(captured) == repr(after)


async def test_a_streamed_reply_equals_an_unstreamed_one() -> None:
    """The reply assembled from a stream holds the same values as one that came whole."""
    async with Simulator() as sim, AsyncAnthropic(base_url=sim.url, api_key="k") as client:
        recording = capture(client)
        said = {"text": "Café \N{GRINNING FACE}", "tools": [{"name": "Read", "input": {"b": "\\"}}], "deltas": 7}
        replies = []
        for turn in (create, messages_stream):
            await turn(client, arguments(said))
            replies.append(recording.snapshot().reply)

    whole, streamed = replies
    assert whole is not None
    assert streamed is not None
    assert whole.text == streamed.text == said["text"]
    assert whole.tool_uses[0].input == streamed.tool_uses[0].input == {"b": "\\"}
    assert whole.usage.output_tokens == streamed.usage.output_tokens


async def test_no_chunk_waits_for_the_recorder() -> None:
    """What the server has sent is with the reader while the rest of the reply is still held back."""
    said = {"text": "one two three", "deltas": 3, "hold": {"gate": "rest", "after_events": 3}}
    async with Simulator() as sim, AsyncAnthropic(base_url=sim.url, api_key="k") as client:
        recording = capture(client)
        stream = await client.messages.create(**arguments(said), stream=True)
        kinds = [(await anext(stream)).type for _ in range(2)]
        assert kinds[0] == "message_start"
        with pytest.raises(NothingCaptured):
            recording.snapshot()

        sim.release("rest")
        async for _ in stream:
            pass

        assert recording.snapshot().reply is not None


async def test_a_gzipped_reply_is_recorded_and_passed_on() -> None:
    """Compressed responses, streamed or whole, are read by the parent and by the capture."""
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "usage": {"output_tokens": 1}}
    text = {"type": "text", "text": "packed"}
    whole = json.dumps(message | {"content": [text], "stop_reason": "end_turn"}).encode()
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message | {"content": []}},
        {"type": "content_block_start", "index": 0, "content_block": text},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    stream = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()
    packed = [
        plain_response(gzip.compress(whole), "content-type: application/json", "content-encoding: gzip"),
        plain_response(gzip.compress(stream), "content-type: text/event-stream", "content-encoding: gzip"),
    ]
    async with raw_server(*packed) as server, AsyncAnthropic(base_url=server.url, api_key="k") as client:
        recording = capture(client)
        for turn in (create, messages_stream):
            recording.slot.clear()
            await turn(client, arguments())

            reply = recording.snapshot().reply
            assert reply is not None
            assert reply.text == "packed"


async def test_only_the_exchange_that_succeeded_is_recorded() -> None:
    """The SDK's own retries leave one snapshot, of the attempt that worked, and a failed call leaves none."""
    async with (
        Simulator() as sim,
        AsyncAnthropic(base_url=sim.url, api_key="k", max_retries=1) as client,
    ):
        recording = capture(client)
        with pytest.raises(APIStatusError):
            await create(client, arguments({"fault": {"status": 400}}))
        with pytest.raises(NothingCaptured):
            recording.snapshot()

        await create(client, arguments({"text": "Now.", "fault": {"status": 500, "times": 1}}))

        assert sim.request_count == 3
        reply = recording.snapshot().reply
        assert reply is not None
        assert reply.text == "Now."


@pytest.mark.parametrize("fault", [{"cut_after_events": 3}, {"error_event_after": 3}])
async def test_a_stream_that_fails_is_no_snapshot(fault: dict[str, Any]) -> None:
    """A cut or an error inside the stream reaches the parent as always and does not replace its last snapshot."""
    async with Simulator() as sim, AsyncAnthropic(base_url=sim.url, api_key="k") as client:
        recording = capture(client)
        await create(client, arguments({"text": "First."}))
        first = recording.snapshot()

        with pytest.raises((APIStatusError, httpx2.HTTPError)):
            await messages_stream(client, arguments({"text": "Second.", "deltas": 4, "fault": fault}))

        assert recording.snapshot() is first


async def test_a_reply_the_parent_stops_reading_is_unknown() -> None:
    """Leaving a stream early records the request, and no reply."""
    said = {"text": "one two three", "deltas": 3, "hold": {"gate": "rest", "after_events": 3}}
    async with Simulator() as sim, AsyncAnthropic(base_url=sim.url, api_key="k") as client:
        recording = capture(client)
        stream = await client.messages.create(**arguments(said), stream=True)
        async with stream:
            await anext(stream)

        params = recording.snapshot()
        assert params.body == sim.body(0)
        assert params.reply is None


async def test_a_reply_read_to_its_last_event_is_known() -> None:
    """Stopping at message_stop, before the end of the HTTP body, loses nothing."""
    async with Simulator() as sim, AsyncAnthropic(base_url=sim.url, api_key="k") as client:
        recording = capture(client)
        async with await client.messages.create(**arguments({"text": "All of it."}), stream=True) as stream:
            async for event in stream:
                if event.type == "message_stop":
                    break

        reply = recording.snapshot().reply
        assert reply is not None
        assert reply.text == "All of it."


async def test_a_reply_that_makes_no_sense_does_not_disturb_the_parent() -> None:
    """What the capture cannot read is left unknown; the parent sees what the server sent."""
    answer = plain_response(b'data: {"type": broken\n\n', "content-type: text/event-stream")
    async with raw_server(answer) as server, AsyncAnthropic(base_url=server.url, api_key="k") as client:
        recording = capture(client)
        async with client.messages.with_streaming_response.create(**arguments(), stream=True) as response:
            assert await response.read() == b'data: {"type": broken\n\n'

        assert recording.snapshot().reply is None


async def test_other_endpoints_are_not_recorded() -> None:
    """Counting tokens is no turn of the conversation."""
    async with Simulator() as sim, AsyncAnthropic(base_url=sim.url, api_key="k") as client:
        recording = capture(client)
        request = arguments()
        del request["max_tokens"]
        await client.messages.count_tokens(**request)

        with pytest.raises(NothingCaptured, match="Let the parent make one call"):
            recording.snapshot()


async def test_the_query_string_is_recorded() -> None:
    """A parent that calls with a query, as older SDKs do for betas, is forked with the same query."""
    async with (
        Simulator() as sim,
        AsyncAnthropic(base_url=sim.url, api_key="k", default_query={"beta": "true"}) as client,
    ):
        recording = capture(client)
        await create(client, arguments())

        assert recording.snapshot().query == (("beta", "true"),)


async def test_the_newest_turn_wins() -> None:
    """The snapshot follows the conversation."""
    async with Simulator() as sim, AsyncAnthropic(base_url=sim.url, api_key="k") as client:
        recording = capture(client)
        for text in ("first", "second"):
            await create(client, arguments(text=text))

        assert recording.snapshot().body == sim.body(1)
        assert recording.slot.get() is recording.snapshot()


async def test_a_child_on_the_parents_own_client_leaves_the_snapshot_alone() -> None:
    """A provider built from the captured client sends what it likes; the parent's snapshot stays."""
    async with Simulator() as sim, AsyncAnthropic(base_url=sim.url, api_key="k") as client:
        recording = capture(client)
        await create(client, arguments({"text": "Parent."}))
        parents = recording.snapshot()
        body = json.dumps(arguments({"text": "Child."}) | {"stream": True}).encode()

        async for _ in AnthropicProvider(client).stream(ModelRequest(body=Rope([body]), headers=parents.headers)):
            pass
        with uncaptured():
            await create(client, arguments({"text": "Sidecar."}))

        assert sim.request_count == 3
        assert recording.snapshot() is parents


async def test_a_side_query_may_write_nothing() -> None:
    """A capture for anyone but the parent's loop keeps no snapshot."""
    async with Simulator() as sim, AsyncAnthropic(base_url=sim.url, api_key="k") as client:
        recording = capture(client, query_source="session_memory")
        await create(client, arguments())

        with pytest.raises(NothingCaptured):
            recording.snapshot()


async def test_capturing_twice_is_capturing_once() -> None:
    """The same client, or one made from it, gives the same capture and one record per call."""
    async with Simulator() as sim, AsyncAnthropic(base_url=sim.url, api_key="k") as client:
        recording = capture(client)
        derived = client.with_options(max_retries=0)
        assert capture(client) is recording
        assert capture(derived) is recording

        await create(derived, arguments())

        assert recording.snapshot().body == sim.body(0)


async def test_closing_gives_the_client_back() -> None:
    """After close the client is as it was, later calls are not recorded, and it can be captured anew."""
    async with Simulator() as sim, AsyncAnthropic(base_url=sim.url, api_key="k") as client:
        transport = client._client._transport
        with capture(client) as recording:
            await create(client, arguments(text="first"))
        kept = recording.snapshot()

        await create(client, arguments(text="second"))

        assert client._client._transport is transport
        assert recording.snapshot() is kept
        assert capture(client) is not recording


async def test_mounted_transports_are_recorded() -> None:
    """A client that reaches the API through a mounted transport, as with a proxy, is captured as well."""
    async with Simulator() as sim:
        mounts = {"http://127.0.0.1": httpx2.AsyncHTTPTransport()}
        http_client = DefaultAsyncHttpxClient(mounts=mounts)
        async with AsyncAnthropic(base_url=sim.url, api_key="k", http_client=http_client) as client:
            recording = capture(client)
            await create(client, arguments())

            assert recording.snapshot().body == sim.body(0)


async def test_a_response_already_in_memory_is_recorded() -> None:
    """A parent under test, whose transport is a double, can be forked like any other."""
    content = [{"type": "text", "text": "canned"}]
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": content, "usage": {}}
    double = httpx2.MockTransport(lambda request: httpx2.Response(200, json=message))
    http_client = httpx2.AsyncClient(transport=double)
    async with AsyncAnthropic(base_url="http://api.test", api_key="k", http_client=http_client) as client:
        recording = capture(client)
        await create(client, arguments())

        reply = recording.snapshot().reply
        assert reply is not None
        assert reply.text == "canned"


def test_an_unknown_client_is_refused_by_name() -> None:
    """A client whose transport cannot be found is an error that names the SDK's version."""

    class Renamed:
        """A client of a shape the SDK does not have today."""

    with pytest.raises(CannotCapture, match=r"Renamed: anthropic \d+\.\d+"):
        capture(Renamed())  # type: ignore[arg-type]


def test_a_blocking_client_is_recorded() -> None:
    """The same holds for `Anthropic`: create, streams, early leave."""
    with simulator_thread() as sim, Anthropic(base_url=sim.url, api_key="sk-sim-red") as client:
        recording = capture(client)
        client.messages.create(**arguments(SAID))
        whole = recording.snapshot()
        with client.messages.stream(**arguments(SAID, text="again")) as stream:
            stream.get_final_message()
        streamed = recording.snapshot()
        with client.messages.create(**arguments(SAID, text="leave"), stream=True) as early:
            next(iter(early))
        left = recording.snapshot()

        assert [params.body for params in (whole, streamed, left)] == [sim.body(index) for index in range(3)]
        for params in (whole, streamed):
            assert params.workspace_id == "wrkspc_red"
            assert params.reply is not None
            assert list(params.reply.tool_uses[0].input) == ["z", "a"]
        assert left.reply is None


def test_threads_share_a_blocking_client() -> None:
    """Calls from many threads at once are recorded whole: the snapshot's reply belongs to its request."""
    with simulator_thread() as sim, Anthropic(base_url=sim.url, api_key="k") as client:
        recording = capture(client)

        def call(number: int) -> None:
            with client.messages.stream(**arguments({"text": f"Answer {number}.", "deltas": 5})) as stream:
                stream.until_done()
            params = recording.snapshot()
            assert params.reply is not None
            assert params.reply.text.encode() in params.body

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(call, range(40)))

        assert len(sim.log) == 40


async def test_concurrent_calls_do_not_mix() -> None:
    """The same for tasks on one loop."""
    async with Simulator() as sim, AsyncAnthropic(base_url=sim.url, api_key="k") as client:
        recording = capture(client)

        async def call(number: int) -> None:
            await messages_stream(client, arguments({"text": f"Answer {number}.", "deltas": 5}))
            params = recording.snapshot()
            assert params.reply is not None
            assert params.reply.text.encode() in params.body

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(call(number))
