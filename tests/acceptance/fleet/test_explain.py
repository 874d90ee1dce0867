"""``nexofork explain RUN_ID``: what a run's log tells about its first call, read by a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkOverrides, ForkParams
from nexofork.run.events import CacheBreakDetected
from tests.support.conversation import says, text

if TYPE_CHECKING:
    from nexofork import CacheSafeParams, ForkResult
    from tests.support.fleet import Fleet

NEXOFORK = Path(sys.executable).with_name("nexofork")
DONE = "Scope: all\nResult: done"
LIMIT_S = 20


async def explain(fleet: Fleet, *arguments: str | Path) -> tuple[int, str, str]:
    """Run the command and return its exit code and what it printed."""
    words = [str(word) for word in ("explain", *arguments, "--nats", fleet.url, "--pool", fleet.pool)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(str(NEXOFORK), *words, stdout=pipe, stderr=pipe)
    async with asyncio.timeout(LIMIT_S):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def run(fleet: Fleet, snapshot: CacheSafeParams, **more: Any) -> tuple[ForkResult, list[CacheBreakDetected]]:
    """Fork once and return the result with the warnings the parent saw."""
    async with fleet.connect() as forks:
        params = ForkParams(cache_safe=snapshot, prompt_messages=says("apple", DONE), **more)
        handle = await forks.fork(params)
        result = await handle.result()
        seen = [event async for event in handle.events() if isinstance(event, CacheBreakDetected)]
    return result, seen


async def test_a_run_that_shared_the_cache_says_so(fleet: Fleet) -> None:
    """Exit code 0, with what was read."""
    await fleet.daemon("d1")
    result, seen = await run(fleet, await fleet.snapshot())

    code, out, err = await explain(fleet, result.run_id)

    assert (code, seen) == (0, []), err
    assert "It shared its parent's cache." in out
    assert "begins with all of the request it was forked from" in out


@pytest.mark.breaks_prefix("the snapshot is not what the parent sent")
async def test_a_run_with_another_prompt_is_explained_from_its_log(fleet: Fleet, tmp_path: Path) -> None:
    """The parent sees the warning as it happens; with what it really sent, the place is found too."""
    await fleet.daemon("d1")
    recorded = await fleet.snapshot()
    rendered = replace(recorded, body=recorded.body.replace(b"of a long session", b"of session 41f0-77"))
    result, seen = await run(fleet, rendered)
    (tmp_path / "sent.json").write_bytes(recorded.body)

    code, out, err = await explain(fleet, result.run_id, "--json")
    by_file = await explain(fleet, result.run_id, "--parent", tmp_path / "sent.json")

    assert [event.check.cause for event in seen] == ["system_changed"]
    assert code == 1, err
    told = json.loads(out)
    assert (told["cause"], told["cache"]["diagnosis"]) == ("system_changed", "system_changed")
    assert "rewrites requests" in told["detail"]
    assert told["comparison"]["divergence"] is None
    assert told["daemon"] == "d1"
    assert by_file[0] == 1
    assert "system[0].text" in by_file[1]
    assert "of session 41f0-77" in by_file[1]


async def test_an_expired_parent_is_named_from_the_times_on_the_log(fleet: Fleet) -> None:
    """The request says when the parent was sent."""
    await fleet.daemon("d1")
    snapshot = await fleet.snapshot()
    assert snapshot.sent_at is not None
    fleet.sim.clock.advance(400)
    late, _ = await run(fleet, replace(snapshot, sent_at=snapshot.sent_at - 400))

    code, out, _ = await explain(fleet, late.run_id)

    assert code == 1
    assert "\nexpired\n" in out
    assert "400 s old" in out


@pytest.mark.breaks_prefix("the fork overrides the system prompt on purpose")
async def test_an_override_is_found_in_the_run_itself(fleet: Fleet) -> None:
    """The rebuilt request differs from the parent's where the override says."""
    await fleet.daemon("d1")
    overrides = ForkOverrides(request={"system": [text("You are another.")]})
    result, _ = await run(fleet, await fleet.snapshot(), overrides=overrides, allow_cache_break=True)

    code, out, err = await explain(fleet, result.run_id, "--json")

    assert code == 1, err
    told = json.loads(out)
    assert told["cause"] == "override"
    assert told["comparison"]["cause"] == "system_changed"
    assert told["comparison"]["divergence"]["path"].startswith("system[0]")


async def test_runs_that_cannot_be_explained_are_said_so(fleet: Fleet) -> None:
    """One that is queued, and one that there is not."""
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params("apple"))
        queued = await explain(fleet, handle.run_id)
        unknown = await explain(fleet, "nobody")
        await handle.abort("over")
        await handle.result()

    assert queued[0] == 0, queued[2]
    assert "has not been answered yet" in queued[1]
    assert (unknown[0], "There is no run 'nobody'" in unknown[2]) == (2, True)
