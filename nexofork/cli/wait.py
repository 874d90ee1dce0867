"""``nexofork wait``: the results of runs that any process started."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from nexofork.cli.exit_codes import NOT_COMPLETED, OK
from nexofork.cli.options import json_option, seconds, target_options
from nexofork.cli.output import print_results
from nexofork.cli.progress import ResultLines, people_sink
from nexofork.cli.run_ids import resolve_runs, runs_argument
from nexofork.cli.session import finish, open_target
from nexofork.cli.watching import Watch
from nexofork.client.fleet import FleetSettings, NatsForkSubagent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.cli.options import Target

__all__ = ["wait"]


@click.command()
@runs_argument(required=True)
@click.option("--timeout", type=seconds, metavar="SECONDS", help="Stop waiting after so many seconds; the runs go on.")
@json_option
@target_options
def wait(run_ids: tuple[str, ...], *, timeout: float | None, as_json: bool, target: Target) -> None:
    """Wait for runs and print their results.

    Exits with 0 if all completed, 1 if some did not or are not over in time, 2 if there is no such run. Ctrl-C stops
    the waiting, not the runs.
    """
    finish(lambda: _wait(run_ids, timeout, as_json=as_json, target=target))


async def _wait(given: Sequence[str], timeout_s: float | None, *, as_json: bool, target: Target) -> int:
    settings = FleetSettings(pool=target.pool)
    async with open_target(target) as bus, NatsForkSubagent(bus, settings) as forks:
        run_ids = await resolve_runs(bus, given, pool=target.pool)
        # All are taken hold of first: a wrong id is said before the wait for the others.
        handles = [await forks.attach(run_id) for run_id in run_ids]
        watch = Watch(ResultLines() if as_json else people_sink(), bus, pool=target.pool)
        try:
            async with asyncio.timeout(timeout_s), watch:
                for handle in handles:
                    watch.add(handle)
        except TimeoutError:
            left = " ".join(handle.run_id for handle in watch.open)
            click.echo(f"Not over after {timeout_s:g} s: {left}", err=True)
    if watch.results and not as_json:
        print_results(watch.results)
    return OK if not watch.open and all(result.ok for result in watch.results) else NOT_COMPLETED
