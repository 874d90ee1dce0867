"""A fleet for tests: a nats-server, the simulator, and daemons and parents that are processes of their own."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkParams
from nexofork.bus.presence import PresenceBoard
from nexofork.bus.provisioning import provision
from nexofork.bus.reading import last_direct, last_of, read_subject
from nexofork.bus.run_log import RunLog
from nexofork.client.fleet import FleetSettings, connect
from nexofork.wire import messages as wire
from nexofork.wire.streams import inbox_stream, log_stream
from nexofork.wire.subjects import inbox, parent_alive
from tests.support.conversation import KEY
from tests.support.nats import SMALL, ServerProcess, connected
from tests.support.parents import Parent, body_of
from tests.support.processes import Nursery, Process, nursery
from tests.support.run_model import Logged, check_history
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from nexofork import CacheSafeParams
    from nexofork.bus.connection import Bus, Msg
    from nexofork.bus.embedded import EmbeddedServer
    from nexofork.bus.run_log import Entry
    from nexofork.client.fleet import NatsForkSubagent
    from nexofork.simulator import Simulator

__all__ = [
    "Fleet",
    "Nursery",
    "Process",
    "RestartableServer",
    "asked",
    "epochs",
    "finals",
    "fleet",
    "group_of",
    "lines_in",
    "nursery",
    "open_fleet",
    "restartable",
]

LEASE_S = 3.0
"""Longer than a busy machine stalls a daemon, so that only one that a test ended loses its runs."""


class RestartableServer:
    """A server that comes back on the same port with the same store."""

    def __init__(self, folder: Path) -> None:
        self._server = ServerProcess(self._configuration(folder, "-1"), folder=folder)

    @property
    def url(self) -> str:
        """Where clients connect."""
        return self._server.url

    def up(self) -> None:
        """Start it without waiting."""
        self._server.spawn()

    async def ready(self) -> None:
        """Return when it accepts connections."""
        await eventually(self._server.ready)
        port = self.url.rpartition(":")[2]
        self._server.configuration = self._configuration(self._server.folder, port)

    def down(self) -> None:
        """End it as a crash would."""
        self._server.kill()

    async def restart(self) -> None:
        """Crash and come back."""
        self.down()
        self.up()
        await self.ready()

    @staticmethod
    def _configuration(folder: Path, port: str) -> str:
        return f'host: 127.0.0.1\nport: {port}\njetstream {{ domain: fork, store_dir: "{folder / "store"}" }}\n'


@pytest.fixture
async def restartable(tmp_path: Path) -> AsyncIterator[RestartableServer]:
    """A server of the test's own that it may restart."""
    server = RestartableServer(tmp_path / "nats")
    try:
        server.up()
        await server.ready()
        yield server
    finally:
        server.down()


