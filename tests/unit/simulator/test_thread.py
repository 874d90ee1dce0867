"""The simulator for callers without an event loop."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from nexofork.simulator import SimulatorConfig, simulator_thread
from tests.support.waiting import PATIENCE_S
from tests.unit.simulator.client import request, sim, text, user

if TYPE_CHECKING:
    from typing import Any

    from nexofork.simulator import ThreadedSimulator


def send(provider: ThreadedSimulator, body: dict[str, Any]) -> Any:
    """A blocking request."""
    head = {"x-api-key": "sk-sim-test", "anthropic-version": "2026-10-21"}
    message = urllib.request.Request(f"{provider.url}/v1/messages", data=json.dumps(body).encode(), headers=head)
    with urllib.request.urlopen(message, timeout=PATIENCE_S) as answer:
        return json.load(answer)


def test_a_blocking_caller_gets_the_same_simulator() -> None:
    """Cache, clock, rules and log work across the thread."""
    body = request(user(text(600, ttl="5m")))
    with simulator_thread() as provider:
        provider.script({"turns": ["from a rule"]})
        first = send(provider, body)
        second = send(provider, body)
        provider.clock.advance(301)
        third = send(provider, body)
        provider.finished(3)

        assert first["content"][0]["text"] == "from a rule"
        assert [record.read for record in provider.log] == [0, 600, 0]
        assert third["usage"]["cache_creation_input_tokens"] == second["usage"]["cache_read_input_tokens"] == 600
        assert provider.body(0) == json.dumps(body).encode()


def test_a_held_request_can_be_waited_for_and_released() -> None:
    """The blocking side sees the request arrive, opens the gate, and gets the answer."""
    with simulator_thread() as provider:
        said: list[Any] = []
        worker = threading.Thread(
            target=lambda: said.append(send(provider, request(sim({"text": "held", "hold": "g"}))))
        )
        worker.start()
        provider.received(1)
        provider.release("g")
        worker.join(20)

    assert said[0]["content"][0]["text"] == "held"


def test_waiting_has_a_deadline() -> None:
    """What does not happen is a timeout, not a hang."""
    with simulator_thread() as provider, pytest.raises(TimeoutError):
        provider.received(1, deadline_s=0.01)


def test_a_port_in_use_is_an_error() -> None:
    """The failure reaches the caller."""
    with simulator_thread() as provider:
        port = int(provider.url.rpartition(":")[2])

        with pytest.raises(OSError, match="address"), simulator_thread(SimulatorConfig(port=port)):
            pass


def test_after_the_block_nothing_listens() -> None:
    """The thread and its socket are gone."""
    with simulator_thread() as provider:
        pass

    with pytest.raises(urllib.error.URLError):
        send(provider, request())
