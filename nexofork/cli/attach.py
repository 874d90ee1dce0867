"""``nexofork attach``: watch one run, from its beginning to its end, wherever it was started."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import click

from nexofork.bus.blobs import BlobStore
from nexofork.bus.run_log import RunLog
from nexofork.cli.attach_keys import AttachKeys
from nexofork.cli.exit_codes import NOT_COMPLETED, OK
from nexofork.cli.keyboard import at_a_terminal
from nexofork.cli.log_lines import entry_object
from nexofork.cli.options import json_option, target_options
from nexofork.cli.output import plain, print_json
from nexofork.cli.progress import EventLines, PlainProgress
from nexofork.cli.prompting import Prompt
from nexofork.cli.run_ids import resolve_run, run_argument
from nexofork.cli.session import finish, open_target
from nexofork.cli.watching import Watch
from nexofork.client.fleet import FleetSettings, NatsForkSubagent
from nexofork.errors import ForkRefused
from nexofork.run.events import ForkAsked, ForkEnded, TurnFinished

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexofork.bus.connection import Bus
    from nexofork.cli.keyboard import Keyboard
    from nexofork.cli.options import Target
    from nexofork.client.handle import ForkHandle
    from nexofork.run.events import ForkEvent

__all__ = ["attach"]


class _Reading(PlainProgress):
    """Progress on stderr, and what the child says on stdout; held back while somebody types."""

    def __init__(self, keyboard: Keyboard | None = None) -> None:
        super().__init__()
        self._keyboard = keyboard
        self._held: list[Callable[[], None]] = []

    def event(self, run_id: str, event: ForkEvent) -> None:
        """Show an event; a question is shown where it can be answered."""
        if self._keyboard is not None and self._keyboard.typing:
            self._held.append(partial(self.event, run_id, event))
            return
        if self._keyboard is not None and isinstance(event, ForkAsked):
            return
        super().event(run_id, event)
        if isinstance(event, TurnFinished) and event.text:
            click.echo(plain(event.text))
        elif isinstance(event, ForkEnded) and event.result.error:
            click.echo(plain(event.result.error), err=True)

    def note(self, text: str) -> None:
        """Print a note."""
        if self._keyboard is not None and self._keyboard.typing:
            self._held.append(partial(self.note, text))
        else:
            super().note(text)

    def release(self) -> None:
        """Show what was held back."""
        held, self._held = self._held, []
        for show in held:
            show()


@click.command()
@run_argument()
@json_option
@target_options
def attach(run_id: str, *, as_json: bool, target: Target) -> None:
    """Watch a run until it is over; on a terminal, steer it by keys and answer what it asks permission for.

    Keys: m says something to the child, b leaves the run to itself (exit code 0), a aborts it, ? shows them.

    Exits with 0 if it completed, 1 if it did not, 2 if there is no such run. Ctrl-C stops the watching, not the run.
    """
    finish(lambda: _attach(run_id, as_json=as_json, target=target))


async def _attach(given: str, *, as_json: bool, target: Target) -> int:
    async with open_target(target) as bus, NatsForkSubagent(bus, FleetSettings(pool=target.pool)) as forks:
        run_id = await resolve_run(bus, given, pool=target.pool)
        if not as_json and at_a_terminal():
            return await _at_terminal(bus, forks, run_id, pool=target.pool)
        handle = await forks.attach(run_id)
        await _show_request(bus, run_id, target.pool, as_json=as_json)
        async with Watch(EventLines() if as_json else _Reading(), bus, pool=target.pool) as watch:
            watch.add(handle)
    return _code(watch)


async def _at_terminal(bus: Bus, forks: NatsForkSubagent, run_id: str, *, pool: str) -> int:
    keys = AttachKeys(on_released=lambda: sink.release())
    sink = _Reading(keys.keyboard)
    with keys.keyboard.open():
        handle = await forks.attach(run_id, on_permission=Prompt(keys.keyboard))
        await _show_request(bus, run_id, pool, as_json=False)
        watch = Watch(sink, bus, pool=pool)
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(_until_over(watch, handle))
            steering = tasks.create_task(keys.until_left(handle))
            done, _ = await asyncio.wait((watching, steering), return_when=asyncio.FIRST_COMPLETED)
            for task in (watching, steering):
                task.cancel()
    return OK if watching not in done else _code(watch)


async def _until_over(watch: Watch, handle: ForkHandle) -> None:
    async with watch:
        watch.add(handle)


def _code(watch: Watch) -> int:
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
