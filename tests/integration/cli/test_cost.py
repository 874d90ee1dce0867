"""``nexofork cost`` on a real fleet."""

from __future__ import annotations

import csv
import io
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli.conftest import World, objects

if TYPE_CHECKING:
    from typing import Any

DIRECTIVES = ("Look left.", "Look right.", "Look up.")


@pytest.fixture
def group(world: World) -> str:
    """The name of a group whose forks are over."""
    name = f"g{uuid.uuid4().hex[:8]}"
    assert world.ask(*world.forking(*DIRECTIVES), "--group", name).returncode == 0
    return name


def cost(world: World, *arguments: str) -> dict[str, Any]:
    """What it says as JSON."""
    done = world.ask("cost", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    (said,) = objects(done.stdout)
    return said


@pytest.mark.parametrize("by", ["call", "run", "group", "parent", "day", "host", "model"])
def test_the_bill_is_the_servers_own(world: World, group: str, by: str) -> None:
    """Whatever it is summed by, the total is what the simulator charged, to the token and the cent."""
    said = cost(world, "--by", by, "--group", group)
    calls = cost(world, "--by", "call", "--group", group)["rows"]
    records = {record.message_id: record for record in world.sim.log}
    mine = [records[call["message_id"]] for call in calls]

    total = said["total"]
    assert (total["calls"], total["confirmed"], total["unconfirmed"], total["failed"]) == (3, 3, 0, 0)
    assert total["read"] == sum(record.read for record in mine)
    assert total["fresh"] == sum(record.fresh for record in mine)
    assert total["usd"] == pytest.approx(sum(record.price_usd for record in mine))
    assert total["unshared_usd"] > total["usd"] >= total["ideal_usd"] > 0
    assert sum(row["calls"] for row in said["rows"]) == 3
    assert len(said["rows"]) == (3 if by in ("call", "run") else 1)
    if by == "host":
        assert said["rows"][0]["key"] == "d1"


def test_people_get_a_table_and_bars_if_they_want(world: World, group: str) -> None:
    """The chart is for terminals, unless it is asked for."""
    table = world.ask("cost", "--group", group)
    assert table.returncode == 0
    assert "saved" in table.stdout
    assert "total" in table.stdout
    assert "█" not in table.stdout
    assert "█" in world.ask("cost", "--group", group, "--chart").stdout


def test_a_spreadsheet_gets_a_header_and_rows(world: World, group: str) -> None:
    """One line for each row, under the same names as in JSON."""
    done = world.ask("cost", "--by", "run", "--group", group, "--csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))

    said = cost(world, "--by", "run", "--group", group)["rows"]
    assert [row["run"] for row in rows] == [row["key"] for row in said]
    assert [float(row["usd"]) for row in rows] == [row["usd"] for row in said]


def test_one_run_and_a_time(world: World, group: str) -> None:
    """What lies outside is left out; nothing at all is said and is no error."""
    run_id = cost(world, "--by", "run", "--group", group)["rows"][0]["key"]

    assert cost(world, "--run", run_id, "--since", "1h")["total"]["calls"] == 1
    assert cost(world, "--run", run_id, "--until", "1h")["total"]["calls"] == 0
    empty = world.ask("cost", "--group", "nobody", "--chart")
    assert (empty.returncode, empty.stdout) == (0, "No calls in the ledger that match.\n")
    assert world.ask("cost", "--group", "nobody", "--csv").stdout.count("\n") == 1


def test_a_log_says_which_calls_were_made(world: World, group: str) -> None:
    """Each is announced before it is sent, the first with how the fan-out was started, alone or with the claim."""
    run_id = cost(world, "--by", "run", "--group", group)["rows"][0]["key"]

    entries = objects(world.ask("logs", run_id, "--json").stdout)
    (started,) = [entry.get("call", entry) for entry in entries if "call" in entry or entry["event"] == "call_started"]
    assert started["decision"]["plan"] in ("all_at_once", "leader_first", "prewarm")
    (line,) = [line for line in world.ask("logs", run_id).stdout.splitlines() if "turn 1 by " in line]
    assert "call_started" in line or "claimed" in line
    (result,) = objects(world.ask("wait", run_id, "--json").stdout)
    assert result["decision"] == started["decision"]
