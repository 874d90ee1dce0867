"""``nexofork message``: say something to a running child, whoever started it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nexofork.cli.exit_codes import NOT_COMPLETED, OK
from nexofork.cli.options import json_option, target_options
from nexofork.cli.output import print_json
from nexofork.cli.patience import patience
from nexofork.cli.run_ids import resolve_run, run_argument
from nexofork.cli.session import finish, open_target
from nexofork.client.child_messages import post_letter, written
from nexofork.client.fleet import FleetSettings, NatsForkSubagent
from nexofork.run.events import MessagesDelivered

if TYPE_CHECKING:
    from nexofork.cli.options import Target

__all__ = ["message"]


@click.command()
@run_argument()
@click.argument("text")
@click.option("--wait", "waits", is_flag=True, help="Return only when the child has it, or the run ended without it.")
@json_option
@target_options
def message(run_id: str, text: str, *, waits: bool, as_json: bool, target: Target) -> None:
    """Say something to a running child; it reads it between two of its turns.

    Exits with 0 once the message is in the run's inbox, 1 if --wait saw the run end without reading it, 2 if there is
    no such run or it is over (`nexofork wake` goes on from there).
    """
    finish(lambda: _message(run_id, text, waits=waits, as_json=as_json, target=target))


async def _message(given: str, text: str, *, waits: bool, as_json: bool, target: Target) -> int:
    outcome, letter = "sent", written(text)
    async with open_target(target) as bus:
        run_id = await resolve_run(bus, given, pool=target.pool)
        await post_letter(bus, run_id, letter, pool=target.pool)
        if waits:
            async with NatsForkSubagent(bus, FleetSettings(pool=target.pool)) as forks:
                with patience("Waiting for the child to read it"):
                    outcome = await _became_of(forks, run_id, letter.id)
    if as_json:
        print_json({"run_id": run_id, "id": letter.id, "outcome": outcome})
    else:
        click.echo(f"{run_id}  {outcome}")
    return NOT_COMPLETED if outcome == "undelivered" else OK


async def _became_of(forks: NatsForkSubagent, run_id: str, letter_id: str) -> str:
    handle = await forks.attach(run_id)
    async for event in handle.events():
        if isinstance(event, MessagesDelivered) and letter_id in event.ids:
            return "delivered"
    return "undelivered"
