"""A supervisor learns from the health port whether a daemon lives, and whether it takes work."""

from __future__ import annotations

import signal
import socket
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from nexofork.cli import run_command
from nexofork_daemon.command import daemon as daemon_command
from tests.acceptance.fleet.test_metrics import port_of
from tests.support.conversation import says
from tests.support.fleet import open_fleet
from tests.support.scraping import get

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork.simulator import Simulator
    from tests.support.fleet import Fleet, Nursery, RestartableServer


async def until_ready_says(port: int, *answer: object) -> None:
    """Return when /readyz answers like this."""
    while await get(port, "/readyz") != answer:
        pass


async def test_a_daemon_that_drains_lives_and_takes_no_work(fleet: Fleet) -> None:
    """While its last run goes on /readyz says so, and /healthz stays well."""
    daemon = await fleet.daemon(health_port=0, drain_s=30)
    port = await port_of(daemon)
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(says("kiwi", {"text": "Done.", "hold": "door"})))
        await fleet.sim.received(2)
        assert await get(port, "/readyz") == (200, "ok\n")

        daemon.signal(signal.SIGTERM)
        await until_ready_says(port, 503, "draining\n")
        assert await get(port, "/healthz") == (200, "ok\n")
        fleet.sim.release("door")
        await handle.result()
    assert await daemon.gone() == 0


async def test_a_daemon_without_nats_lives_and_is_not_ready_until_it_is_back(
    restartable: RestartableServer, sim: Simulator, nursery: Nursery, tmp_path: Path
) -> None:
    """A restart would not help it, so it is not asked for."""
    async with open_fleet((restartable.url,), sim=sim, nursery=nursery, folder=tmp_path) as fleet:
        port = await port_of(await fleet.daemon(health_port=0))

        restartable.down()
        await until_ready_says(port, 503, "not connected to NATS\n")
        assert await get(port, "/healthz") == (200, "ok\n")
        restartable.up()
        await restartable.ready()
        await until_ready_says(port, 200, "ok\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /nope HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi", 405),
        (b"GET /healthz?x=1 HTTP/1.0\r\n\r\n", 200),
        (b"\x16\x03\x01 hello\r\n\r\n", 400),
        (b"GET /" + b"x" * 17_000 + b" HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2\r\n\r\n", 400),
    ],
    ids=["unknown path", "another method", "a query", "no HTTP", "too long", "another version"],
)
async def test_a_strange_request_gets_an_answer(fleet: Fleet, request_: bytes, status: int) -> None:
    """The daemon goes on."""
    port = await port_of(await fleet.daemon(health_port=0))

    assert (await get(port, "", request=request_))[0] == status
    assert (await get(port, "/healthz"))[0] == 200


async def test_head_is_answered_without_content(fleet: Fleet) -> None:
    """As some probes ask."""
    port = await port_of(await fleet.daemon(health_port=0))

    assert await get(port, "", request=b"HEAD /metrics HTTP/1.1\r\n\r\n") == (200, "")


def test_a_port_that_is_taken_is_named(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Before anything is connected to, in one line; exit code 3, at which a supervisor tries again."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-sim-team")
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])

        code = run_command(daemon_command, ["--nats", "nats://127.0.0.1:9", "--health-port", port])

    shown = capfd.readouterr().err
    assert code == 3
    assert f"127.0.0.1:{port}" in shown
    assert "--health-port" in shown
