"""Real nats-servers for tests: one shared by all, one with accounts, a cluster of three, and a wire that can be cut.

Tests share the server and keep apart by run id and by pool: a pool has its own log, inbox and consumer.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import time
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from nexofork.auth.book import ROLES, Server
from nexofork.auth.folder import create, seed_file
from nexofork.bus.connection import Bus, BusSettings, open_bus
from nexofork.bus.embedded import EmbeddedServer, ServerProcess
from nexofork.bus.provisioning import provision
from nexofork.wire.messages import Claimed, Daemon, Final, Payload, Requested, Turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path
    from typing import Self

__all__ = [
    "ROLES",
    "SMALL",
    "AccountsServer",
    "Cluster",
    "Proxy",
    "ServerProcess",
    "a_claim",
    "a_final",
    "a_request",
    "a_turn",
    "accounts_server",
    "attacked_server",
    "bus",
    "cluster",
    "connected",
    "free_port",
    "nats_server",
    "pool",
    "pool_bus",
    "provision_as_admins",
    "run_accounts_server",
    "run_cluster",
    "run_id",
    "running",
]

SMALL = 64 << 20
_START_S = 30.0


def a_request(directive: str = "look around") -> Requested:
    """The smallest request there is."""
    return Requested(snapshot=Payload(text="{}"), directive=directive)


def a_claim(epoch: int = 1, instance: str = "d1") -> Claimed:
    """A daemon's claim."""
    return Claimed(epoch=epoch, daemon=Daemon(instance=instance))


def a_turn(turn: int = 1, epoch: int = 1) -> Turn:
    """A turn without content."""
    return Turn(epoch=epoch, turn=turn, content=Payload(text="[]"))


def a_final(epoch: int = 1) -> Final:
    """An end."""
    return Final(epoch=epoch, status="completed", result=Payload(text="{}"))


@asynccontextmanager
async def connected(
    url: str, *, seed: Path | None = None, request_timeout_s: float = 5.0, patience_s: float = 60.0
) -> AsyncIterator[Bus]:
    """A connection to a server."""
    settings = BusSettings(urls=(url,), nkey_seed=seed, request_timeout_s=request_timeout_s, patience_s=patience_s)
    async with open_bus(settings) as connection:
        yield connection


@pytest.fixture(scope="session")
def nats_server() -> Iterator[EmbeddedServer]:
    """One server for all tests."""
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
async def bus(nats_server: EmbeddedServer) -> AsyncIterator[Bus]:
    """A connection to the shared server, with everything provisioned."""
    async with connected(nats_server.url) as connection:
        await provision(connection, max_bytes=SMALL)
        yield connection


@pytest.fixture
def run_id() -> str:
    """A run that no other test knows."""
    return uuid.uuid4().hex


@pytest.fixture
def pool() -> str:
    """A pool that no other test knows."""
    return f"p{secrets.token_hex(6)}"


@pytest.fixture
async def pool_bus(nats_server: EmbeddedServer, pool: str) -> AsyncIterator[Bus]:
    """A connection to the shared server, with a pool of its own and a lease of one second."""
    async with connected(nats_server.url) as connection:
        await provision(connection, pool=pool, lease_s=1.0, max_bytes=SMALL)
        yield connection


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountsServer:
    """A server with the configuration that `nexofork auth` renders, and a key for each role."""

    url: str
    folder: Path
    """What `nexofork auth` made."""
    process: ServerProcess
    tenants: tuple[str, ...]
    pools: tuple[str, ...]

    @property
    def seeds(self) -> dict[str, Path]:
        """By role, of the first tenant."""
        return self.seeds_of(self.tenants[0])

    def seeds_of(self, tenant: str) -> dict[str, Path]:
        """By role, of a tenant."""
        return {role: seed_file(self.folder, tenant, role, "default") for role in ROLES}

    def reload(self) -> None:
        """Let the server read its configuration again."""
        os.kill(self.process.pid, signal.SIGHUP)


@contextmanager
def run_accounts_server(
    folder: Path,
    *,
    tenants: tuple[str, ...] = ("default",),
    pools: tuple[str, ...] = ("fork",),
    change: Callable[[str], str] = str,
    max_bytes: int | None = SMALL,
) -> Iterator[AccountsServer]:
    """A server with accounts for as long as the block; its streams were made by the admins.

    Args:
        folder: Where everything goes.
        tenants: Whose accounts.
        pools: Of each tenant.
        change: What is done to the configuration before the server reads it.
        max_bytes: The limit of each pool's log; None makes no streams.
    """
    made = folder / "auth"
    create(made, Server(port=-1, monitor_port=-1, store=str(folder / "store")), tenants=tenants, pools=pools)
    rendered = made / "nats-server.conf"
    if (changed := change(rendered.read_text())) != rendered.read_text():
        rendered.write_text(changed)
    # Included, so that the server reads the very file that commands change.
    with running(ServerProcess('include "../auth/nats-server.conf"', folder=folder / "server")) as process:
        server = AccountsServer(url=process.url, folder=made, process=process, tenants=tenants, pools=pools)
        if max_bytes is not None:
            with ThreadPoolExecutor(1) as thread:  # the caller may have a loop of its own
                thread.submit(asyncio.run, provision_as_admins(server, max_bytes=max_bytes)).result()
        yield server


