"""Everything that can be made to go wrong, and that it wears off."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import h11
import pytest

from tests.unit.simulator.client import call, post, request, sim, user

if TYPE_CHECKING:
    from nexofork.simulator import Simulator


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, "rate_limit_error"),
        (500, "api_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
        (402, "billing_error"),
        (403, "permission_error"),
    ],
)
async def test_an_error_status_wears_off(provider: Simulator, status: int, kind: str) -> None:
    """The first try fails with the provider's error type, the retry of the same bytes succeeds."""
    body = request(sim({"text": "ok", "fault": {"status": status, "times": 1}}))

    first, second = await post(provider, body), await post(provider, body)

    assert (first.status, first.json["error"]["type"]) == (status, kind)
    assert (second.status, second.text) == (200, "ok")


async def test_stateless_faults_count_per_body(provider: Simulator) -> None:
    """Two siblings with the same script each fail once."""
    turn = {"text": "ok", "fault": {"status": 529, "times": 1}}
    bodies = [request(user(name), sim(turn)) for name in ("a", "b")]

    statuses = [(await post(provider, body)).status for body in bodies * 2]

    assert statuses == [529, 529, 200, 200]


async def test_rule_faults_count_over_all_requests(provider: Simulator) -> None:
    """A rule with `times: 2` makes two requests fail, whoever sends them, scripts or not."""
    provider.script({"fault": {"status": 500}, "times": 2})

    statuses = [(await post(provider, request(sim({"text": f"{n}"})))).status for n in range(3)]

    assert statuses == [500, 500, 200]


@pytest.mark.parametrize(("retry_after", "header"), [(7, "7"), (0.5, "0.5"), (None, None)])
async def test_retry_after_is_sent_when_given(
    provider: Simulator, retry_after: float | None, header: str | None
) -> None:
    """A spend cap is a 429 without it."""
    provider.script({"fault": {"status": 429, "retry_after": retry_after}})

    assert (await post(provider, request())).headers.get("retry-after") == header


async def test_a_stream_can_be_cut(provider: Simulator) -> None:
    """So many events arrive, then the socket closes without an end."""
    async with call(
        provider, request(sim({"text": "abc", "fault": {"cut_after_events": 4}}), stream=True)
    ) as under_way:
        await under_way.head()
        events = under_way.events()
        seen = [await anext(events) for _ in range(4)]
        with pytest.raises(h11.RemoteProtocolError):
            await anext(events)

    assert len(seen) == 4
    assert provider.log[0].fault == "cut_after_events 4"


async def test_a_whole_answer_can_be_cut_too(provider: Simulator) -> None:
    """Without a stream the connection closes before the answer, and nothing is written."""
    with pytest.raises(h11.RemoteProtocolError):
        await post(provider, request(sim({"text": "abc", "fault": {"cut_after_events": 4}})))

    await provider.finished(1)
    assert provider.log[0].status is None


async def test_an_error_event_follows_a_200(provider: Simulator) -> None:
    """The stream ends in order after the event."""
    fault = {"error_event_after": 2, "type": "api_error", "message": "it broke"}
    async with call(provider, request(sim({"text": "abc", "fault": fault}), stream=True)) as under_way:
        head = await under_way.head()
        events = [event async for event in under_way.events()]

    assert head.status == 200
    assert [event["type"] for event in events] == ["message_start", "ping", "error"]
    assert events[-1]["error"] == {"type": "api_error", "message": "it broke"}
    assert (provider.log[0].status, provider.log[0].error_type) == (200, "api_error")


async def test_a_late_first_byte(provider: Simulator) -> None:
    """The wait is real and the answer is whole."""
    answer = await post(provider, request(sim({"text": "late", "fault": {"first_byte_s": 0.05}})))

    record = provider.log[0]
    assert record.first_byte_at is not None
    assert record.first_byte_at - record.received_at >= 0.05
    assert answer.text == "late"


@pytest.mark.parametrize("fault", ["hang", {"hang_after_events": 2}])
async def test_a_hang_ends_when_the_client_leaves(provider: Simulator, fault: Any) -> None:
    """The simulator notices at once and the record says so."""
    async with call(provider, request(sim({"text": "never", "fault": fault}), stream=True)):
        await (provider.received(1) if fault == "hang" else provider.begun(1))

    await provider.closed_early(1)
    assert provider.log[0].closed_early
    assert provider.log[0].stop_reason is None


async def test_a_client_that_leaves_mid_stream_is_seen(provider: Simulator) -> None:
    """Closing in the middle of a slow stream ends it and bills what was said so far."""
    turn = {"text": "word ", "repeat": 1000, "deltas": 1000, "delta_delay_s": 0.01}
    async with call(provider, request(sim(turn), stream=True)) as under_way:
        await under_way.head()
        events = under_way.events()
        while (await anext(events))["type"] != "content_block_delta":
            pass

    await provider.closed_early(1)
    assert 0 < provider.log[0].output < 1000


async def test_a_held_response_whose_client_left_writes_nothing(provider: Simulator) -> None:
    """Before the first byte leaving costs nothing and leaves nothing."""
    async with call(provider, request(sim({"text": "held", "hold": "gate"}))):
        await provider.received(1)

    await provider.closed_early(1)
    assert (provider.log[0].status, provider.log[0].price_usd) == (None, 0.0)


@pytest.mark.parametrize("fault", [529, {"status": 529}, json.loads('{"status": 529, "message": "busy"}')])
async def test_a_bare_status_is_a_fault(provider: Simulator, fault: Any) -> None:
    """Short and long forms mean the same."""
    provider.script({"fault": fault})

    assert (await post(provider, request())).status == 529
