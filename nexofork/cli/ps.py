"""``nexofork ps``: the runs and daemons of a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nexofork.bus.presence import PresenceBoard
from nexofork.cli.exit_codes import OK
from nexofork.cli.options import json_option, target_options
from nexofork.cli.output import brief, coloured, print_json, print_table
from nexofork.cli.run_listing import list_runs
from nexofork.cli.session import finish, open_target

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from nexofork.cli.options import Target
    from nexofork.cli.run_listing import RunRow
    from nexofork.wire.messages import Presence

__all__ = ["ps"]

_SHOWN = 50


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also runs that keep no transcript, and all of a long list.")
@json_option
@target_options
def ps(*, everything: bool, as_json: bool, target: Target) -> None:
    """Show the runs and daemons of a pool, the newest run first."""
    finish(lambda: _ps(everything=everything, as_json=as_json, target=target))


async def _ps(*, everything: bool, as_json: bool, target: Target) -> int:
    async with open_target(target) as bus:
        rows = await list_runs(bus, target.pool)
        daemons = await PresenceBoard(bus).daemons(target.pool)
    rows = [row for row in rows if everything or not row.skip_transcript]
    if as_json:
        print_json({"runs": [row.to_json() for row in rows], "daemons": [_daemon(one) for one in daemons]})
        return OK
    _print_daemons(daemons)
    click.echo()
    _print_runs(rows if everything else rows[:_SHOWN])
    if not everything and len(rows) > _SHOWN:
        click.echo(f"and {len(rows) - _SHOWN} older ones; --all shows them")
    return OK


def _daemon(presence: Presence) -> dict[str, Any]:
    identity = presence.daemon
    return {
        "name": identity.name,
        "host": identity.host,
        "instance": identity.instance,
        "nkey": identity.nkey,
        "pool": presence.pool,
        "slots": presence.slots,
        "running": presence.running,
        "draining": presence.draining,
        "version": presence.version,
        "workspace_id": presence.workspace_id,
        "sandbox": presence.sandbox,
    }


def _print_daemons(daemons: Sequence[Presence]) -> None:
    if not daemons:
        click.echo("No daemons. Start one with `nexofork daemon`.")
        return
    rows = [
        (
            brief(one.daemon.name, 30),
            brief(one.daemon.host, 30),
            f"{one.running}/{one.slots}",
            one.pool,
            brief(one.version, 20),
            "draining" if one.draining else "",
        )
        for one in daemons
    ]
    print_table(("daemon", "host", "slots", "pool", "version", ""), rows, right=frozenset({2}))


def _print_runs(rows: Sequence[RunRow]) -> None:
    if not rows:
        click.echo("No runs.")
        return
    cells = [
        (
            row.run_id,
            coloured(row.status),
            row.last,
            brief(row.daemon or "-", 24),
            str(row.epoch),
            "-" if row.turns is None else str(row.turns),
            _age(row.to_json()["age_s"]),
            brief(row.directive or row.label, 40),
        )
        for row in rows
    ]
    print_table(
        ("run", "status", "last", "daemon", "epoch", "turns", "age", "directive"), cells, right=frozenset({4, 5, 6})
    )


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
