"""The processes that chaos happens to: NATS servers, the provider, daemons, and the folders they use."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats

from tests.chaos.gate import Gate
from tests.chaos.wires import Wires

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.aio.client import Client

__all__ = ["LEASE_S", "PRODUCT", "Daemon", "NatsServer", "Provider", "World", "free_port"]

LEASE_S = 3.0
KEY = "sk-sim-team"
_BIN = Path(sys.executable).parent
PRODUCT = Path(os.environ.get("CHAOS_PRODUCT", _BIN))
"""The folder of the programs under test; another one judges another commit."""
_CLOCK = Path(__file__).with_name("clock.c")
_WAIT_S = 60.0
_RESTARTS = 20


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(kw_only=True)
class Program:
    """A process that can be started again with the same arguments."""

    name: str
    arguments: list[str]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    def start(self) -> None:
        """Start it; what it prints goes to files, one more after each start."""
        self.starts += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        base = self.folder / f"{self.name}.{self.starts}"
        environment = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "HOME")}
        with open(f"{base}.out", "wb") as out, open(f"{base}.err", "wb") as err:
            self.process = subprocess.Popen(
                self.arguments,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**environment, **self.environment},
                cwd=self.folder,  # in a checkout, Python would import that one in place of the product under test
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the newest start."""
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self) -> None:
        """Kill it, if it runs."""
        if self.process is not None and self.alive:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
            self.process.wait()

    def said(self, kind: str = "out") -> str:
        """All that it printed, over all starts."""
        paths = [self.folder / f"{self.name}.{number}.{kind}" for number in range(1, self.starts + 1)]
        return "".join(path.read_text(errors="replace") for path in paths if path.exists())

    def said_last(self, kind: str = "out") -> str:
        """What the newest start printed."""
        path = self.folder / f"{self.name}.{self.starts}.{kind}"
        return path.read_text(errors="replace") if path.exists() else ""

    async def gone(self, limit_s: float = _WAIT_S) -> int:
        """Wait for its end and return its exit code."""
        give_up = time.monotonic() + limit_s
        while self.alive:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{self.name} does not end")
            await asyncio.sleep(0.02)
        assert self.process is not None
        return self.process.returncode


