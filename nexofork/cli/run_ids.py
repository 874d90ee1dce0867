"""Runs by the beginning of their ids: nobody types 36 characters.

A whole id always means that run, also where others begin with it. A beginning that several have names none of them:
which was meant is not guessed, since the next thing may be an abort.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click
import uvloop
from click.shell_completion import CompletionItem

from nexofork.bus.connection import BusSettings, open_bus
from nexofork.bus.jetstream import retry
from nexofork.cli.options import run_name, target_given
from nexofork.cli.output import brief
from nexofork.client.runs import find_runs, list_runs
from nexofork.errors import ForkRefused, NexoforkError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nexofork.bus.connection import Bus
    from nexofork.client.runs import RunRow

__all__ = ["match_run", "resolve_run", "resolve_runs", "run_argument", "runs_argument"]

_NAMED = 8
_COMPLETION_S = 1.0
_COMPLETED = 100


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the runs that begin like this; none where NATS does not answer at once."""
    try:
        rows = uvloop.run(_listed(ctx.params, incomplete))
    except (NexoforkError, OSError, TimeoutError, ExceptionGroup):
        return []  # a shell has nowhere to show an error while somebody types
    return [CompletionItem(row.run_id, help=f"{row.status}: {brief(row.directive or row.label, 50)}") for row in rows]


def run_argument() -> Callable[[Any], Any]:
    """An argument ``run_id``, to be resolved with `resolve_run`."""
    return click.argument("run_id", metavar="RUN_ID", type=run_name, shell_complete=_complete)


def runs_argument(*, required: bool) -> Callable[[Any], Any]:
    """An argument ``run_ids``, to be resolved with `resolve_runs`."""
    return click.argument(
        "run_ids", metavar="RUN_ID...", type=run_name, nargs=-1, required=required, shell_complete=_complete
    )


async def resolve_run(bus: Bus, given: str, *, pool: str) -> str:
    """Return the id of the run that is meant; what no run begins with is returned as it is.

    Raises:
        ForkRefused: Several runs begin like this.
        BusError: NATS did not answer.
    """
    found = await retry(bus, lambda: find_runs(bus, given, pool=pool))
    return match_run(given, found, where=f"runs of pool {pool!r}")


async def resolve_runs(bus: Bus, given: Sequence[str], *, pool: str) -> list[str]:
    """Return the ids of the runs that are meant, each once, in the order they were given; raises like `resolve_run`."""
    return list(dict.fromkeys([await resolve_run(bus, one, pool=pool) for one in given]))


def match_run(given: str, ids: Sequence[str], *, where: str) -> str:
    """Return the one id that is the given one or begins with it, or the given one where there is none.

    Raises:
        ForkRefused: Several begin with it.
    """
    found = sorted({one for one in ids if one.startswith(given)})
    if given in found or not found:
        return given
    if len(found) > 1:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise ForkRefused(
            f"{given!r} is the beginning of {len(found)} {where}: {', '.join(found[:_NAMED])}{more}. Give more of it."
        )
    return found[0]


async def _listed(given: dict[str, Any], incomplete: str) -> list[RunRow]:
    target = target_given(given)
    settings = BusSettings(
        urls=target.urls,
        creds=target.creds,
        nkey_seed=target.nkey,
        ca=target.ca,
        connect_timeout_s=_COMPLETION_S / 2,
    )
    async with asyncio.timeout(_COMPLETION_S), open_bus(settings) as bus:
        # Not all of a long list: nobody picks one of thousands, and each of them has to be read.
        ids = await find_runs(bus, incomplete, pool=target.pool)
        return await list_runs(bus, target.pool, ids=ids[:_COMPLETED])
