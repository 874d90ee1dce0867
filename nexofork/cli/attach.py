"""``nexofork attach``: watch one run, from its beginning to its end, wherever it was started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nexofork.bus.blobs import BlobStore
from nexofork.bus.run_log import RunLog
from nexofork.cli.exit_codes import NOT_COMPLETED, OK
from nexofork.cli.log_lines import entry_object
from nexofork.cli.options import json_option, run_name, target_options
from nexofork.cli.output import plain, print_json
from nexofork.cli.progress import EventLines, PlainProgress
from nexofork.cli.session import finish, open_target
from nexofork.cli.watching import Watch
from nexofork.client.fleet import FleetSettings, NatsForkSubagent
from nexofork.engine.events import ForkEnded, TurnFinished
from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    from nexofork.bus.connection import Bus
    from nexofork.cli.options import Target
    from nexofork.engine.events import ForkEvent

__all__ = ["attach"]


class _Reading(PlainProgress):
    """Progress on stderr, and what the child says on stdout."""

    def event(self, run_id: str, event: ForkEvent) -> None:
        """Show an event."""
        super().event(run_id, event)
        if isinstance(event, TurnFinished) and event.text:
            click.echo(plain(event.text))
        elif isinstance(event, ForkEnded) and event.result.error:
            click.echo(plain(event.result.error), err=True)


@click.command()
@click.argument("run_id", type=run_name)
@json_option
@target_options
def attach(run_id: str, *, as_json: bool, target: Target) -> None:
    """Watch a run until it is over.

    Exits with 0 if it completed, 1 if it did not, 2 if there is no such run. Ctrl-C stops the watching, not the run.
    """
    finish(lambda: _attach(run_id, as_json=as_json, target=target))


async def _attach(run_id: str, *, as_json: bool, target: Target) -> int:
    async with open_target(target) as bus, NatsForkSubagent(bus, FleetSettings(pool=target.pool)) as forks:
        handle = await forks.attach(run_id)
        await _show_request(bus, run_id, target.pool, as_json=as_json)
        async with Watch(EventLines() if as_json else _Reading(), bus, pool=target.pool) as watch:
            watch.add(handle)
    return OK if all(result.ok for result in watch.results) else NOT_COMPLETED


async def _show_request(bus: Bus, run_id: str, pool: str, *, as_json: bool) -> None:
    """Show what the run was asked to do; a handle begins with what happened after that."""
    entries = await RunLog(bus, run_id, pool=pool).entries()
    if not entries:
        raise ForkRefused(f"There is no run {run_id!r} in pool {pool!r}; it may have expired.")
    first = await entry_object(entries[0], BlobStore(bus, "parent"))
    if as_json:
        print_json(first)
    elif directive := first.get("directive"):
        click.echo(f"Directive: {plain(str(directive))}", err=True)
