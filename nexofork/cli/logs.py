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
from nexofork.cli.output import brief, counted, print_json
from nexofork.cli.run_ids import resolve_run, run_argument
from nexofork.cli.session import finish, open_target
from nexofork.errors import BusError, ForkRefused
from nexofork.run.result import ForkStatus
from nexofork.wire.messages import AbortEvent, Claimed, Final
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
        shown = _Shown(log, blobs, as_json=as_json, patient=follow)
        await shown.add(entries)
        waiting = _Waiting(bus, target.pool)
        while follow and not await shown.over():
            entries = await _more(bus, log, news, shown.seq)
            await waiting.tell(entries)
            await shown.add(entries)
    return OK


class _Shown:
    """What was shown of a log, and what it means for whether the run is over."""

    def __init__(self, log: RunLog, blobs: BlobStore, *, as_json: bool, patient: bool) -> None:
        self.seq = 0
        self._log = log
        self._blobs = blobs
        self._as_json = as_json
        self._patient = patient
        self._claimed = False
        self._ended = False

    async def add(self, entries: list[Entry]) -> None:
        """Show entries; an abort before any claim is the end."""
        for entry in entries:
            shown = await entry_object(entry, self._blobs, patient=self._patient)
            self._claimed = self._claimed or isinstance(entry.message, Claimed)
            if isinstance(entry.message, AbortEvent) and not self._claimed and not self._ended:
                shown["status"] = ForkStatus.ABORTED.value
            self._ended = self._ended or isinstance(entry.message, Final) or "status" in shown
            self.seq = entry.seq
            if self._as_json:
                print_json(shown)
            else:
                click.echo(entry_line(shown))

    async def over(self) -> bool:
        """Whether nothing more is to come."""
        if not self._ended and not self._claimed:
            with suppress(BusError):  # an observer may not look there
                abort = await self._log.inbox_abort()
                if abort is not None:
                    self._ended = True
                    click.echo(f"aborted while the log was full: {brief(abort.note, 160)}", err=True)
        return self._ended


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
