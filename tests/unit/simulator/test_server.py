"""The server itself: HTTP, authentication, control routes, and a clean end."""

from __future__ import annotations

import asyncio
import hashlib
import json
from contextlib import suppress
from typing import TYPE_CHECKING

import h11
import pytest

from nexofork.simulator import Simulator, SimulatorConfig
from tests.unit.simulator.client import KEY, Answer, Call, call, post, request, sim, text, user

if TYPE_CHECKING:
    from typing import Any


async def control(provider: Simulator, method: str, path: str, body: Any = None) -> Answer:
    """One control request."""
    raw = b"" if body is None else json.dumps(body).encode()
    async with Call(simulator=provider, method=method, path=path, body=raw) as under_way:
        return await under_way.answer()


async def test_a_key_is_required(provider: Simulator) -> None:
    """Neither header: 401; the request is logged without a workspace."""
    async with Call(simulator=provider, body=json.dumps(request()).encode()) as under_way:
        answer = await under_way.answer()

    assert (answer.status, answer.json["error"]["type"]) == (401, "authentication_error")
    assert (provider.log[0].status, provider.log[0].workspace) == (401, None)


async def test_both_ways_of_sending_a_key_are_the_same_tenant(provider: Simulator) -> None:
    """`x-api-key` and a bearer token share the cache."""
    body = request(user(text(600, ttl="5m")))
    await post(provider, body)

    raw = json.dumps(body).encode()
    head = {"authorization": f"Bearer {KEY}", "anthropic-version": "2026-10-21"}
    async with Call(simulator=provider, body=raw, headers=head) as under_way:
        answer = await under_way.answer()

    assert answer.usage.read == 600


async def test_an_invalid_key_is_refused() -> None:
    """Keys can be declared bad."""
    async with Simulator(SimulatorConfig(invalid_keys=frozenset({"sk-bad"}))) as provider:
        assert (await post(provider, request(), key="sk-bad")).status == 401


@pytest.mark.parametrize(("path", "status"), [("/v1/complete", 404), ("/", 404), ("/v1/messages/batches", 405)])
async def test_other_paths_are_not_served(provider: Simulator, path: str, status: int) -> None:
    """A wrong address is an error with a body, and no request to the model."""
    answer = await post(provider, request(), path=path)

    assert answer.status == status
    assert answer.json["type"] == "error"
    assert provider.request_count == 0


async def test_the_beta_address_is_the_same_endpoint(provider: Simulator) -> None:
    """The beta client adds a query."""
    assert (await post(provider, request(), path="/v1/messages?beta=true")).status == 200


async def test_a_body_beyond_the_limit_is_413() -> None:
    """The limit itself is read, one byte more is refused, and the connection survives."""
    body = json.dumps(request()).encode()
    async with Simulator(SimulatorConfig(max_body_bytes=len(body))) as provider:
        fits = await post(provider, body)
        too_large = await post(provider, body + b" ")

    assert fits.status == 200
    assert (too_large.status, too_large.json["error"]["type"]) == (413, "request_too_large")


async def test_the_default_limit_is_32_megabytes(provider: Simulator) -> None:
    """Far larger than any prompt, and still refused in words."""
    body = json.dumps(request(user("x" * (32 * 1024 * 1024)))).encode()

    assert (await post(provider, body)).status == 413


async def test_a_connection_serves_many_requests_and_chunked_bodies(provider: Simulator) -> None:
    """Keep-alive, with bodies of known and of unknown length in turn."""
    reader, writer = await asyncio.open_connection("127.0.0.1", provider.port)
    http = h11.Connection(h11.CLIENT)
    body = json.dumps(request()).encode()
    statuses = []
    for framing in (("content-length", str(len(body))), ("transfer-encoding", "chunked")) * 2:
        headers = [("host", "x"), ("x-api-key", KEY), ("anthropic-version", "2026-10-21"), framing]
        writer.write(http.send(h11.Request(method="POST", target="/v1/messages", headers=headers)) or b"")
        writer.write(http.send(h11.Data(data=body[:50])) or b"")
        writer.write(http.send(h11.Data(data=body[50:])) or b"")
        writer.write(http.send(h11.EndOfMessage()) or b"")
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(65536))
            elif isinstance(event, h11.Response):
                statuses.append(event.status_code)
        http.start_next_cycle()
    writer.close()
    await writer.wait_closed()

    assert statuses == [200] * 4
    assert len({record.body_sha256 for record in provider.log}) == 1