class NatsServer(Program):
    """One nats-server on a port of its own."""

    port: int = 0
    monitor: int = 0

    def write_config(self, *, cluster_port: int, routes: list[int]) -> None:
        """Choose ports and write its configuration."""
        self.port, self.monitor = free_port(), free_port()
        cluster = ""
        if len(routes) > 1:
            listed = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
            # Clients must not learn of servers that they would reach without their wires.
            cluster = (
                f"cluster {{ name: chaos, listen: 127.0.0.1:{cluster_port}, routes: [{listed}], no_advertise: true }}\n"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / f"{self.name}.conf"
        config.write_text(
            f"server_name: {self.name}\nhost: 127.0.0.1\nport: {self.port}\nhttp: 127.0.0.1:{self.monitor}\n"
            f'jetstream {{ domain: fork, store_dir: "{self.folder / self.name}", max_file: 8GB, max_mem: 256MB }}\n'
            f"{cluster}"
        )
        self.arguments = [str(_BIN / "nats-server"), "-c", str(config)]

    def ask(self, path: str) -> Any:
        """What its monitoring port says."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor}/{path}", timeout=5) as answer:
            return json.load(answer)

    def healthy(self) -> bool:
        """Whether it serves JetStream."""
        try:
            return bool(self.ask("healthz").get("status") == "ok")
        except OSError:
            return False


class Provider(Program):
    """The simulated provider on a fixed port."""

    def bill(self) -> dict[str, dict[str, Any]]:
        """Every answered call by its message id, as the provider logged it."""
        found = {}
        for line in self.said().splitlines():
            with suppress(ValueError):
                record = json.loads(line)
                if record.get("event") == "request" and record.get("message_id"):
                    found[record["message_id"]] = record
        return found


@dataclass(kw_only=True)
class Daemon(Program):
    """A daemon with wires, a gate and a disk of its own."""

    wires: Wires
    state: Path
    temporary: Path
    clock: Path
    fault: str = ""
    """The fault that it is under; empty where it is well."""
    well_since: float = 0.0
    """Unix time since when it runs and is under no fault of its own."""

    def hears_since(self) -> float | None:
        """Since when it could hear from NATS; None where it cannot."""
        if self.fault not in ("", "full_disk", "clock_jump") or not self.wires.joined:
            return None
        return max(self.well_since, self.wires.joined_at)

    def ready(self) -> bool:
        """Whether the newest start takes work."""
        return "ready" in self.said_last().splitlines()

    def put_clock(self, seconds: int) -> None:
        """Add so many seconds to its time of day."""
        with open(self.clock, "r+b", buffering=0) as file:
            file.write(struct.pack("=q", seconds))

    def stopped(self) -> bool:
        """Whether the kernel holds it stopped."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
        except OSError:
            return False


@dataclass(kw_only=True)
class World:
    """Everything there is."""

    folder: Path
    servers: list[NatsServer]
    provider: Provider
    gate: Gate
    daemons: list[Daemon]
    client: Client
    effects: Path
    clock_library: Path | None = None
    """What changes a daemon's clock; None where there is no C compiler."""

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: Path, *, servers: int, daemons: int) -> AsyncIterator[World]:
        """Start everything, and give it when work can be given; every process ends with the block."""
        async with AsyncExitStack() as at_end:
            at_end.callback(shutil.rmtree, folder / "nats", ignore_errors=True)
            nodes = [NatsServer(name=f"n{number}", arguments=[], folder=folder / "nats") for number in range(servers)]
            routes = [free_port() for _ in nodes]
            for node, port in zip(nodes, routes, strict=True):
                node.write_config(cluster_port=port, routes=routes)
                node.start()
                at_end.callback(node.end)
            await _until(lambda: all(node.healthy() for node in nodes), "NATS")
            port = free_port()
            provider = Provider(
                name="provider",
                arguments=[str(PRODUCT / "nexofork"), "simulate", "--port", str(port), "--json"],
                folder=folder / "logs",
            )
            provider.start()
            at_end.callback(provider.end)
            await _until(lambda: '"ready"' in provider.said_last(), "the provider")
            gate = await at_end.enter_async_context(Gate(f"http://127.0.0.1:{port}"))
            (effects := folder / "effects").mkdir()
            client = await nats.connect(
                [f"nats://127.0.0.1:{node.port}" for node in nodes],
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.1,
                ping_interval=5,
                pending_size=64 << 20,
            )
            at_end.push_async_callback(client.close)
            world = cls(
                folder=folder, servers=nodes, provider=provider, gate=gate, daemons=[], client=client, effects=effects
            )
            world.clock_library = _compiled(folder / "clock.so")
            for number in range(daemons):
                world.daemons.append(await world._daemon(f"d{number}", at_end))
            # The first one makes the pool with the lease of this test.
            for daemon in world.daemons:
                daemon.start()
                await world.until_ready(daemon)
            yield world

    @property
    def urls(self) -> str:
        """The servers without wires, for parents."""
        return ",".join(f"nats://127.0.0.1:{node.port}" for node in self.servers)

    async def _daemon(self, name: str, at_end: AsyncExitStack) -> Daemon:
        wires = Wires([node.port for node in self.servers])
        await wires.open()
        at_end.push_async_callback(wires.close)
        state, temporary = self.folder / "state" / name, self.folder / "tmp" / name
        for made in (state, temporary):
            made.mkdir(parents=True)
        if os.geteuid() == 0:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=192m,mode=0700", "chaos", str(state)], check=True)
            at_end.callback(subprocess.run, ["umount", "-l", str(state)], check=False)
        clock = self.folder / f"{name}.clock"
        clock.write_bytes(bytes(8))
        arguments = ["daemon", "--name", name, "--nats", wires.urls, "--lease-s", f"{LEASE_S:g}", "--slots", "32"]
        arguments += ["--drain-s", "1", "--state-dir", str(state), "--disk-floor-mb", "4", "--log-level", "info"]
        arguments += ["--shared-dir", str(self.effects), "--base-url", await self.gate.open(name), "--health-port", "0"]
        environment = {"ANTHROPIC_API_KEY": KEY, "TMPDIR": str(temporary), "NEXOFORKD_CONFIG": os.devnull}
        if self.clock_library is not None:
            environment |= {"LD_PRELOAD": str(self.clock_library), "CHAOS_CLOCK": str(clock)}
        daemon = Daemon(
            name=name,
            arguments=[str(PRODUCT / "nexofork"), *arguments],
            folder=self.folder / "logs",
            environment=environment,
            wires=wires,
            state=state,
            temporary=temporary,
            clock=clock,
        )
        at_end.callback(daemon.end)
        return daemon

    @property
    def can_jump(self) -> bool:
        """Whether a daemon's clock can be changed."""
        return self.clock_library is not None

    async def until_ready(self, daemon: Daemon) -> None:
        """Return when a daemon takes work."""
        for _ in range(_RESTARTS):
            await _until(lambda: daemon.ready() or not daemon.alive, f"daemon {daemon.name}")
            if daemon.alive:
                break
            if "No NATS server" not in daemon.said_last("err"):
                raise RuntimeError(f"{daemon.name} ended by itself: {daemon.said_last('err')[-2000:]}")
            await asyncio.sleep(1.0)  # as a service manager does
            daemon.start()
        daemon.fault, daemon.well_since = "", time.time()


def _compiled(library: Path) -> Path | None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(_CLOCK), "-ldl"], check=True)
    return library


async def _until(holds: Any, what: str) -> None:
    give_up = time.monotonic() + _WAIT_S
    while not holds():
        if time.monotonic() > give_up:
            raise TimeoutError(f"{what} did not come up")
        await asyncio.sleep(0.05)
