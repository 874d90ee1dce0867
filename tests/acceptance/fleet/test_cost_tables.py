"""What a fan-out over three daemons is billed, beside the least it could have been.

The least is judged from the provider's log alone (see `tests.support.ideal`). A few rows run with every test; the whole
table is run with `-m ops`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkParams
from nexofork.wire import messages as wire
from tests.support.fan_outs import Row, all_done, billed, directives, fan_out, parent_of
from tests.support.fleet import open_fleet
from tests.support.ideal import judge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from nexofork.bus.embedded import EmbeddedServer
    from nexofork.simulator import Simulator
    from tests.support.fan_outs import Heat, Outcome
    from tests.support.fleet import Fleet, Nursery

BAR = 1.02
BAR_ALONE = 1.27
BAR_TROUBLED = 1.05
RATE_529 = 0.02
DAEMONS = 3
OVERLOADED = {"status": 529}
LIMITED = {"status": 429, "retry_after": 3}
"""A leader that pauses so long lets another one lead."""
SHORT = [
    Row(children=3, warmth="file"),
    Row(children=3, warmth="warm"),
    Row(children=5, warmth="expired", ttl="1h"),
    Row(children=8, warmth="warm", tokens=150_000, reply="text"),
    Row(children=8, warmth="file", model="claude-opus-5-5", turns=2),
    Row(children=5, warmth="warm", form="command"),
]
HEATS: tuple[Heat, ...] = ("warm", "file")
TABLE = [
    Row(children=children, warmth=warmth, ttl=ttl, tokens=tokens)
    for children, warmth, ttl, tokens in itertools.product((3, 5, 8, 20, 100), HEATS, ("5m", "1h"), (20_000, 150_000))
]
BESIDES = [
    *(Row(children=n, warmth="warm", tokens=size, reply="text") for n in (3, 8, 20, 100) for size in (20_000, 150_000)),
    *(
        Row(children=n, warmth="warm", reply=reply, model="claude-opus-5-5")
        for n in (3, 20)
        for reply in ("calls", "text")
    ),
    Row(children=8, warmth="file", model="claude-opus-5-5", tokens=150_000),
    *(Row(children=8, warmth="expired", ttl=ttl, tokens=150_000) for ttl in ("5m", "1h")),
    Row(children=20, warmth="expired", form="command"),
    Row(children=20, warmth="warm", form="command", tokens=150_000),
    *(Row(children=n, warmth=warmth, turns=2, tokens=150_000) for n in (3, 8) for warmth in HEATS),
    Row(children=20, warmth="file", turns=3),
    *(Row(children=20, warmth=warmth, slots=2) for warmth in HEATS),
    *(Row(children=8, warmth="warm", marks=marks, tokens=150_000) for marks in ("automatic", "none")),
    Row(children=8, warmth="file", marks="none"),
]
LONG = pytest.mark.timeout(120)
LEASE_S = 3.0


@pytest.fixture
async def fleet(nats_server: EmbeddedServer, sim: Simulator, nursery: Nursery, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet whose lease outlasts a busy machine: a run that is taken from a living daemon pays its call twice."""
    async with open_fleet((nats_server.url,), sim=sim, nursery=nursery, folder=tmp_path, lease_s=LEASE_S) as opened:
        yield opened


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print a line of the table where whoever runs it sees it."""

    def say(line: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{line}")

    return say


async def bill(fleet: Fleet, row: Row) -> Outcome:
    """Run one row on three daemons."""
    await fleet.daemons(DAEMONS, slots=row.slots)
    snapshot = await parent_of(fleet, row)
    async with fleet.connect() as forks:
        return await fan_out(fleet, row, snapshot, forks)


@pytest.mark.parametrize("row", SHORT, ids=str)
async def test_a_fan_out_costs_next_to_the_least(fleet: Fleet, row: Row) -> None:
    """Over three daemons, warm or cold, the bill is within two per cent of the least."""
    outcome = await bill(fleet, row)

    assert outcome.verdict.ratio <= BAR, outcome.line(row)


@LONG
@pytest.mark.ops
@pytest.mark.parametrize("row", TABLE + BESIDES, ids=str)
async def test_the_table(fleet: Fleet, row: Row, tell: Callable[[str], None]) -> None:
    """Every size, warmth and TTL: within two per cent of the least."""
    outcome = await bill(fleet, row)
    tell(outcome.line(row))

    assert outcome.verdict.ratio <= BAR


@pytest.mark.ops
@pytest.mark.parametrize("ttl", ["5m", "1h"])
@pytest.mark.parametrize("tokens", [20_000, 150_000])
async def test_a_lone_cold_child(fleet: Fleet, ttl: str, tokens: int, tell: Callable[[str], None]) -> None:
    """It writes what nobody shares yet, which pays from its second turn on: a quarter more than fresh, at most."""
    row = Row(children=1, warmth="file", ttl=ttl, tokens=tokens)
    outcome = await bill(fleet, row)
    tell(outcome.line(row))

    assert outcome.verdict.ratio <= BAR_ALONE


async def bill_with_killed_leader(fleet: Fleet, row: Row) -> Outcome:
    """Kill the daemon of the first child to call, before its response begins."""
    await fleet.daemons(DAEMONS, slots=row.slots)
    snapshot = await parent_of(fleet, row)
    began, first = time.monotonic(), fleet.sim.request_count
    async with fleet.connect() as forks:
        said = directives(row, hold="first byte")
        handles = await forks.fork_each(ForkParams(cache_safe=snapshot, prompt_messages="x"), said)
        await fleet.sim.received(first + 1)
        body = fleet.sim.body(first) or b""
        leader = next(handle for number, handle in enumerate(handles) if f"part {number:03}.".encode() in body)
        claims = [report for report in await fleet.reports(leader.run_id) if isinstance(report, wire.Claimed)]

        await fleet.owner(claims[-1].daemon.name).kill()
        await fleet.sim.received(first + 2)
        fleet.sim.release("first byte")
        return await all_done(fleet, row, handles, first=first, began=began)


@pytest.mark.ops
async def test_a_killed_leader_is_followed_by_another(fleet: Fleet) -> None:
    """Killed before its first byte: another child writes, once, and the bill hardly shows it."""
    row = Row(children=8, warmth="file")
    outcome = await bill_with_killed_leader(fleet, row)

    assert outcome.verdict.ratio <= BAR_TROUBLED, outcome.line(row)


@LONG
@pytest.mark.ops
@pytest.mark.parametrize(
    "row",
    [
        Row(children=3, warmth="file"),
        Row(children=8, warmth="warm"),
        Row(children=8, warmth="expired", ttl="1h", tokens=150_000),
        Row(children=20, warmth="file", ttl="1h"),
        Row(children=20, warmth="file", tokens=150_000),
        Row(children=100, warmth="file"),
    ],
    ids=str,
)
async def test_the_table_with_a_killed_leader(fleet: Fleet, row: Row, tell: Callable[[str], None]) -> None:
    """One leader killed mid-warm-up: within five per cent of the least."""
    outcome = await bill_with_killed_leader(fleet, row)
    tell(outcome.line(row, "killed"))

    assert outcome.verdict.ratio <= BAR_TROUBLED


async def bill_with_faults(fleet: Fleet, row: Row, fault: dict[str, Any], *, seed: int) -> Outcome:
    """Answer the first call, and so many of the others that they are 2% of all, with an error."""
    await fleet.daemons(DAEMONS, slots=row.slots)
    snapshot = await parent_of(fleet, row)
    said, unlucky = directives(row), directives(row, fault={**fault, "times": 1})
    others = max(round(RATE_529 * row.children) - 1, 0)
    for number in random.Random(seed).sample(range(row.children), others):
        said[number] = unlucky[number]
    fleet.sim.script({"fault": fault, "times": 1})
    async with fleet.connect() as forks:
        return await fan_out(fleet, row, snapshot, forks, said)


async def test_an_overloaded_leader_writes_once(fleet: Fleet) -> None:
    """The first call is answered with a 529: it is tried again, and nobody writes beside it."""
    row = Row(children=8, warmth="file")
    outcome = await bill_with_faults(fleet, row, OVERLOADED, seed=0)

    assert outcome.verdict.ratio <= BAR_TROUBLED, outcome.line(row)


@LONG
@pytest.mark.ops
@pytest.mark.parametrize("fault", [OVERLOADED, LIMITED], ids=["529", "429"])
@pytest.mark.parametrize(
    ("row", "seed"),
    [
        (Row(children=20, warmth="file"), 0),
        (Row(children=20, warmth="warm", tokens=150_000), 0),
        *((Row(children=100, warmth="file"), seed) for seed in range(3)),
        (Row(children=100, warmth="warm", ttl="1h"), 3),
    ],
    ids=str,
)
async def test_the_table_with_faults(
    fleet: Fleet, row: Row, seed: int, fault: dict[str, Any], tell: Callable[[str], None]
) -> None:
    """2% of the calls are answered with an error, the leader's among them: within five per cent of the least."""
    outcome = await bill_with_faults(fleet, row, fault, seed=seed)
    tell(outcome.line(row, str(fault["status"])))

    assert outcome.verdict.ratio <= BAR_TROUBLED