async def test_what_is_not_http_is_dropped(provider: Simulator) -> None:
    """Garbage closes its own connection and nothing else."""
    reader, writer = await asyncio.open_connection("127.0.0.1", provider.port)
    writer.write(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()

    assert (await post(provider, request())).status == 200


async def test_hundreds_of_connections_at_once(provider: Simulator) -> None:
    """Three hundred held streams run side by side and all end well."""
    body = request(user(text(600, ttl="5m")), sim({"text": "together", "hold": "gate"}), stream=True)

    async def one() -> bytes:
        async with call(provider, body) as under_way:
            return (await under_way.answer()).body

    async with asyncio.TaskGroup() as group:
        answers = [group.create_task(one()) for _ in range(300)]
        await provider.received(300)
        provider.release("gate")

    await provider.finished(300)
    assert all(b"message_stop" in answer.result() for answer in answers)
    assert not any(record.closed_early for record in provider.log)


async def test_a_fast_long_stream_does_not_hold_up_others(provider: Simulator) -> None:
    """Five thousand deltas without a pause leave room for another request in between."""
    body = request(sim({"text": "x" * 20_000, "deltas": 5000}), max_tokens=10_000, stream=True)
    async with call(provider, body) as under_way:
        await under_way.head()
        await post(provider, request())
        await under_way.rest()
    await provider.finished(2)

    long, short = (record.finished_at for record in provider.log)
    assert long is not None
    assert short is not None
    assert short < long


async def test_leaving_the_block_ends_hanging_responses() -> None:
    """Stop waits for nobody: a hanging client is cut off."""
    async with Simulator() as provider:
        hanging = call(provider, request(sim({"fault": "hang"}), stream=True))
        await hanging.__aenter__()
        await provider.received(1)

    with pytest.raises((h11.RemoteProtocolError, ConnectionResetError)):
        await hanging.answer()
    await hanging.__aexit__(None, None, None)


async def test_the_log_tells_what_happened(provider: Simulator) -> None:
    """Over HTTP as in process, with a fingerprint where the key was."""
    body = json.dumps(request(user(text(600, ttl="1h")))).encode()
    answer = await post(provider, body, headers={"anthropic-beta": "b-2026", "cookie": "secret"})

    (record,) = (await control(provider, "GET", "/_sim/log")).json

    assert record == provider.log[0].as_json()
    assert record["message_id"] == answer.json["id"]
    assert record["request_id"] == answer.headers["request-id"]
    assert (record["write_1h"], record["breakpoints"], record["status"]) == (600, [0], 200)
    assert record["body_sha256"] == hashlib.sha256(body).hexdigest()
    assert record["headers"] == {"anthropic-version": "2026-10-21", "anthropic-beta": "b-2026"}
    assert KEY not in json.dumps(record)


async def test_bodies_can_be_read_back_byte_for_byte(provider: Simulator) -> None:
    """Even those that were refused."""
    await post(provider, b'{ "model" :1}')

    assert (await control(provider, "GET", "/_sim/requests/0/body")).body == b'{ "model" :1}'
    assert (await control(provider, "GET", "/_sim/requests/1/body")).status == 404


async def test_old_bodies_make_room() -> None:
    """Past the limit the oldest bodies go, their records stay."""
    body = json.dumps(request()).encode()
    async with Simulator(SimulatorConfig(kept_body_bytes=2 * len(body))) as provider:
        for _ in range(3):
            await post(provider, body)

        assert [provider.body(index) for index in range(3)] == [None, body, body]
        assert provider.request_count == 3


async def test_the_clock_and_the_script_can_be_set_from_outside(provider: Simulator) -> None:
    """Another process can move time, write rules and open gates."""
    await control(provider, "POST", "/_sim/script", [{"turns": [{"text": "ruled", "hold": "gate"}]}])
    await control(provider, "POST", "/_sim/release", {"gate": "gate"})
    body = request(user(text(600, ttl="5m")))
    first = await post(provider, body)
    await control(provider, "POST", "/_sim/clock", {"advance_s": 301})

    second = await post(provider, body)

    assert first.text == "ruled"
    assert second.usage.read == 0


async def test_reset_forgets(provider: Simulator) -> None:
    """Log, cache and rules are as new."""
    body = request(user(text(600, ttl="5m")))
    provider.script({"turns": ["ruled"]})
    await post(provider, body)

    await control(provider, "POST", "/_sim/reset")
    answer = await post(provider, body)

    assert answer.usage.write_5m == 600
    assert answer.text.startswith("Scope:")
    assert provider.request_count == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/_sim/health", None, 200),
        ("GET", "/_sim/nothing", None, 404),
        ("POST", "/_sim/clock", {"advance_s": -1}, 400),
        ("POST", "/_sim/clock", {}, 404),
        ("POST", "/_sim/script", [{"trns": []}], 400),
    ],
)
async def test_control_routes_answer_in_json(
    provider: Simulator, method: str, path: str, body: Any, status: int
) -> None:
    """Mistakes are told apart from successes, and none of it is logged as a request."""
    answer = await control(provider, method, path, body)

    assert answer.status == status
    assert isinstance(answer.json, dict)
    assert provider.request_count == 0


async def test_time_can_run_faster() -> None:
    """With a scale a five-minute entry expires in a fraction of a second."""
    async with Simulator(SimulatorConfig(time_scale=100_000)) as provider:
        body = request(user(text(600, ttl="5m")))
        await post(provider, body)
        await post(provider, request(sim({"text": "later", "delay_s": 0.02})))

        assert (await post(provider, body)).usage.read == 0
