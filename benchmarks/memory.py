"""What a daemon holds: idle, and per running fork of one 450 KB snapshot.

The bars: idle within 40 MB of an interpreter that only imports the daemon's dependencies, and under 300 KB for each
running fork. Two hundred forks are held open by the provider while the daemon is measured.
"""

from __future__ import annotations

import subprocess
import sys
import time

import uvloop

from benchmarks.conversation import as_bytes
from benchmarks.fanout import REPLY, daemons, memory_mb
from nexofork.bus.embedded import EmbeddedServer
from nexofork.client.fleet import FleetSettings, connect
from nexofork.core.reply import Reply
from nexofork.core.snapshot import CacheSafeParams
from nexofork.run.params import ForkParams
from nexofork.simulator import Simulator

__all__ = ["main"]

IDLE_BAR_MB = 40.0
FORK_BAR_KB = 300.0
FORKS = 200
_IMPORTS = "import aiohttp, anthropic, click, httpx2, nats, opentelemetry.sdk.trace, pydantic, uvloop"


def imports_mb() -> float:
    """Return what an interpreter holds that has imported the dependencies and does nothing."""
    code = f"{_IMPORTS}\nprint('ready', flush=True)\ninput()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        held = memory_mb(process.pid)
        process.kill()
    return held


async def measure() -> int:
    """Hold two hundred forks open and look at the daemon."""
    snapshot = CacheSafeParams.from_parent_request(as_bytes(), reply=Reply.from_response(REPLY), sent_at=time.time())
    params = ForkParams(cache_safe=snapshot, prompt_messages="")
    async with Simulator() as provider, EmbeddedServer() as nats:
        provider.script({"turns": [{"text": "done", "hold": {"gate": "end", "after_events": 3}}]})
        with daemons(nats.url, provider.url, count=1, slots=FORKS) as (pid,):
            async with connect(nats.url, settings=FleetSettings(window=FORKS)) as forks:
                idle = memory_mb(pid)
                first = await forks.fork_each(params, ["begin"])
                await provider.begun(1)
                one = memory_mb(pid)
                handles = await forks.fork_each(params, [f"do part {number}" for number in range(FORKS - 1)])
                await provider.begun(FORKS)
                all_ = memory_mb(pid)
                provider.release("end")
                for handle in (*first, *handles):
                    if not (await handle.result()).ok:
                        raise AssertionError("a fork did not complete")
    return _report(imports_mb(), idle, one, all_)


def _report(imports: float, idle: float, one: float, all_: float) -> int:
    per_fork_kb = (all_ - one) * 1000 / (FORKS - 1)
    kept = idle - imports <= IDLE_BAR_MB and per_fork_kb < FORK_BAR_KB
    print(f"resident memory of one daemon, snapshot of {len(as_bytes()) / 1000:.0f} KB")
    print(f"  interpreter with the dependencies  {imports:8.1f} MB")
    print(f"  idle daemon                        {idle:8.1f} MB   {idle - imports:+.1f} MB")
    print(f"  one fork running                   {one:8.1f} MB")
    print(f"  {FORKS} forks running                  {all_:8.1f} MB   {per_fork_kb:.0f} KB for each further one")
    print(
        f"Bars: {IDLE_BAR_MB:.0f} MB above the imports, {FORK_BAR_KB:.0f} KB per fork: {'kept' if kept else 'MISSED'}"
    )
    return 0 if kept else 1


def main() -> int:
    """Measure; return 1 when a bar is missed."""
    return uvloop.run(measure())


if __name__ == "__main__":
    raise SystemExit(main())
