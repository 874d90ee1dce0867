"""A child on another host outgrows its model, and its daemon is lost: the next one sends the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkStatus
from nexofork.run.compaction import COMPACTED_TAG
from nexofork.simulator import SimulatorConfig
from tests.support.conversation import MARK, call, text
from tests.support.fleet import open_fleet
from tests.support.parents import body_of
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nexofork.bus.embedded import EmbeddedServer
    from tests.conftest import StartSimulator
    from tests.support.fleet import Fleet, Nursery

DONE = "Scope: all\nResult: done"
READ = {"text": "I read.", "tools": [call(command="yes 'line of the file' | head -n 220")]}


def rules(*after: dict[str, Any] | str) -> list[dict[str, Any]]:
    """The child reads and reads, summarises when it is asked to, and goes on as told."""
    return [
        {"match": "<compaction>", "turns": ["SO-FAR: files read."]},
        {"match": "SO-FAR", "turns": list(after)},
        {"match": "Dig.", "turns": [READ] * 9},
    ]


@pytest.fixture
async def small(
    nats_server: EmbeddedServer, start_simulator: StartSimulator, nursery: Nursery, tmp_path: Path
) -> AsyncIterator[Fleet]:
    """A fleet whose models take no more than 9,000 tokens, and an agent without a script of its own."""
    sim = await start_simulator(SimulatorConfig(context_tokens=9_000))
    async with open_fleet((nats_server.url,), sim=sim, nursery=nursery, folder=tmp_path) as opened:
        said = [{"role": "user", "content": [text("Go on.", tokens=5_000, mark=MARK)]}]
        opened.captured = await opened.agent.ask(messages=said)
        yield opened


def answered(fleet: Fleet) -> list[int]:
    """Requests that were answered, in order."""
    return [record.index for record in fleet.sim.log if record.status == 200]


def shortened(fleet: Fleet) -> list[bytes]:
    """Requests that arrived with a summary in place of turns."""
    bodies = [fleet.sim.body(record.index) or b"" for record in fleet.sim.log]
    return [body for body in bodies if COMPACTED_TAG.encode() in body]


@pytest.mark.parametrize("moment", ["in the call behind it", "one turn later"])
async def test_a_take_over_behind_a_compaction_sends_the_same_bytes(small: Fleet, moment: str) -> None:
    """Killed after the summary is on the log, nothing of it is paid or asked for again."""
    first = await small.daemon("first")
    held = {"text": DONE, "hold": "end"}
    later = moment == "one turn later"
    small.sim.script(*rules(*([READ, held] if later else [held])))
    async with small.connect() as forks:
        handle = await forks.fork(await small.params("Dig."))
        await eventually(lambda: len(shortened(small)) == 1 + later)

        await first.kill()
        await small.daemon("second")
        await eventually(lambda: len(shortened(small)) == 2 + later)
        small.sim.release("end")
        result = await handle.result()

    assert (result.status, result.attempts, result.daemon) == (ForkStatus.COMPLETED, 2, "second")
    lost, again = shortened(small)[-2:]
    assert lost == again
    summaries = [one for one in result.calls if one.summary]
    assert len(summaries) == 1, "the summary is billed once, also by whoever did not make it"
    assert result.turns == 5 + later
    assert sum("<compaction>" in str(small.sim.body(index)) for index in answered(small)) == 1


async def test_a_woken_run_goes_on_behind_its_compaction(small: Fleet) -> None:
    """What was taken away does not come back: the summary is in the woken child's conversation, the turns are not."""
    await small.daemon()
    small.sim.script(*rules(READ, DONE))
    async with small.connect() as forks:
        handle = await forks.fork(await small.params("Dig."))
        assert (await handle.result()).ok
        last = small.sim.log[-1]

        result = await (await forks.wake(handle.run_id, "And now?")).result()

    assert result.ok
    woken = small.sim.log[-1]
    assert woken.read >= 0.99 * (last.read + last.write_5m + last.fresh)
    messages = body_of(small.sim, woken.index)["messages"]
    assert [message["role"] for message in messages][-5:] == ["user", "assistant", "user", "assistant", "user"]
    assert COMPACTED_TAG in str(messages[-5])


async def test_compaction_is_refused_where_the_request_says_so(small: Fleet) -> None:
    """The setting travels: the run ends by name, without a summary."""
    await small.daemon()
    small.sim.script(*rules(DONE))
    async with small.connect() as forks:
        result = await (await forks.fork(await small.params("Dig.", compaction=False))).result()

    assert (result.status, result.end) == (ForkStatus.FAILED, "context_overflow")
    assert not any("<compaction>" in str(small.sim.body(record.index)) for record in small.sim.log)
