"""``nexofork provision``: what only an admin may do, create and update the streams and the consumer of a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from nexofork.bus.connection import BusSettings, open_bus
from nexofork.bus.failures import provision_command
from nexofork.bus.provisioning import make_deletable
from nexofork.bus.provisioning import provision as provision_pool
from nexofork.cli.exit_codes import NOT_COMPLETED, OK
from nexofork.cli.options import json_option, seconds, target_options
from nexofork.cli.output import print_json
from nexofork.cli.patience import patience
from nexofork.cli.session import finish
from nexofork.wire.streams import CONSUMER, log_stream, stream_settings

if TYPE_CHECKING:
    from nexofork.cli.options import Target

__all__ = ["provision"]

_LEAST_BYTES = 1 << 20


@click.command()
@click.option("--replicas", type=click.IntRange(1, 5), help="Copies of every stream; 3 on a cluster unless given.")
@click.option(
    "--lease-s",
    type=seconds,
    metavar="SECONDS",
    help="Silence of a daemon before its runs go to another.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(min=_LEAST_BYTES),
    metavar="N",
    help="Limit of the pool's log; the other streams get theirs in proportion, and those that pools share never "
    "shrink. 640 MiB for a new pool unless given.",
)
@click.option(
    "--apply",
    is_flag=True,
    help="Also change what exists and is otherwise than the fleet needs, and limit streams that have no limit.",
)
@click.option(
    "--deletable",
    is_flag=True,
    help="Make streams that allow `nexofork delete`; a stream that exists without it cannot be changed.",
)
@json_option
@target_options
def provision(*, as_json: bool, target: Target, **given: Any) -> None:
    """Create the streams of a pool, and change what is asked for. With accounts this takes the admin's credentials.

    What exists with other settings than the fleet needs is named and left, unless --apply says to change it.
    """
    finish(lambda: _provision(target, given, as_json=as_json))


async def _provision(target: Target, given: dict[str, Any], *, as_json: bool) -> int:
    settings = BusSettings(
        urls=target.urls, creds=target.creds, nkey_seed=target.nkey, ca=target.ca, name="nexofork-provision"
    )
    async with open_bus(settings) as bus:
        with patience("Making the streams"):
            applies = given.pop("apply")
            if given.pop("deletable"):
                await make_deletable(bus, pool=target.pool, replicas=given["replicas"], max_bytes=given["max_bytes"])
            done = await provision_pool(bus, pool=target.pool, repair=applies, **given)
    for note in done.notes:
        click.echo(f"Note: {note}. Runs that last longer lose what they need.", err=True)
    for lack in done.unlimited:
        fix = f"`{provision_command(target.pool)} --apply` sets it, and deletes nothing"
        if applies:
            fix = "Give the server or the account more storage (max_file), and run this again"
        click.echo(f"Note: {lack}: one daemon's key can fill the store until aborts fail. {fix}.", err=True)
    for said in done.oversized:
        click.echo(f"Note: {said}. Nothing was deleted.", err=True)
    streams = [stream["name"] for stream in stream_settings(target.pool)]
    consumer = f"{log_stream(target.pool)}/{CONSUMER}"
    if as_json:
        print_json({"pool": target.pool, "streams": streams, "consumer": consumer, "lease_s": done.lease_s})
    else:
        click.echo(
            f"In place for pool {target.pool}: {', '.join(streams)}; consumer {consumer}, lease {done.lease_s:g} s."
        )
    return NOT_COMPLETED if applies and done.unlimited else OK
