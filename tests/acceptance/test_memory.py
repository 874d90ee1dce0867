"""Two hundred forks hold one copy of their parent, not two hundred.

The simulator runs in a process of its own, because what it keeps of each request would be counted with the forks.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import tracemalloc
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx2

from nexofork import DefaultForkSubagent, ForkStatus
from tests.support.conversation import says
from tests.support.parents import Parent, fork, open_llm
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FORKS = 200
SNAPSHOT_BYTES = 450_000
PER_FORK_BYTES = 100_000
"""Far above what a fork needs, a connection and its buffers included, and far below the snapshot."""
SERVE = """
import asyncio, sys
from nexofork.simulator import Simulator, SimulatorConfig

async def serve():
    async with Simulator(SimulatorConfig(kept_body_bytes=0)) as simulator:
        print(simulator.url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(serve())
"""


@asynccontextmanager
async def simulator_process() -> AsyncIterator[str]:
    """Run a simulator elsewhere; it ends when its standard input does."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVE, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.stdin.close()
        await process.wait()


async def test_200_running_forks_hold_one_copy_of_a_450_kb_snapshot() -> None:
    """With every request under way, the memory added per fork is a fraction of the snapshot."""
    async with (
        simulator_process() as url,
        Parent(url) as parent,
        open_llm(url) as llm,
        httpx2.AsyncClient(timeout=PATIENCE_S) as http,
    ):
        snapshot = await parent.ask(tokens=SNAPSHOT_BYTES // 4)
        assert len(snapshot.body) >= SNAPSHOT_BYTES
        async with DefaultForkSubagent() as forks:
            # One fork first, so that the prefix is warm and what is made once is not counted with the others.
            await (await forks.fork(fork(snapshot, llm, says("Warm.", {"text": "Done."})))).result()
            gc.collect()
            tracemalloc.start()
            try:
                hanging = [says(f"Part {number}.", {"fault": "hang"}) for number in range(FORKS)]
                handles = await forks.fork_each(fork(snapshot, llm), hanging)
                await _received(http, url, FORKS + 2)
                gc.collect()
                added, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert {handle.status for handle in handles} == {ForkStatus.RUNNING}

    assert added < FORKS * PER_FORK_BYTES
    assert FORKS * PER_FORK_BYTES < FORKS * SNAPSHOT_BYTES / 4


async def _received(http: httpx2.AsyncClient, url: str, requests: int) -> None:
    """Return when another process's simulator has all requests; it announces nothing, so it is asked."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            health = json.loads((await http.get(f"{url}/_sim/health")).content)
            if health["requests"] >= requests:
                return
            await asyncio.sleep(0.05)
