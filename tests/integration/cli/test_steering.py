"""The commands that steer runs: message, wake, and ps for one parent or group."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from nexofork.bus.connection import BusSettings, open_bus
from nexofork.bus.reading import last_of
from nexofork.wire.streams import inbox_stream
from nexofork.wire.subjects import inbox_filter
from tests.integration.cli.conftest import objects
from tests.support.conversation import call, says
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli.conftest import World


def test_a_message_reaches_a_running_child(world: World, tmp_path: Path) -> None:
    """It is in the run's next request; --wait returns when the child has it."""
    door = tmp_path / "door"
    waits = call(command=f"until [ -e {door} ]; do sleep 0.05; done")
    (run_id,) = world.detached(says("Wait for me.", {"tools": [waits]}, "Scope: s\nResult: heard"))
    world.until_logged(run_id, "tool_started")

    sent = world.ask("message", run_id, "mind the gap", "--json")
    door.touch()
    waited = world.ask("wait", run_id, "--json")

    assert (sent.returncode, objects(sent.stdout)[0]["outcome"]) == (0, "sent")
    assert waited.returncode == 0
    (told,) = [one for one in objects(world.ask("logs", run_id, "--json").stdout) if one["event"] == "delivered"]
    assert told["texts"] == ["mind the gap"]
    assert "mind the gap" in world.ask("logs", run_id).stdout


def test_a_message_that_is_waited_for_says_what_became_of_it(world: World, tmp_path: Path) -> None:
    """0 once the child reads it; 1 where the run ends without."""
    door = tmp_path / "door"
    waits = call(command=f"until [ -e {door} ]; do sleep 0.05; done")
    read, ends = (
        world.detached(says("Wait.", {"tools": [waits]}, "Scope: s\nResult: r"), max_turns=turns)[0]
        for turns in ("9", "1")
    )
    for run_id in (read, ends):
        world.until_logged(run_id, "tool_started")

    with (
        world.start("message", read, "hello", "--wait", "--json") as first,
        world.start("message", ends, "hello", "--wait") as second,
    ):
        for run_id in (read, ends):
            _until_posted(world, run_id)
        door.touch()
        codes = [first.wait(PATIENCE_S), second.wait(PATIENCE_S)]
        said = first.stdout.read() if first.stdout else ""

    assert codes == [0, 1]
    assert json.loads(said)["outcome"] == "delivered"
    (result,) = objects(world.ask("wait", ends, "--json").stdout)
    assert result["undelivered"] == ["hello"]


def test_a_run_that_is_over_takes_no_message_and_can_be_woken(world: World) -> None:
    """The error says to wake it; woken, the same child goes on and reads what it knew."""
    (run_id,) = world.detached(says("Look.", {"tools": [call(command="true")]}, "Scope: s\nResult: first"))
    world.ask("wait", run_id)

    late = world.ask("message", run_id, "too late")
    unknown = world.ask("message", "no-such-run", "hello")
    woken = world.ask("wake", run_id, "-d", says("More.", "Scope: s\nResult: second"), "--json")

    assert (late.returncode, unknown.returncode) == (2, 2)
    assert "wake" in late.stderr
    assert "no-such-run" in unknown.stderr
    assert woken.returncode == 0, woken.stderr
    (result,) = objects(woken.stdout)
    assert (result["status"], result["report"]["result"]) == ("completed", "second")
    assert result["usage"]["cache_read_input_tokens"] > 0.9 * result["expected_read"]
    again = world.ask("wake", result["run_id"], "-d", "Again.", "--detach", "--json", "--max-turns", "3")
    (started,) = objects(again.stdout)
    assert started["continues"] == result["run_id"]
    assert world.ask("wait", started["run_id"]).returncode == 0
    runs = {run["run_id"]: run for run in objects(world.ask("ps", "--json").stdout)[0]["runs"]}
    assert runs[started["run_id"]]["continues"] == result["run_id"]


def test_waking_what_cannot_be_woken_is_bad_input(world: World) -> None:
    """One line says why, for a run nobody knows and for one that goes on."""
    (run_id,) = world.detached(says("Sleep.", {"tools": [call(command="sleep 60")]}))

    codes = [world.ask("wake", name, "-d", "More.") for name in ("no-such-run", run_id)]
    world.ask("abort", run_id)

    assert [done.returncode for done in codes] == [2, 2]
    assert "no such run" in codes[0].stderr
    assert "not over" in codes[1].stderr


def test_ps_shows_the_runs_of_one_parent_or_group(world: World) -> None:
    """And no others."""
    (run_id,) = world.detached("Look around.", group="steered")
    world.ask("wait", run_id)
    (row,) = objects(world.ask("ps", "--json", "--group", "steered").stdout)[0]["runs"]

    mine = objects(world.ask("ps", "--json", "--parent", row["parent"]).stdout)[0]["runs"]
    nobodys = objects(world.ask("ps", "--json", "--parent", "nobody").stdout)[0]["runs"]

    assert row["run_id"] == run_id
    assert [run["run_id"] for run in mine] == [run_id]
    assert nobodys == []


def test_a_fork_can_be_told_not_to_compact(world: World) -> None:
    """The flag is on the run's request."""
    (run_id,) = world.detached("Look.")
    done = world.ask(*world.forking("Look."), "--no-compaction", "--detach", "--json")

    assert done.returncode == 0, done.stderr
    (other,) = objects(done.stdout)
    logged = [objects(world.ask("logs", one, "--json").stdout)[0] for one in (run_id, other["run_id"])]
    assert [one["compaction"] for one in logged] == [True, False]


def _until_posted(world: World, run_id: str) -> None:
    """Return when something lies in the run's inbox."""

    async def look() -> None:
        async with open_bus(BusSettings(urls=(world.nats,))) as bus, asyncio.timeout(PATIENCE_S):
            while await last_of(bus, inbox_stream(world.pool), inbox_filter(run_id, world.pool)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    asyncio.run(look())
