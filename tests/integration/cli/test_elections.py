"""A NATS that is away when a command or a daemon starts: both wait for it, say so, and then do their work."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nexofork.bus.jetstream import call
from nexofork.bus.provisioning import provision
from nexofork.wire.streams import log_stream
from tests.integration.cli.conftest import objects
from tests.support.nats import SMALL, connected, run_cluster
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.cli.conftest import World
    from tests.support.fleet import RestartableServer
    from tests.support.nats import Cluster

_NEXOFORK = str(Path(sys.executable).with_name("nexofork"))
_BARE = ("--sandbox", "none", "--allow-root")
_HEALTH = "are answered on 127.0.0.1:"


class Started:
    """A command that runs, and what it said so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.out = self.err = ""

    async def says(self, words: str) -> None:
        """Return when it has said this on either stream; fails if it ends without."""
        async with asyncio.timeout(PATIENCE_S):
            while words not in self.out + self.err:
                assert self.process.returncode is None, f"it ended with {self.process.returncode}: {self.err}"
                await asyncio.sleep(0.01)

    async def ends(self) -> int:
        """Return its exit code."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()

    async def hear(self) -> None:
        """Take what it says, until it ends."""
        async with asyncio.TaskGroup() as streams:
            streams.create_task(self._hear("out", self.process.stdout))
            streams.create_task(self._hear("err", self.process.stderr))

    async def _hear(self, name: str, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None
        while line := await stream.readline():
            setattr(self, name, getattr(self, name) + line.decode())


@asynccontextmanager
async def started(world: World, *arguments: str) -> AsyncIterator[Started]:
    """A command of this world; it is gone at the end of the block."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        _NEXOFORK, *arguments, stdout=pipe, stderr=pipe, env=world.environment
    )
    command = Started(process)
    async with asyncio.TaskGroup() as tasks:
        hearing = tasks.create_task(command.hear())
        try:
            yield command
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            hearing.cancel()


async def ready(daemon: Started) -> tuple[int, str]:
    """What the readiness page of the daemon says."""
    port = int(daemon.err.partition(_HEALTH)[2].split()[0].rstrip('",}'))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body.strip()


def daemon_of(world: World, url: str, state: Path) -> tuple[str, ...]:
    """The words that start a daemon."""
    return ("daemon", "--pool", world.pool, "--nats", url, "--health-port", "0", "--state-dir", str(state), *_BARE)


async def test_a_daemon_waits_for_a_server_that_is_not_there(
    own_pool: World, restartable: RestartableServer, tmp_path: Path
) -> None:
    """It says so and is not ready; when the server is there it takes work."""
    url = restartable.url
    restartable.down()
    async with started(own_pool, *daemon_of(own_pool, url, tmp_path / "state")) as daemon:
        await daemon.says("No NATS server was reached")
        before = await ready(daemon)
        restartable.up()
        await restartable.ready()
        await daemon.says("ready\n")
        after = await ready(daemon)
        done = await asyncio.to_thread(own_pool.run, *own_pool.forking("Look."), "--nats", url, "--json")
        daemon.process.send_signal(signal.SIGTERM)
        code = await daemon.ends()

    assert before == (503, "starting: waiting for NATS")
    assert after == (200, "ok")
    assert (code, done.returncode, objects(done.stdout)[0]["status"]) == (0, 0, "completed"), done.stderr
    assert "NATS answers again" in daemon.err


async def test_a_daemon_that_waits_ends_when_it_is_told_to(own_pool: World, tmp_path: Path) -> None:
    """In order, and without waiting for the server any longer."""
    async with started(own_pool, *daemon_of(own_pool, "nats://127.0.0.1:9", tmp_path / "state")) as daemon:
        await daemon.says("No NATS server was reached")
        daemon.process.send_signal(signal.SIGTERM)
        code = await daemon.ends()

    assert code == 0, daemon.err
    assert "Traceback" not in daemon.err
    assert "ready" not in daemon.out


async def lose_the_majority(cluster: Cluster, pool: str) -> str:
    """Crash two of three servers, with them the leader of the pool's log; returns the address of the third."""
    async with connected(cluster.urls[0]) as bus:
        await provision(bus, pool=pool, max_bytes=SMALL)
        info = await call(bus, f"STREAM.INFO.{log_stream(pool)}")
    assert info["config"]["num_replicas"] == 3
    leader = info["cluster"]["leader"]
    left = next(name for name in cluster.servers if name != leader)
    for name, server in cluster.servers.items():
        if name != left:
            server.kill()
    return cluster.servers[left].url


@pytest.mark.ops
async def test_a_fork_and_a_daemon_wait_for_a_cluster_without_a_leader(own_pool: World, tmp_path: Path) -> None:
    """Two of three servers are down when both start, and `ps` too; with the servers back the run completes."""
    with run_cluster(tmp_path / "cluster") as cluster:
        url = await lose_the_majority(cluster, own_pool.pool)
        at = ("--nats", url, "--json")
        async with (
            started(own_pool, *daemon_of(own_pool, url, tmp_path / "state")) as daemon,
            started(own_pool, *own_pool.forking("Look."), *at) as fork,
            started(own_pool, "ps", *own_pool.at, *at) as ps,
        ):
            for command in (daemon, fork, ps):
                await command.says("waiting")
            before = await ready(daemon)
            for server in cluster.servers.values():
                if server.ended():
                    server.spawn()
            for server in cluster.servers.values():
                await eventually(server.ready)
            codes = [await fork.ends(), await ps.ends()]

    assert before[0] == 503
    assert codes == [0, 0], fork.err + ps.err
    assert [one["status"] for one in objects(fork.out)] == ["completed"]
    for command in (daemon, fork, ps):
        assert "NATS answers again" in command.err, command.err