@dataclass(kw_only=True)
class Fleet:
    """Everything a story needs; processes are killed at its end."""

    urls: tuple[str, ...]
    pool: str
    sim: Simulator
    nursery: Nursery
    bus: Bus
    """A connection of the test's own, to look at the logs."""
    folder: Path
    agent: Parent
    """The agent that forks."""
    lease_s: float = LEASE_S
    seeds: dict[str, Path] = field(default_factory=dict)
    """By role, where the server has accounts."""
    processes: list[Process] = field(default_factory=list)
    captured: CacheSafeParams | None = None
    first_seq: int = 1
    """Where the log of the pool began for this fleet; earlier ones may have used the pool too."""
    forged: bool = False
    """Set by a test that writes on logs itself, so that they need not be what daemons and parents write."""

    @property
    def url(self) -> str:
        """Where parents connect."""
        return ",".join(self.urls)

    async def daemon(
        self,
        name: str = "",
        *,
        key: str = KEY,
        base_url: str = "",
        ready: bool = True,
        path: Sequence[str] = (),
        mcp_config: Path | None = None,
        env: Mapping[str, str] | None = None,
        obeys_modes: bool = False,
        **settings: Any,
    ) -> Process:
        """Start a daemon process; `path` is where it finds further packages, `env` is added to its environment.

        One that `obeys_modes` has no right to pass over the modes of files, even if the tests run as root.
        """
        name = name or f"d{len(self.processes)}"
        chosen = {"name": name, "pool": self.pool, "lease_s": self.lease_s, "slots": 16, "drain_s": 0, **settings}
        chosen = {"state_dir": str(self.folder / "state"), **chosen}
        spec: dict[str, Any] = {"urls": self.urls, "base_url": base_url or self.sim.url, "key": key, "settings": chosen}
        spec |= {"path": list(path), "env": dict(env or {}), "obeys_modes": obeys_modes}
        if mcp_config is not None:
            spec["mcp_config"] = str(mcp_config)
        if "daemon" in self.seeds:
            spec["nkey_seed"] = str(self.seeds["daemon"])
        process = await self.nursery.start("daemon", name, spec)
        self.processes.append(process)
        if ready:
            await process.until_said("ready")
        return process

    async def daemons(self, count: int, **settings: Any) -> list[Process]:
        """Start so many daemon processes."""
        started = [await self.daemon(ready=False, **settings) for _ in range(count)]
        for process in started:
            await process.until_said("ready")
        return started

    async def parent_process(
        self,
        directives: Sequence[str],
        *,
        detach: bool = False,
        bubbled: Sequence[str] = (),
        echo: bool = False,
        env: Mapping[str, str] | None = None,
        nursery: Nursery | None = None,
        **settings: Any,
    ) -> tuple[Process, list[str]]:
        """Start a process that forks these directives, and return it with the run ids.

        It is of this version unless another nursery is given. It says ``called`` when a tool of `bubbled` is called,
        and does not answer, unless it is to `echo` arguments.
        """
        snapshot = await self.snapshot()
        assert snapshot.reply is not None
        body, reply = self.folder / "body.json", self.folder / "reply.json"
        body.write_bytes(snapshot.body)
        reply.write_bytes(snapshot.reply.to_wire())
        spec = {
            "urls": self.urls,
            "body": str(body),
            "reply": str(reply),
            "directives": list(directives),
            "detach": detach,
            "bubbled": list(bubbled),
            "echo": echo,
            "env": dict(env or {}),
            "settings": {"pool": self.pool, **settings},
        }
        process = await (nursery or self.nursery).start("parent", f"parent{len(self.processes)}", spec)
        self.processes.append(process)
        return process, (await process.until_said("forked"))["run_ids"]

    @asynccontextmanager
    async def connect(self, **settings: Any) -> AsyncIterator[NatsForkSubagent]:
        """Be a parent in this process."""
        chosen = FleetSettings(pool=self.pool, **settings)
        async with connect(self.url, nkey_seed=self.seeds.get("parent"), settings=chosen) as forks:
            yield forks

    async def snapshot(self) -> CacheSafeParams:
        """What was captured of the one call the agent made."""
        if self.captured is None:
            self.captured = await self.agent.ask()
        return self.captured

    async def params(self, directive: str, **more: Any) -> ForkParams:
        """A fork of that snapshot."""
        return ForkParams(cache_safe=await self.snapshot(), prompt_messages=directive, **more)

    def log(self, run_id: str) -> RunLog:
        """A run's log, to write to as a daemon would."""
        return RunLog(self.bus, run_id, pool=self.pool)

    async def entries(self, run_id: str) -> list[Entry]:
        """The log of a run."""
        return await self.log(run_id).entries()

    async def reports(self, run_id: str) -> list[Any]:
        """What daemons wrote on the log of a run."""
        found = [entry.message for entry in await self.entries(run_id)]
        return [message for message in found if not isinstance(message, (wire.Requested, wire.AbortEvent))]

    async def until_logged(self, run_id: str, holds: Callable[[Any], bool]) -> None:
        """Return when a report that fulfils the condition is on the log."""
        async with asyncio.timeout(PATIENCE_S):
            while not any(map(holds, await self.reports(run_id))):  # noqa: ASYNC110 - the log is asked, it does not tell
                await asyncio.sleep(0.01)

    async def until_answered(self, run_id: str, ask_id: str) -> bytes:
        """Return the answer to a question, once it is in the run's inbox."""
        subject, stream = inbox(run_id, ask_id, self.pool), inbox_stream(self.pool)
        async with asyncio.timeout(PATIENCE_S):
            while (stored := await last_direct(self.bus, stream, subject)) is None:  # noqa: ASYNC110 - likewise
                await asyncio.sleep(0.01)
        return stored.data

    async def until_present(self, holds: Callable[[wire.Presence], bool]) -> None:
        """Return when a daemon that fulfils the condition is there."""
        board = PresenceBoard(self.bus)
        async with asyncio.timeout(PATIENCE_S):
            while not any(map(holds, await board.daemons(self.pool))):  # noqa: ASYNC110 - likewise
                await asyncio.sleep(0.01)

    async def until_heard(self, parent_id: str, *, beats: int) -> None:
        """Return when so many more heartbeats of a parent have come to where daemons hear them."""
        heard: list[Msg] = []
        subscription = await self.bus.subscribe(parent_alive(parent_id, self.pool), heard.append)
        try:
            await eventually(lambda: len(heard) >= beats)
        finally:
            await subscription.drain()

    def owner(self, name: str | None) -> Process:
        """The process of this name."""
        return next(process for process in self.processes if process.name == name)

    async def close(self) -> None:
        """Tell every process to stop, and fail unless those that the test did not kill end in good order."""
        for process in self.processes:
            process.signal(signal.SIGCONT)
            process.signal(signal.SIGTERM)
        try:
            for process in self.processes:
                assert await process.gone() in (0, -signal.SIGKILL), f"{process.name}:\n{process.log[-4000:]}"
        finally:
            for process in self.processes:
                process.signal(signal.SIGKILL)

    async def check_histories(self) -> None:
        """Fail if a log of the pool holds what the model of a run does not allow."""
        if self.forged or not self.bus.connected:
            return
        histories: dict[str, list[Logged]] = {}
        for stored in await read_subject(self.bus, log_stream(self.pool), f"agent.{self.pool}.*.*"):
            run_id = stored.subject.split(".")[2]
            if run_id.startswith("budget-"):
                continue  # the account of a group
            histories.setdefault(run_id, []).append(
                Logged.read(seq=stored.seq, subject=stored.subject, data=stored.data, headers=stored.headers)
            )
        ours = {run_id: history for run_id, history in histories.items() if history[0].seq >= self.first_seq}
        broken = {run_id: found for run_id, history in ours.items() if (found := check_history(history))}
        assert not broken, broken