@pytest.fixture(scope="session")
def accounts_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccountsServer]:
    """One server with accounts for all tests."""
    with run_accounts_server(tmp_path_factory.mktemp("accounts")) as server:
        yield server


@pytest.fixture
def attacked_server(tmp_path: Path) -> Iterator[AccountsServer]:
    """A server with accounts for one test: a rogue daemon can keep requests from others until their lease ends."""
    with run_accounts_server(tmp_path) as server:
        yield server


async def provision_as_admins(server: AccountsServer, *, max_bytes: int = SMALL) -> None:
    """Make every pool of every tenant."""
    for tenant in server.tenants:
        async with connected(server.url, seed=server.seeds_of(tenant)["admin"]) as admin:
            for pool in server.pools:
                await provision(admin, pool=pool, max_bytes=max_bytes)


@contextmanager
def running(server: ServerProcess) -> Iterator[ServerProcess]:
    """A server for as long as the block."""
    try:
        server.spawn()
        _wait(server.ready)
        yield server
    finally:
        server.kill()


def _wait(holds: object) -> None:
    deadline = time.monotonic() + _START_S
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline, "the server did not come up"
        time.sleep(0.02)


class Cluster:
    """Three servers that replicate to each other."""

    def __init__(self, folder: Path) -> None:
        ports = [free_port() for _ in range(3)]
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
        self.servers = {}
        for number, port in enumerate(ports, start=1):
            home = folder / f"n{number}"
            self.servers[f"n{number}"] = ServerProcess(
                f'host: 127.0.0.1\nport: {free_port()}\nhttp: "127.0.0.1:-1"\nserver_name: n{number}\n'
                f'jetstream {{ domain: fork, store_dir: "{home / "store"}", max_file: 4GB, max_mem: 256MB }}\n'
                f"cluster {{ name: tests, listen: 127.0.0.1:{port}, routes: [{routes}] }}\n",
                folder=home,
            )

    @property
    def urls(self) -> tuple[str, ...]:
        """Where clients connect."""
        return tuple(server.url for server in self.servers.values())

    def start(self) -> None:
        """Start all three and wait until they know each other."""
        for server in self.servers.values():
            server.spawn()
        for server in self.servers.values():
            _wait(server.ready)
        for server in self.servers.values():
            _wait(lambda server=server: _knows_two_peers(server))

    def stop(self) -> None:
        """End all three."""
        for server in self.servers.values():
            server.kill()


def _knows_two_peers(server: ServerProcess) -> bool:
    with urllib.request.urlopen(f"{server.monitor_url}/jsz", timeout=2) as response:
        meta = json.load(response).get("meta_cluster", {})
    peers = meta.get("replicas") or []
    return (
        bool(meta.get("leader"))
        and meta.get("cluster_size") == 3
        and (meta["leader"] != server_name(server) or len(peers) == 2)
    )


def server_name(server: ServerProcess) -> str:
    """The name a server of the cluster has."""
    return server.folder.name


@contextmanager
def run_cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster of three for as long as the block."""
    three = Cluster(folder)
    try:
        three.start()
        yield three
    finally:
        three.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of three for the tests of one module."""
    with run_cluster(tmp_path_factory.mktemp("cluster")) as three:
        yield three


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Proxy:
    """A wire to a server that can be cut, or made deaf in one direction."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("nats://").rpartition(":")
        self._target = (host, int(port))
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._answers = asyncio.Event()
        self._answers.set()
        self._trigger: bytes | None = None
        self.withheld = asyncio.Event()
        """Set when an answer of the server was held back."""

    @property
    def url(self) -> str:
        """Where to connect instead of the server."""
        assert self._server is not None
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def hold_answers(self) -> None:
        """Let everything through to the server and nothing back."""
        self.withheld.clear()
        self._answers.clear()

    def hold_answers_to(self, words: bytes) -> None:
        """Hold the answers back from the moment a message with these words goes through."""
        self.withheld.clear()
        self._trigger = words

    def release_answers(self) -> None:
        """Let through what was held back."""
        self._answers.set()

    def cut(self) -> None:
        """Break all connections; new ones go through."""
        self._answers.set()
        for writer in list(self._writers):
            writer.transport.abort()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, back}
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, back, answers=False))
                pumps.create_task(self._pump(there, writer, answers=True))
        finally:
            self._writers -= {writer, back}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        try:
            while data := await reader.read(65536):
                if not answers and self._trigger is not None and self._trigger in data:
                    self._trigger = None
                    self.hold_answers()
                if answers and not self._answers.is_set():
                    self.withheld.set()
                    await self._answers.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
