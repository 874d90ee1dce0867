"""``nexofork ps``: the runs and daemons of a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nexofork.bus.presence import PresenceBoard
from nexofork.cli.exit_codes import OK
from nexofork.cli.options import json_option, target_options
from nexofork.cli.output import print_json
from nexofork.cli.patience import patience
from nexofork.cli.ps_lines import daemon_lines, daemon_object, run_lines
from nexofork.cli.ps_watch import Watched, watch_pool
from nexofork.cli.session import finish, open_target
from nexofork.client.run_listing import list_runs

if TYPE_CHECKING:
    from nexofork.cli.options import Target

__all__ = ["ps"]

_SHOWN = 50


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also runs that keep no transcript, and all of a long list.")
@click.option("--parent", metavar="ID", help="Only runs of this parent (FleetSettings.parent_id).")
@click.option("--group", help="Only runs of this group.")
@click.option("-w", "--watch", is_flag=True, help="Go on showing what changes, until q or Ctrl-C.")
@json_option
@target_options
def ps(*, watch: bool, as_json: bool, target: Target, everything: bool, parent: str | None, group: str | None) -> None:
    """Show the runs and daemons of a pool, the newest run first.

    With --watch a terminal shows hosts, slots, runs, cache hits and spending as they change, whoever runs first; a
    pipe gets a line for each change, with --json an object: everything there is as `state`, then `run`, `daemon` and
    `daemon_gone`. Leaving it is exit code 0.
    """
    chosen = Watched(pool=target.pool, everything=everything, parent=parent, group=group)
    if watch:
        finish(lambda: watch_pool(chosen, as_json=as_json, target=target))
    finish(lambda: _ps(chosen, as_json=as_json, target=target))


async def _ps(chosen: Watched, *, as_json: bool, target: Target) -> int:
    async with open_target(target) as bus:
        with patience("Listing the runs"):
            rows = await list_runs(bus, chosen.pool, parent=chosen.parent, group=chosen.group)
        daemons = await PresenceBoard(bus).daemons(chosen.pool)
    rows = [row for row in rows if chosen.shows(row)]
    if as_json:
        print_json({"runs": [row.to_json() for row in rows], "daemons": [daemon_object(one) for one in daemons]})
        return OK
    shown = rows if chosen.everything else rows[:_SHOWN]
    for line in (*daemon_lines(daemons), "", *run_lines(shown)):
        click.echo(line)
    if len(shown) < len(rows):
        click.echo(f"and {len(rows) - len(shown)} older ones; --all shows them")
    return OK
