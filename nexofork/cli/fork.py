"""``nexofork fork``: one child per directive, on whichever hosts have a daemon.

Everything that can be wrong with the input is found before NATS is asked for anything, so bad input is told from a
fleet that is down. REQUEST.json is used byte for byte: it is the prefix that the children share.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import click

from nexofork.bus.run_log import RunLog
from nexofork.cli.exit_codes import NOT_COMPLETED, OK
from nexofork.cli.fork_order import (
    budget_options,
    compaction_option,
    filter_option,
    read_order,
    tool_name_option,
    warm_up_option,
    workspace_options,
)
from nexofork.cli.options import json_option, run_name, seconds, target_options
from nexofork.cli.output import brief, counted, plain, print_json, print_results
from nexofork.cli.parent_files import parent_options
from nexofork.cli.permission_options import permission_options
from nexofork.cli.progress import EventLines, ResultLines, people_sink
from nexofork.cli.session import finish, open_target
from nexofork.cli.watching import INTERRUPTED_NOTE, Watch
from nexofork.client.fleet import FleetSettings, NatsForkSubagent
from nexofork.errors import BusError
from nexofork.wire.messages import AbortEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexofork.bus.connection import Bus
    from nexofork.cli.fork_order import ForkOrder
    from nexofork.cli.progress import Sink
    from nexofork.client.handle import ForkHandle

__all__ = ["fork"]

_WINDOW = 64
_NO_VERSION = (
    "Note: the children send the SDK's own anthropic-version. If the parent sent another one, the cache is not shared; "
    "pass --header anthropic-version:VALUE."
)


@click.command()
@parent_options
@click.option(
    "--run-id",
    "run_ids",
    type=run_name,
    metavar="ID",
    multiple=True,
    help="An id per directive, or none.",
)
@click.option("--group", help="Name the children share, to abort them together or share a budget.")
@click.option("--timeout", type=seconds, metavar="SECONDS", help="End a child so many seconds after a daemon took it.")
@click.option(
    "--queue-limit",
    "queue_limit_s",
    type=seconds,
    metavar="SECONDS",
    default=FleetSettings().queue_limit_s,
    show_default=True,
    help="Give a child up that waits so long while no daemon is there that could take it.",
)
@click.option("--max-turns", type=click.IntRange(min=1), default=200, show_default=True, help="End a child after.")
@click.option(
    "--on-parent-gone",
    type=click.Choice(["continue", "abort"]),
    default="continue",
    show_default=True,
    help="What becomes of the children when this process dies.",
)
@click.option("--detach", is_flag=True, help="Print the run ids and leave; `nexofork wait` gets the results.")
@click.option("--events", is_flag=True, help="Print everything as it happens, one JSON object per line.")
@json_option
@budget_options
@warm_up_option
@filter_option
@tool_name_option
@permission_options
@compaction_option
@workspace_options
@target_options
def fork(**options: Any) -> None:
    """Fork a conversation onto the fleet, one child per directive.

    Exits with 0 if all completed, 1 if some did not, 2 on bad input, 3 if NATS is not reachable, 130 after Ctrl-C,
    which aborts the children.
    """
    finish(lambda: _run(read_order(**options)))


async def _run(order: ForkOrder) -> int:
    # Detached runs are meant to queue: a window would keep this process waiting for daemons.
    window = max(_WINDOW, len(order.directives)) if order.detach else _WINDOW
    settings = FleetSettings(
        pool=order.target.pool,
        on_parent_gone=order.on_parent_gone,
        window=window,
        queue_limit_s=order.queue_limit_s,
        tells_of_waits=False,
        serve_files=not order.detach,  # who leaves at once serves nothing
    )
    async with open_target(order.target, makes=True) as bus, NatsForkSubagent(bus, settings) as forks:
        if order.detach:
            await _detached(order, forks)
            return OK
        sink = _sink(order)
        watch = Watch(sink, bus, pool=order.target.pool, queue_limit_s=settings.queue_limit_s)
        try:
            async with watch:
                await _start(order, forks, watch.add)
                if not order.names_version:
                    sink.note(_NO_VERSION)
        except asyncio.CancelledError:
            await _abort(order, bus, watch)
            raise
    if not (order.as_json or order.events):
        print_results(watch.results)
    return OK if all(result.ok for result in watch.results) else NOT_COMPLETED


def _sink(order: ForkOrder) -> Sink:
    if order.events:
        return EventLines()
    return ResultLines() if order.as_json else people_sink()


async def _start(order: ForkOrder, forks: NatsForkSubagent, started: Callable[[ForkHandle], None]) -> None:
    """Request one child per directive, side by side, and hand them over in the order of the directives."""
    template = await forks.shipped(order.params)  # all children begin with the same files
    async with asyncio.TaskGroup() as tasks:
        starting: list[asyncio.Task[ForkHandle]] = []
        for params, run_id in zip(template.each(order.directives), order.run_ids, strict=True):
            starting.append(tasks.create_task(forks.fork(params, run_id=run_id, group=order.group)))
            if len(starting) == 1:
                await starting[0]  # so that the others find the snapshot shipped
        for task in starting:
            started(await task)


async def _detached(order: ForkOrder, forks: NatsForkSubagent) -> None:
    """Request all and let go of them only then: if one is refused, none goes on."""
    handles: list[ForkHandle] = []
    await _start(order, forks, handles.append)
    for handle in handles:
        handle.detach()
    for handle, directive in zip(handles, order.directives, strict=True):
        if order.as_json:
            print_json({"run_id": handle.run_id, "directive": directive})
        else:
            click.echo(f"{handle.run_id}  {brief(directive, 60)}")
    if not order.names_version:
        click.echo(_NO_VERSION, err=True)


async def _abort(order: ForkOrder, bus: Bus, watch: Watch) -> None:
    """Abort every run that is not over.

    Goes by the ids too, not by the handles alone: a request that was just being published has none yet.
    """
    over = {result.run_id for result in watch.results}
    held = {handle.run_id for handle in watch.open}
    left = [run_id for run_id in order.run_ids if run_id not in over]
    click.echo(f"Aborting {counted(len(left), 'run')}.", err=True)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(watch.abort(INTERRUPTED_NOTE))
        for run_id in left:
            if run_id not in held:
                tasks.create_task(_abort_one(RunLog(bus, run_id, pool=order.target.pool)))


async def _abort_one(log: RunLog) -> None:
    try:
        await log.abort(AbortEvent(at=time.time(), note=INTERRUPTED_NOTE))
    except BusError as exc:
        click.echo(plain(f"Run {log.run_id} was not aborted: {exc}"), err=True)
