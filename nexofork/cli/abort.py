"""``nexofork abort``: end runs, whoever started them. Aborting what is over or was aborted changes nothing."""

from __future__ import annotations

import getpass
import re
import socket
import time
from typing import TYPE_CHECKING

import click

from nexofork.bus.jetstream import retry
from nexofork.bus.run_log import RunLog
from nexofork.cli.exit_codes import BAD_INPUT, OK
from nexofork.cli.options import json_option, target_options
from nexofork.cli.output import print_json
from nexofork.cli.patience import patience
from nexofork.cli.run_ids import resolve_runs, runs_argument
from nexofork.cli.session import finish, open_target
from nexofork.client.runs import list_runs
from nexofork.errors import ForkRefused
from nexofork.wire.messages import AbortEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.bus.connection import Bus
    from nexofork.cli.options import Target

__all__ = ["abort"]

_OUTCOMES = {
    "logged": "aborted",
    "inbox": "aborted",
    "already": "already_aborted",
    "ended": "already_over",
    "unknown": "unknown",
}


@click.command()
@runs_argument(required=False)
@click.option("--group", help="Every run of this group that is not over.")
@click.option("--note", default="", help="Why; the run's result says it.")
@json_option
@target_options
def abort(run_ids: tuple[str, ...], *, group: str | None, note: str, as_json: bool, target: Target) -> None:
    """End runs; what is over stays as it is.

    Exits with 0 once the aborts are on the log, 2 if there is no such run (the others are aborted all the same).
    """
    if not run_ids and group is None:
        raise click.UsageError("Name the runs to abort, or a --group.")
    finish(lambda: _abort(run_ids, group, note, as_json=as_json, target=target))


async def _abort(given: Sequence[str], group: str | None, note: str, *, as_json: bool, target: Target) -> int:
    unknown = []
    async with open_target(target) as bus:
        run_ids = await resolve_runs(bus, given, pool=target.pool)
        members = [] if group is None else await _members(bus, target.pool, group)
        for run_id in dict.fromkeys([*run_ids, *members]):
            event = AbortEvent(at=time.time(), note=note or "aborted on the command line", by=_who())
            outcome = _OUTCOMES[(await RunLog(bus, run_id, pool=target.pool).abort(event)).how]
            if outcome == "unknown":
                unknown.append(run_id)
            if as_json:
                print_json({"run_id": run_id, "outcome": outcome})
            elif outcome != "unknown":
                click.echo(f"{run_id}  {outcome.replace('_', ' ')}")
    if unknown:
        click.echo(f"Error: There is no run {' '.join(unknown)} in pool {target.pool}; it may have expired.", err=True)
        return BAD_INPUT
    return OK


async def _members(bus: Bus, pool: str, group: str) -> list[str]:
    with patience("Looking for the group's runs"):
        rows = await retry(bus, lambda: list_runs(bus, pool, group=group))
    if not rows:
        raise ForkRefused(f"No run of pool {pool!r} is in group {group!r}; it may have expired.")
    return [row.run_id for row in rows if not row.over]


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return re.sub(r"[^A-Za-z0-9_.@-]", "_", f"{user}@{socket.gethostname()}")