@asynccontextmanager
async def open_fleet(
    urls: tuple[str, ...],
    *,
    sim: Simulator,
    nursery: Nursery,
    folder: Path,
    lease_s: float = LEASE_S,
    pool: str | None = None,
    seeds: dict[str, Path] | None = None,
    max_bytes: int = SMALL,
) -> AsyncIterator[Fleet]:
    """A fleet without daemons yet, in a pool of its own."""
    roles = seeds or {}
    pool = pool or f"f{secrets.token_hex(5)}"
    async with connected(urls[0], seed=roles.get("daemon")) as bus, Parent(sim.url) as agent:
        if not roles:
            await provision(bus, pool=pool, lease_s=lease_s, max_bytes=max_bytes)
        tip = await last_of(bus, log_stream(pool), f"agent.{pool}.*.*")
        fleet = Fleet(
            urls=urls,
            pool=pool,
            sim=sim,
            nursery=nursery,
            bus=bus,
            folder=folder,
            agent=agent,
            lease_s=lease_s,
            seeds=roles,
            first_seq=tip.seq + 1 if tip else 1,
        )
        try:
            yield fleet
            await fleet.check_histories()
        finally:
            await fleet.close()


@pytest.fixture
async def fleet(nats_server: EmbeddedServer, sim: Simulator, nursery: Nursery, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet on the shared server."""
    async with open_fleet((nats_server.url,), sim=sim, nursery=nursery, folder=tmp_path) as opened:
        yield opened


def asked(sim: Simulator, word: str) -> list[int]:
    """Which turn of the child each request about a directive with this word asks for, in order of arrival."""
    turns = []
    for record in sim.log:
        raw = sim.body(record.index)
        if raw is None or word.encode() not in raw:
            continue
        messages = body_of(sim, record.index)["messages"]
        told = next(at for at, message in enumerate(messages) if word in json.dumps(message["content"]))
        turns.append(1 + sum(message["role"] == "assistant" for message in messages[told:]))
    return turns


def finals(reports: Sequence[Any]) -> list[wire.Final]:
    """The ends among reports."""
    return [report for report in reports if isinstance(report, wire.Final)]


def epochs(reports: Sequence[Any]) -> list[int]:
    """The epoch of each report, in the order of the log."""
    return [report.epoch for report in reports]


def group_of(pid: int) -> list[int]:
    """The living members of a process group; who is dead and only waits to be reaped is none."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
            if state != "Z" and int(group) == pid:
                members.append(int(stat.parent.name))
    return members


def lines_in(path: Path) -> int:
    """How many lines a file has; none where it does not exist."""
    return len(path.read_text().splitlines()) if path.exists() else 0
