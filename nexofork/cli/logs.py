"""``nexofork logs``: what a run's log holds, and with ``-f`` what is added to it.

The live feed only says that there is something new; what is shown is read from the log, so nothing is lost or shown
twice when the connection breaks.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from nexofork.bus.blobs import BlobStore
from nexofork.bus.run_log import RunLog
from nexofork.cli.exit_codes import OK
from nexofork.cli.log_lines import entry_line, entry_object
from nexofork.cli.options import json_option, run_name, target_options
from nexofork.cli.output import print_json
from nexofork.cli.session import finish, open_target
from nexofork.errors import BusError, ForkRefused
from nexofork.wire.messages import Final
from nexofork.wire.subjects import live_reports

if TYPE_CHECKING:
    from nexofork.bus.connection import Bus
    from nexofork.bus.run_log import Entry
    from nexofork.cli.options import Target

__all__ = ["logs"]

_LOOK_AGAIN_S = 5.0  # an abort of a queued run is not in the feed


@click.command()
@click.argument("run_id", type=run_name)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is over.")
@json_option
@target_options
def logs(run_id: str, *, follow: bool, as_json: bool, target: Target) -> None:
    """Show what a run's log holds: request, claims, turns, tools, aborts and the end."""
    finish(lambda: _logs(run_id, follow=follow, as_json=as_json, target=target))


async def _logs(run_id: str, *, follow: bool, as_json: bool, target: Target) -> int:
    async with open_target(target) as bus:
        log, blobs = RunLog(bus, run_id, pool=target.pool), BlobStore(bus, "parent")
        news = await _news(bus, run_id, target.pool) if follow else asyncio.Event()
        entries = await log.entries()
        if not entries:
            raise ForkRefused(f"There is no run {run_id!r} in pool {target.pool!r}; it may have expired.")
        seen = await _show(entries, blobs, as_json=as_json)
        while follow and not any(isinstance(entry.message, Final) for entry in entries):
            entries = await _more(log, news, seen)
            seen = await _show(entries, blobs, as_json=as_json) or seen
    return OK


async def _news(bus: Bus, run_id: str, pool: str) -> asyncio.Event:
    news = asyncio.Event()
    bus.on_reconnect(news.set)
    await bus.subscribe(live_reports(run_id, pool), lambda _: news.set())
    return news


async def _more(log: RunLog, news: asyncio.Event, seen: int) -> list[Entry]:
    """Return what came behind a sequence, perhaps nothing; a broken connection is waited out."""
    try:
        async with asyncio.timeout(_LOOK_AGAIN_S):
            await news.wait()
    except TimeoutError:
        pass
    news.clear()
    try:
        return await log.entries(start_seq=seen + 1)
    except BusError as exc:
        if not exc.retryable:
            raise
        return []


async def _show(entries: list[Entry], blobs: BlobStore, *, as_json: bool) -> int:
    for entry in entries:
        shown = await entry_object(entry, blobs)
        if as_json:
            print_json(shown)
        else:
            click.echo(entry_line(shown))
    return entries[-1].seq if entries else 0
