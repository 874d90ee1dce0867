"""The faults: a schedule that a seed fixes, and what carries each of them out.

A fault returns what showed that it took effect. One without such evidence is a fault of the harness, and fails the run.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from tests.chaos.gate import ProviderFault
from tests.chaos.world import LEASE_S

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.chaos.wires import Mode
    from tests.chaos.work import Work
    from tests.chaos.world import Daemon, World

__all__ = ["DELAY_S", "KINDS", "Faults", "Happened", "Planned", "schedule"]

_DAEMON = {
    **{"kill": 7, "stop": 9, "term": 3, "cut": 5, "half_open": 8, "delay": 10, "full_disk": 2, "clock_jump": 2},
    "deaf_in_pause": 9,
}
_OTHER = {
    **{"server_restart": 3, "leader_kill": 3},
    **{"p429": 5, "p529": 3, "p500": 2, "pcut": 3, "phang": 3, "pslow": 2, "provider_restart": 2, "parent_kill": 5},
}
KINDS = frozenset({**_DAEMON, **_OTHER})
_PARTING = frozenset({"kill", "stop", "term", "cut", "half_open", "deaf_in_pause", "server_restart", "leader_kill"})
"""What may keep a daemon from hearing or writing in time."""
_FELT_S = 20.0
"""How long a fault may wait until it is felt."""
_SPENT_BLOCKS = 256
DELAY_S = 0.12
_DEAF_LEASES = 2.5
_ANNOUNCED_S = 1.0
"""How long a daemon that announces a repeated call before its pause may take for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One fault to come."""

    after_s: float
    """Since the fault before it."""
    kind: str
    target: int
    """Which daemon or server, counted from zero."""
    lasts_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """One fault that was carried out; times are Unix times."""

    kind: str
    target: str
    began: float
    ended: float
    evidence: str
    """Empty where it did not take effect."""

    @property
    def parts(self) -> bool:
        """Whether it may keep a daemon from hearing or writing in time."""
        return self.kind in _PARTING


def schedule(seed: int, *, minutes: float, daemons: int, servers: int, without: frozenset[str]) -> list[Planned]:
    """Return the faults of a seed, in order."""
    chance = random.Random(seed)
    weights = {**_DAEMON, **_OTHER}
    if servers < 3:
        weights.pop("leader_kill")
    kinds = [kind for kind in weights if kind not in without]
    found, at = list[Planned](), 0.0
    while at < minutes * 60:
        after = chance.uniform(0.5, 2.5)
        [kind] = chance.choices(kinds, [weights[kind] for kind in kinds])
        # Many last just long enough for another daemon to take the runs, and no connection to be given up.
        lasts = chance.choice((chance.uniform(1.1, 1.7), chance.uniform(0.3, 3.5))) * LEASE_S
        found.append(Planned(after_s=after, kind=kind, target=chance.randrange(daemons), lasts_s=lasts))
        at += after
    return found


@dataclass(kw_only=True)
class Faults:
    """Carries a schedule out."""

    world: World
    work: Work
    happened: list[Happened] = field(default_factory=list)
    kills: list[tuple[str, float]] = field(default_factory=list)
    """Daemons that were killed, and when."""
    left_out: int = 0
    """How many planned faults met a thing that had a fault already, or no parent to kill."""
    _busy: set[str] = field(default_factory=set)

    async def run(self, planned: list[Planned], until: float) -> None:
        """Begin one fault after the other; several may be under way at once, but only one on the same thing."""
        async with asyncio.TaskGroup() as tasks:
            for fault in planned:
                await asyncio.sleep(fault.after_s)
                if time.time() >= until:
                    return
                thing = self._thing(fault)
                if thing in self._busy:
                    self.left_out += 1
                    continue
                self._busy.add(thing)
                tasks.create_task(self._carried_out(fault, thing))

    def _thing(self, fault: Planned) -> str:
        if fault.kind in _DAEMON:
            return self.world.daemons[fault.target].name
        if fault.kind in ("server_restart", "leader_kill"):
            return "nats"
        return "parent" if fault.kind == "parent_kill" else "provider"

    async def _carried_out(self, fault: Planned, thing: str) -> None:
        began = time.time()
        try:
            if fault.kind in _DAEMON:
                evidence = await self._on_daemon(fault, self.world.daemons[fault.target])
            elif thing == "nats":
                evidence = await self._on_nats(fault)
            elif thing == "parent":
                evidence = await self._kill_parent()
            else:
                evidence = await self._on_provider(fault)
        finally:
            self._busy.discard(thing)
        if evidence == "-":
            self.left_out += 1
        else:
            self.happened.append(
                Happened(kind=fault.kind, target=thing, began=began, ended=time.time(), evidence=evidence)
            )
            with open(self.world.folder / "faults.jsonl", "a") as out:
                out.write(json.dumps(asdict(self.happened[-1])) + "\n")

    async def _on_daemon(self, fault: Planned, daemon: Daemon) -> str:
        daemon.fault, pid = fault.kind, daemon.pid
        match fault.kind:
            case "kill":
                self.kills.append((daemon.name, time.time()))
                daemon.signal(signal.SIGKILL)
                code = await daemon.gone()
                await asyncio.sleep(min(fault.lasts_s, 3.0))
                daemon.start()
                evidence = f"pid {pid} ended with {code}" if code == -signal.SIGKILL else ""
            case "term":
                daemon.signal(signal.SIGTERM)
                code = await daemon.gone()
                daemon.start()
                evidence = f"pid {pid} ended with {code}" if code == 0 else ""
            case "stop":
                daemon.signal(signal.SIGSTOP)
                await asyncio.sleep(0.2)
                evidence = "stopped" if daemon.stopped() else ""
                await asyncio.sleep(fault.lasts_s)
                daemon.signal(signal.SIGCONT)
            case "cut" | "half_open" | "delay":
                mode: Mode = fault.kind
                if mode == "delay":
                    self.work.wanted.append("timeout")  # so that some fire while a report is under way
                daemon.wires.become(mode, delay_s=DELAY_S)
                await asyncio.sleep(fault.lasts_s)
                hits = await _felt(lambda: daemon.wires.hits)
                daemon.wires.become("pass")
                evidence = f"{hits} hits" if hits else ""
            case "deaf_in_pause":
                evidence = await self._deafen(daemon, fault)
            case "full_disk":
                evidence = await self._fill(daemon, fault.lasts_s)
            case _:
                evidence = await self._jump(daemon, fault)
        await self.world.until_ready(daemon)
        return evidence

    async def _deafen(self, daemon: Daemon, fault: Planned) -> str:
        """Let the provider ask for a pause, and take NATS away until after it: another daemon ends the runs by then."""
        lasts_s = _DEAF_LEASES * LEASE_S
        refusals = ProviderFault(
            kind="status", status=429, retry_after_s=round(lasts_s - 1), left=4, daemon=daemon.name
        )
        self.world.gate.faults.append(refusals)
        refused = await _felt(lambda: refusals.hits)
        give_up = time.time() + _ANNOUNCED_S
        while self.work.repeated.get(daemon.name, 0.0) < give_up - _ANNOUNCED_S and time.time() < give_up:
            await asyncio.sleep(0.02)
        daemon.wires.become("half_open")
        await asyncio.sleep(lasts_s)
        held = await _felt(lambda: daemon.wires.hits)
        daemon.wires.become("pass")
        self.world.gate.faults.remove(refusals)
        return f"{refused} calls, {held} hits" if refused and held else ""

    async def _jump(self, daemon: Daemon, fault: Planned) -> str:
        """Put its clock an hour forward or back; the times in its own log show that it has taken it."""
        before = len(daemon.said_last("err"))
        hours = random.Random(fault.after_s).choice((1, -1))
        daemon.put_clock(3600 * hours)
        await asyncio.sleep(fault.lasts_s)

        def jumped() -> int:
            times = [_time_of(line) for line in daemon.said_last("err")[before:].splitlines()]
            return sum(abs(at - time.time() - 3600 * hours) < 600 for at in times)

        lines = await _felt(jumped)
        daemon.put_clock(0)
        return f"{lines} lines of its log" if lines else ""

    async def _fill(self, daemon: Daemon, lasts_s: float) -> str:
        path = daemon.state / "filler"
        free = await asyncio.to_thread(_filled, path)
        await asyncio.sleep(lasts_s)
        path.unlink()
        return f"{free} blocks were free" if free < _SPENT_BLOCKS else ""

    async def _on_nats(self, fault: Planned) -> str:
        servers = self.world.servers
        server = servers[fault.target % len(servers)]
        if fault.kind == "leader_kill":
            leader = await self._leader()
            server = next(one for one in servers if one.name == leader)
        pid = server.pid
        server.signal(signal.SIGKILL)
        await server.gone()
        await asyncio.sleep(min(fault.lasts_s, 6.0) if len(servers) > 1 else min(fault.lasts_s, 2.0))
        server.start()
        give_up = time.time() + 60
        while not await asyncio.to_thread(server.healthy):
            if time.time() > give_up:
                return ""
            await asyncio.sleep(0.1)
        if fault.kind == "leader_kill" and await self._leader() == "":
            return ""
        return f"{server.name}: pid {pid} became {server.pid}"

    async def _leader(self) -> str:
        for _ in range(100):
            with suppress(Exception):
                reply = await self.world.client.request("$JS.fork.API.STREAM.INFO.FORK", b"", timeout=2)
                if leader := json.loads(reply.data).get("cluster", {}).get("leader", ""):
                    return str(leader)
            await asyncio.sleep(0.2)
        return ""

    async def _on_provider(self, fault: Planned) -> str:
        provider, gate = self.world.provider, self.world.gate
        if fault.kind == "provider_restart":
            pid = provider.pid
            provider.signal(signal.SIGKILL)
            await provider.gone()
            await asyncio.sleep(min(fault.lasts_s, 2.0))
            provider.start()
            give_up = time.time() + 60
            while '"ready"' not in provider.said_last() and time.time() < give_up:
                await asyncio.sleep(0.05)
            return f"pid {pid} became {provider.pid}"
        kinds = {
            "p429": ProviderFault(kind="status", status=429, retry_after_s=1.0, left=12),
            "p529": ProviderFault(kind="status", status=529, left=12),
            "p500": ProviderFault(kind="status", status=500, left=10),
            "pcut": ProviderFault(kind="cut", left=10),
            "phang": ProviderFault(kind="hang", left=6),
            "pslow": ProviderFault(kind="slow", left=20),
        }
        injected = kinds[fault.kind]
        gate.faults.append(injected)
        await asyncio.sleep(min(fault.lasts_s, 6.0))
        hits = await _felt(lambda: injected.hits)
        injected.over.set()
        gate.faults.remove(injected)
        return f"{hits} calls" if hits else ""

    async def _kill_parent(self) -> str:
        def waiting() -> list[subprocess.Popen[bytes]]:
            return [process for process, _ in self.work.parents if process.poll() is None]

        if not await _felt(lambda: len(waiting())):
            return "-"  # nothing to kill, so it did not happen
        victim = waiting()[0]
        victim.kill()
        code = await asyncio.to_thread(victim.wait)
        return f"pid {victim.pid} ended with {code}" if code == -signal.SIGKILL else "-"


async def _felt(hits: Callable[[], int]) -> int:
    """Wait until something has felt a fault, and return how often it was felt."""
    give_up = time.time() + _FELT_S
    while not hits() and time.time() < give_up:
        await asyncio.sleep(0.1)
    return hits()


def _filled(path: Path) -> int:
    """Write a file until the disk is full, and return the blocks that are still free."""
    with suppress(OSError), open(path, "wb", buffering=0) as filler:
        while True:
            filler.write(bytes(1 << 20))
    return os.statvfs(path.parent).f_bavail


def _time_of(line: str) -> float:
    try:
        return datetime.strptime(line[:19], "%Y-%m-%d %H:%M:%S").timestamp()
    except ValueError:
        return 0.0
