"""``nexofork ps``: the runs and daemons of a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nexofork.bus.jetstream import retry
from nexofork.bus.presence import PresenceBoard
from nexofork.cli.exit_codes import NOT_COMPLETED, OK
from nexofork.cli.options import json_option, target_options
from nexofork.cli.output import print_json
from nexofork.cli.patience import patience
from nexofork.cli.ps_lines import daemon_lines, daemon_object, run_lines
from nexofork.cli.ps_watch import Watched, watch_pool
from nexofork.cli.session import finish, open_target
from nexofork.client.runs import list_runs

if TYPE_CHECKING:
    from nexofork.cli.options import Target
    from nexofork.client.runs import RunRow
    from nexofork.wire.messages import Presence

__all__ = ["ps"]

_SHOWN = 50


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also runs that keep no transcript, and all of a long list.")
@click.option("--parent", metavar="ID", help="Only runs of this parent (FleetSettings.parent_id).")
@click.option("--group", help="Only runs of this group.")
@click.option("-w", "--watch", is_flag=True, help="Go on showing what changes, until q or Ctrl-C.")
@click.option("--require-daemon", "required", is_flag=True, help="Exit with 1 where no daemon takes work; for checks.")
@json_option
@target_options
def ps(
    *,
    watch: bool,
    required: bool,
    as_json: bool,
    target: Target,
    everything: bool,
    parent: str | None,
    group: str | None,
) -> None:
    """Show the runs and daemons of a pool, the newest run first.

    With --watch a terminal shows hosts, slots, runs, cache hits and spending as they change, whoever runs first; a
    pipe gets a line for each change, with --json an object: everything there is as `state`, then `run`, `daemon` and
    `daemon_gone`. Leaving it is exit code 0.
    """
    if watch and required:
        raise click.UsageError("--require-daemon asks once and --watch goes on; give one of them.")
    chosen = Watched(pool=target.pool, everything=everything, parent=parent, group=group)
    if watch:
        finish(lambda: watch_pool(chosen, as_json=as_json, target=target))
    finish(lambda: _ps(chosen, required=required, as_json=as_json, target=target))


async def _ps(chosen: Watched, *, required: bool, as_json: bool, target: Target) -> int:
    async with open_target(target) as bus:
        with patience("Listing the runs"):
            rows = await retry(bus, lambda: list_runs(bus, chosen.pool, parent=chosen.parent, group=chosen.group))
        daemons = await retry(bus, lambda: PresenceBoard(bus).daemons(chosen.pool))
    _show([row for row in rows if chosen.shows(row)], daemons, chosen, as_json=as_json)
    if required and all(one.draining for one in daemons):
        click.echo(f"No daemon of pool {chosen.pool} takes work.", err=True)
        return NOT_COMPLETED
    return OK


def _show(rows: list[RunRow], daemons: list[Presence], chosen: Watched, *, as_json: bool) -> None:
    if as_json:
        print_json({"runs": [row.to_json() for row in rows], "daemons": [daemon_object(one) for one in daemons]})
        return
    shown = rows if chosen.everything else rows[:_SHOWN]
    for line in (*daemon_lines(daemons), "", *run_lines(shown)):
        click.echo(line)
    if len(shown) < len(rows):
        click.echo(f"and {len(rows) - len(shown)} older ones; --all shows them")
