"""A daemon shows Prometheus what it does, under the names that the chart's alerts and dashboard ask for."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from nexofork import PermissionAnswer, Permissions
from nexofork.bus.ledger import read_ledger
from nexofork.economics.ledger import distinct, price_calls, total
from tests.support.conversation import MODEL, call, says
from tests.support.fleet import asked
from tests.support.scraping import scrape
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nexofork.client.fleet import NatsForkSubagent
    from tests.support.fleet import Fleet, Process

FILES = Path(__file__).parents[3] / "charts" / "nexofork" / "files"
CALLS = "gen_ai_client_operation_duration_seconds_count"
DONE = "Scope: all\nResult: done"


def asked_for() -> set[str]:
    """Every metric that the chart's alerts and dashboard name."""
    bare = (re.sub(r"by \([^)]*\)", "", query) for query in _queries())
    return {name for query in bare for name in re.findall(r"\b(?:nexofork|gen_ai)_\w+", query)}


def _queries() -> Iterator[str]:
    rules = yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]
    yield from (rule["expr"] for group in rules for rule in group["rules"])
    for panel in json.loads((FILES / "dashboard.json").read_text())["panels"]:
        yield from (target["expr"] for target in panel["targets"])


async def port_of(daemon: Process) -> int:
    """Where a daemon answers."""
    port: int = (await daemon.until_said("ready"))["health"]
    return port


async def refused(fleet: Fleet, forks: NatsForkSubagent) -> None:
    """A run that asks for a permission, and is denied it."""

    async def deny(_: object) -> PermissionAnswer:
        return PermissionAnswer(allow=False)

    turns = ({"tools": [call(command="touch x")]}, DONE)
    bubbling = Permissions(mode="bubble")
    params = await fleet.params(says("fig", *turns), permissions=bubbling, on_permission=deny)
    await (await forks.fork(params)).result()


async def lived_through(fleet: Fleet) -> int:
    """The health port of a daemon that has completed runs, asked for something, taken a run over, and aborted that."""
    doomed = await fleet.daemon("doomed")
    async with fleet.connect() as forks:
        turns = ({"tools": [call(command="true")]}, {"text": DONE, "hold": "never"})
        handle = await forks.fork(await fleet.params(says("apple", *turns)))
        await eventually(lambda: asked(fleet.sim, "apple") == [1, 2])
        await doomed.kill()
        heir = await fleet.daemon("heir", health_port=0)
        other = await forks.fork(await fleet.params(says("pear", {"tools": [call(command="true")]}, DONE)))
        await other.result()
        await refused(fleet, forks)
        await eventually(lambda: asked(fleet.sim, "apple") == [1, 2, 2])
        await handle.abort("enough")
        await handle.result()
    port = await port_of(heir)
    await until_idle(port)
    return port


async def until_idle(port: int) -> None:
    """Return when no slot is used: the last things are done after a run's final report."""
    async with asyncio.timeout(PATIENCE_S):
        while (await scrape(port)).sum("nexofork_slots_used"):
            pass


async def test_what_is_shown_is_what_happened(fleet: Fleet) -> None:
    """Runs, slots and redeliveries are counted; tokens and dollars are the ledger's; nothing is labelled by run."""
    found = await scrape(await lived_through(fleet))

    assert found.sum("nexofork_runs_total", status="completed", pool=fleet.pool) == 2
    assert found.sum("nexofork_runs_total", status="aborted") == 1
    assert found.sum("nexofork_redeliveries_total") == 1
    assert (found.sum("nexofork_slots"), found.sum("nexofork_slots_used")) == (16, 0)
    assert found.sum("nexofork_permission_asks_total", decision="denied") == 1
    assert found.sum("nexofork_queue_wait_seconds_count") == 2
    assert found.sum("nexofork_abort_latency_seconds_count") == 1
    assert 0 < found.sum("nexofork_abort_latency_seconds_sum") < 20
    assert found.sum("gen_ai_execute_tool_duration_seconds_count", gen_ai_tool_name="Bash") == 1
    failed = [has["error_type"] for name, has, _ in found.samples if name == CALLS and "error_type" in has]
    assert failed == ["cancelled"]  # the abort's: nothing went wrong with a call
    booked = [one for one in distinct(await read_ledger(fleet.bus)) if one.pool == fleet.pool and one.host == "heir"]
    usage = total(price_calls(booked)).usage
    shown = {kind: found.sum("nexofork_tokens_total", kind=kind, model=MODEL) for kind in ("fresh", "cache_read")}
    assert shown == {"fresh": usage.input_tokens, "cache_read": usage.cache_read_tokens}
    assert found.sum("nexofork_tokens_total", kind="output") == usage.output_tokens
    assert round(found.sum("nexofork_cost_usd_total"), 9) == round(total(price_calls(booked)).money.billed, 9)
    values = {value for _, labels, _ in found.samples for value in labels.values()}
    assert not {one.run_id for one in booked} & values


async def test_every_metric_that_the_chart_asks_for_exists(fleet: Fleet) -> None:
    """A renamed metric would leave an empty panel and an alert that never fires."""
    found = await scrape(await lived_through(fleet))

    missing = asked_for() - found.names
    assert len(asked_for()) > 10
    assert missing == set()


async def test_counters_are_there_before_anything_has_happened(fleet: Fleet) -> None:
    """Else Prometheus would not see the first failure as an increase."""
    found = await scrape(await port_of(await fleet.daemon(health_port=0, slots=7)))

    zeros = {labels["status"] for name, labels, value in found.samples if name == "nexofork_runs_total" and not value}
    assert {"completed", "failed", "aborted", "timed_out", "max_turns", "over_budget", "refused"} == zeros
    assert found.kinds["nexofork_slots"] == "gauge"
    assert found.sum("nexofork_slots") == 7
    assert [value for name, _, value in found.samples if name == "nexofork_slots_used"] == [0]


async def test_daemons_on_one_host_are_told_apart(fleet: Fleet) -> None:
    """Every sample has the daemon's own name, which the ledger and `cost --by host` use, beside its host's."""
    for name in ("host-a", "host-b"):
        found = await scrape(await port_of(await fleet.daemon(name, health_port=0)))

        places = {(labels["daemon"], labels["host"], labels["pool"]) for _, labels, _ in found.samples}
        assert places == {(name, socket.gethostname(), fleet.pool)}
