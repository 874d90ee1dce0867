"""``nexofork logs``: what a run's log holds, and with ``-f`` what is added to it.

The live feed only says that there is something new; what is shown is read from the log, so nothing is lost or shown
twice when the connection breaks.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from nexofork.bus.blobs import BlobStore
from nexofork.bus.presence import PresenceBoard
from nexofork.bus.run_log import RunLog
from nexofork.cli.exit_codes import OK
from nexofork.cli.log_lines import entry_line, entry_object
from nexofork.cli.options import json_option, target_options
from nexofork.cli.output import counted, print_json
from nexofork.cli.run_ids import resolve_run, run_argument
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
@run_argument()
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is over.")
@json_option
@target_options
def logs(run_id: str, *, follow: bool, as_json: bool, target: Target) -> None:
    """Show what a run's log holds: request, claims, turns, tools, aborts and the end.

    With --follow it goes on through lost connections; every entry is shown once. Ctrl-C stops the showing, not the run.
    """
    finish(lambda: _logs(run_id, follow=follow, as_json=as_json, target=target))


async def _logs(given: str, *, follow: bool, as_json: bool, target: Target) -> int:
    async with open_target(target) as bus:
        run_id = await resolve_run(bus, given, pool=target.pool)
        log, blobs = RunLog(bus, run_id, pool=target.pool), BlobStore(bus, "parent")
        news = await _news(bus, run_id, target.pool) if follow else asyncio.Event()
        entries = await log.entries()
        if not entries:
            raise ForkRefused(f"There is no run {run_id!r} in pool {target.pool!r}; it may have expired.")
        seen = await _show(entries, blobs, as_json=as_json, follow=follow)
        waiting = _Waiting(bus, target.pool)
        while follow and not any(isinstance(entry.message, Final) for entry in entries):
            entries = await _more(bus, log, news, seen)
            await waiting.tell(entries)
            seen = await _show(entries, blobs, as_json=as_json, follow=True) or seen
    return OK


class _Waiting:
    """Says on stderr, once each, why nothing comes."""

    def __init__(self, bus: Bus, pool: str) -> None:
        self._bus = bus
        self._pool = pool
        self._connected = True
        self._told = False

    async def tell(self, entries: list[Entry]) -> None:
        """Take what came, and say what has changed about the waiting."""
        if self._connected != self._bus.connected:
            self._connected = self._bus.connected
            click.echo("NATS is back." if self._connected else "NATS is not reached; trying again.", err=True)
        self._told = self._told or bool(entries)
        if not self._told and self._connected:
            self._told = True
            with suppress(BusError):
                daemons = await PresenceBoard(self._bus).daemons(self._pool)
                there = counted(len(daemons), "daemon") if daemons else "no daemon; start one with `nexofork daemon`"
                click.echo(f"Nothing new; pool {self._pool!r} has {there}.", err=True)


async def _news(bus: Bus, run_id: str, pool: str) -> asyncio.Event:
    news = asyncio.Event()
    bus.on_reconnect(news.set)
    await bus.subscribe(live_reports(run_id, pool), lambda _: news.set())
    return news


async def _more(bus: Bus, log: RunLog, news: asyncio.Event, seen: int) -> list[Entry]:
    """Return what came behind a sequence, perhaps nothing; a broken connection is waited out."""
    try:
        async with asyncio.timeout(_LOOK_AGAIN_S):
            await news.wait()
    except TimeoutError:
        pass
    news.clear()
    if not bus.connected:
        return []
    try:
        return await log.entries(start_seq=seen + 1)
    except BusError as exc:
        if not exc.retryable:
            raise
        return []


async def _show(entries: list[Entry], blobs: BlobStore, *, as_json: bool, follow: bool) -> int:
    for entry in entries:
        shown = await entry_object(entry, blobs, patient=follow)
        if as_json:
            print_json(shown)
        else:
            click.echo(entry_line(shown))
    return entries[-1].seq if entries else 0
