"""``nexofork wake``: continue a run that has ended; the same child goes on in a new run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from nexofork.cli.exit_codes import NOT_COMPLETED, OK
from nexofork.cli.fork_order import budget_options, compaction_option, read_budget
from nexofork.cli.options import json_option, run_name, seconds, target_options
from nexofork.cli.output import brief, print_json, print_results
from nexofork.cli.progress import EventLines, ResultLines, people_sink
from nexofork.cli.run_ids import resolve_run, run_argument
from nexofork.cli.session import finish, open_target
from nexofork.cli.watching import INTERRUPTED_NOTE, Watch
from nexofork.client.fleet import FleetSettings, NatsForkSubagent
from nexofork.errors import ForkRefused
from nexofork.wire.messages import new_run_id

if TYPE_CHECKING:
    from nexofork.cli.options import Target

__all__ = ["wake"]


@click.command()
@run_argument()
@click.option("-d", "--directive", "follow_up", metavar="TEXT", required=True, help="What the child is told now.")
@click.option("--run-id", "new_id", type=run_name, metavar="ID", help="The new run's id.")
@click.option("--group", help="Another group than the run's own.")
@click.option("--timeout", type=seconds, metavar="SECONDS", help="End the child after so many seconds.")
@click.option("--max-turns", type=click.IntRange(min=1), help="End the child after; the run's own unless given.")
@click.option("--detach", is_flag=True, help="Print the new run's id and leave; `nexofork wait` gets the result.")
@click.option("--events", is_flag=True, help="Print everything as it happens, one JSON object per line.")
@json_option
@budget_options
@compaction_option
@target_options
def wake(run_id: str, *, follow_up: str, new_id: str | None, target: Target, **options: Any) -> None:
    """Continue a run that has ended: the same child goes on, and reads what it knew from the cache.

    Label, filters, tools and limits are the run's own, unless they are given. Exits like `fork`: 0 if it completed, 1
    if it did not, 2 if there is nothing to continue, 3 if NATS is not reachable, 130 after Ctrl-C, which aborts it.
    """
    finish(lambda: _wake(run_id, follow_up, new_id or new_run_id(), target=target, **options))


async def _wake(
    given: str,
    follow_up: str,
    new_id: str,
    *,
    target: Target,
    group: str | None,
    detach: bool,
    events: bool,
    as_json: bool,
    **limits: Any,
) -> int:
    if detach and events:
        raise ForkRefused("--events would have nobody to print them after --detach; use `nexofork attach` for that.")
    changes = _changes(limits)
    async with open_target(target) as bus, NatsForkSubagent(bus, FleetSettings(pool=target.pool)) as forks:
        run_id = await resolve_run(bus, given, pool=target.pool)
        handle = await forks.wake(run_id, follow_up, new_run_id=new_id, group=group, **changes)
        if detach:
            handle.detach()
            if as_json:
                print_json({"run_id": handle.run_id, "continues": run_id, "directive": follow_up})
            else:
                click.echo(f"{handle.run_id}  {brief(follow_up, 60)}")
            return OK
        sink = EventLines() if events else ResultLines() if as_json else people_sink()
        watch = Watch(sink, bus, pool=target.pool)
        try:
            async with watch:
                watch.add(handle)
        except asyncio.CancelledError:
            click.echo("Aborting the run.", err=True)
            await watch.abort(INTERRUPTED_NOTE)
            raise
    if not (as_json or events):
        print_results(watch.results)
    return OK if all(result.ok for result in watch.results) else NOT_COMPLETED


def _changes(limits: dict[str, Any]) -> dict[str, Any]:
    """Return what shall be other than it was."""
    budgets = {kind: read_budget(kind, limits) for kind in ("budget", "group_budget")}
    changes = {key: value for key, value in {**limits, **budgets}.items() if value is not None}
    if changes.pop("compaction"):
        return changes  # as it was
    return {**changes, "compaction": False}
