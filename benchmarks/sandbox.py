"""What the sandbox costs a command, next to the same command run bare by the same code.

Rounds alternate between the two. The bar is on the difference of the quickest ones: a busy machine makes every process
slower, and a command in the sandbox is one process more. Where bubblewrap does not work nothing is measured, and
that is said.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nexofork.errors import SandboxUnavailable
from nexofork.sandbox.sandbox import SandboxSettings, open_sandbox
from nexofork.tools.place import Place
from nexofork.tools.process import Output, run_command

if TYPE_CHECKING:
    from nexofork.sandbox.run_sandbox import Enclosure

__all__ = ["main"]

ROUNDS = 100
BAR_S = 0.010


def main() -> int:
    """Measure and judge; returns how many bars were missed."""
    try:
        times = asyncio.run(_measured_s())
    except SandboxUnavailable as exc:
        print(f"Not measured: {exc.problem}.")
        return 0
    for name, found in zip(("bare", "in the sandbox"), times, strict=True):
        print(f"{name:<16} {min(found) * 1000:7.2f} ms at best, {statistics.median(found) * 1000:7.2f} ms median")
    more = min(times[1]) - min(times[0])
    kept = more <= BAR_S
    print(f"Bar: the sandbox costs at most {BAR_S * 1000:.0f} ms: {more * 1000:.2f} ms, {'kept' if kept else 'MISSED'}")
    return 0 if kept else 1


async def _measured_s() -> tuple[list[float], list[float]]:
    """Return how long each bare command and each one in the sandbox took."""
    times: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as folder:
        settings = SandboxSettings(kind="bwrap", state_dir=Path(folder))
        async with open_sandbox(settings) as sandbox, sandbox.open(Place(), name="bench") as place:
            assert place.sandbox is not None
            await _command_s(place, place.sandbox)  # the first one also counts the run's files
            for _ in range(ROUNDS):
                times[0].append(await _command_s(place, None))
                times[1].append(await _command_s(place, place.sandbox))
    return times


async def _command_s(place: Place, sandbox: Enclosure | None) -> float:
    """Run a command that does nothing; the seconds it took."""
    began = time.perf_counter()
    ended = await run_command(("/bin/true",), output=Output(1000), cwd=place.cwd, limits=place.limits, sandbox=sandbox)
    assert ended.code == 0
    return time.perf_counter() - began
