"""What systemd is told, on a socket of our own."""

from __future__ import annotations

import asyncio
import secrets
import socket
from typing import TYPE_CHECKING

import pytest

from nexofork_daemon.systemd import Supervisor, Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

USUAL = 30_000_000


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[socket.socket]:
    """Where systemd listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        if request.param == "path":
            listening.bind(str(tmp_path_factory.mktemp("n") / "notify"))
        else:
            listening.bind(f"\0nexofork-{secrets.token_hex(8)}")
        listening.settimeout(5)
        yield listening


def address(systemd: socket.socket) -> str:
    """As it is in NOTIFY_SOCKET."""
    name = systemd.getsockname()
    return "@" + name[1:].decode() if isinstance(name, bytes) else str(name)


def heard(systemd: socket.socket) -> dict[str, str]:
    """The next thing that was told."""
    return dict(line.split("=", 1) for line in systemd.recv(4096).decode().split("\n"))


async def test_a_daemons_life_is_told(systemd: socket.socket) -> None:
    """Busy, ready, reloading, stopping; what has not changed is not told twice."""
    watch = Watch(Supervisor(address=address(systemd)), clock=lambda: 12.5)
    watch.doing(slots=4, running=0, draining=False)
    watch.ready()
    watch.doing(slots=4, running=0, draining=False)
    watch.reloading()
    watch.doing(slots=4, running=1, draining=True)
    watch.stopping()

    assert [heard(systemd) for _ in range(5)] == [
        {"STATUS": "4 slots, 0 running"},
        {"READY": "1", "STATUS": "4 slots, 0 running"},
        {"RELOADING": "1", "MONOTONIC_USEC": "12500000"},
        {"STATUS": "draining, 1 running"},
        {"STOPPING": "1", "EXTEND_TIMEOUT_USEC": str(USUAL)},
    ]


async def test_the_loop_beats_and_asks_for_time_while_it_drains(systemd: socket.socket) -> None:
    """Three beats fit the watchdog's limit."""
    watch = Watch(Supervisor(address=address(systemd), watchdog_s=0.06))
    async with asyncio.TaskGroup() as tasks:
        beating = tasks.create_task(watch.beat())
        assert await asyncio.to_thread(heard, systemd) == {"WATCHDOG": "1"}
        watch.stopping()
        told: dict[str, str] = {}
        while told.keys() != {"WATCHDOG", "EXTEND_TIMEOUT_USEC"}:
            told = await asyncio.to_thread(heard, systemd)
        beating.cancel()


async def test_nobody_is_told_where_nobody_listens() -> None:
    """Without systemd, or with one that is gone, everything goes on."""
    await Watch(Supervisor()).beat()
    Watch(Supervisor(address="/no/such/socket")).ready()