async def test_a_daemon_that_joins_later_writes_nothing_again(fleet: Fleet) -> None:
    """A second fan-out of the same parent, on daemons that were not there for the first: all of it reads."""
    row = Row(children=4, warmth="file")
    early = await fleet.daemon(slots=row.slots)
    snapshot = await parent_of(fleet, row)
    params = ForkParams(cache_safe=snapshot, prompt_messages="x")
    async with fleet.connect() as forks:
        await fan_out(fleet, row, snapshot, forks)
        early.signal(signal.SIGTERM)
        await early.gone()
        await fleet.daemons(DAEMONS - 1, slots=row.slots)
        handles = await forks.fork_each(params, directives(row, after=row.children))
        outcome = await all_done(fleet, row, handles, first=0, began=time.monotonic())

    assert outcome.verdict.ratio <= BAR, outcome.line(row)
    assert outcome.verdict.writes == 1


async def test_the_command_line_forks_for_the_least(fleet: Fleet, tmp_path: Path) -> None:
    """``nexofork fork`` with the parent's files and the time it was sent finds the parent warm."""
    row = Row(children=3, warmth="warm", tokens=150_000, reply="text")
    await fleet.daemons(DAEMONS)
    snapshot = await parent_of(fleet, row)
    assert snapshot.reply is not None
    assert snapshot.sent_at is not None
    request, reply = tmp_path / "REQUEST.json", tmp_path / "REPLY.json"
    request.write_bytes(snapshot.body)
    reply.write_bytes(snapshot.reply.to_wire())
    sent_at = datetime.fromtimestamp(snapshot.sent_at, UTC).isoformat()
    words = ["fork", "--request", str(request), "--reply", str(reply), "--sent-at", sent_at, "--json"]
    words += [word for directive in directives(row) for word in ("-d", directive)]
    words += ["--nats", fleet.url, "--pool", fleet.pool]

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from nexofork.cli import main; main()", *words, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()

    assert process.returncode == 0
    results = [json.loads(line) for line in printed.splitlines()]
    assert [result["decision"]["plan"] for result in results] == ["all_at_once"] * row.children
    records = fleet.sim.log
    verdict = judge(billed(fleet.sim, records[1:]), ttl=row.ttl, before=billed(fleet.sim, records[:1]))
    assert verdict.ratio <= BAR
