"""``nexofork ps --watch``: a pool as it changes, drawn in place on a terminal, line by line anywhere else."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import click

from nexofork.cli.exit_codes import OK
from nexofork.cli.keyboard import Keyboard, at_a_terminal
from nexofork.cli.output import brief, counted, print_json
from nexofork.cli.ps_lines import (
    by_urgency,
    daemon_lines,
    daemon_object,
    run_lines,
    run_phrase,
    totals_line,
    totals_object,
)
from nexofork.cli.screen import Screen
from nexofork.cli.session import on_signals, open_target
from nexofork.cli.terminal import can_redraw
from nexofork.client.pool import PoolView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nexofork.cli.options import Target
    from nexofork.client.pool import Change
    from nexofork.client.runs import RunRow

__all__ = ["Watched", "watch_pool"]

_MOST_DAEMONS = 8
_LEFT_BEHIND = 20
_QUIT = ("q", "Q", "\x04")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Which runs somebody wants to see."""

    pool: str
    everything: bool
    parent: str | None
    group: str | None

    def shows(self, row: RunRow) -> bool:
        """Whether a run is among them."""
        return self.everything or not row.skip_transcript


class _Form(Protocol):
    """How a pool is shown."""

    def show(self, changes: Sequence[Change]) -> None:
        """Show what changed; the first time that is everything."""


async def watch_pool(chosen: Watched, *, as_json: bool, target: Target) -> int:
    """Show what changes until somebody leaves; nothing was to come to an end, so that is exit code 0."""
    async with open_target(target) as bus, PoolView(bus, chosen.pool, parent=chosen.parent, group=chosen.group) as view:
        stop = asyncio.Event()
        leave = _leaving(stop, view)
        on_signals(leave)
        with _form(view, chosen, leave, as_json=as_json) as form:
            async with aclosing(view.changes()) as changes:
                async for some in changes:
                    form.show([one for one in some if one.run is None or chosen.shows(one.run)])
                    if stop.is_set():
                        break
    return OK


def _leaving(stop: asyncio.Event, view: PoolView) -> Callable[[], None]:
    """Return what ends the watching; called twice it does not wait for NATS any more."""
    task = asyncio.current_task()
    assert task is not None

    def leave() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()
        view.nudge()

    return leave


@contextmanager
def _form(view: PoolView, chosen: Watched, leave: Callable[[], None], *, as_json: bool) -> Iterator[_Form]:
    if as_json:
        yield _Objects(view)
    elif not can_redraw(sys.stdout):
        yield _Lines(view)
    else:
        picture = _Picture(view, chosen)
        with ExitStack() as stack:
            stack.enter_context(picture.screen.open(view.nudge))
            if at_a_terminal():
                keyboard = Keyboard(lambda key: leave() if key in _QUIT else None)
                stack.enter_context(keyboard.open())
            yield picture
        for line in picture.lines(_LEFT_BEHIND):
            click.echo(line)


class _Objects:
    """An object per change, behind one with everything."""

    def __init__(self, view: PoolView) -> None:
        self._view = view
        self._told = False

    def show(self, changes: Sequence[Change]) -> None:
        """Print them, with the sums behind each change of a run."""
        totals = totals_object(self._view.totals)
        if not self._told:
            self._told = True
            runs = [one.run.to_json() for one in changes if one.run]
            daemons = [daemon_object(one.daemon) for one in changes if one.daemon]
            print_json({"event": "state", "at": time.time(), "runs": runs, "daemons": daemons, "totals": totals})
            return
        for one in changes:
            if one.run is not None:
                print_json({"event": "run", "at": time.time(), **one.run.to_json(), "totals": totals})
            elif one.daemon is not None:
                print_json({"event": "daemon", "at": time.time(), **daemon_object(one.daemon)})
            elif one.gone is not None:
                print_json({"event": "daemon_gone", "at": time.time(), **daemon_object(one.gone)})


class _Lines:
    """A line per change, behind the picture as it was in the beginning."""

    def __init__(self, view: PoolView) -> None:
        self._view = view
        self._told = False
        self._connected = True

    def show(self, changes: Sequence[Change]) -> None:
        """Print them."""
        if self._connected != self._view.connected:
            self._connected = self._view.connected
            click.echo("NATS is back." if self._connected else "NATS is not reached; trying again.", err=True)
        if not self._told:
            self._told = True
            rows = by_urgency(one.run for one in changes if one.run)
            daemons = [one.daemon for one in changes if one.daemon]
            for line in (totals_line(self._view.totals), "", *daemon_lines(daemons), "", *run_lines(rows), ""):
                click.echo(line)
            return
        for one in changes:
            click.echo(f"{time.strftime('%H:%M:%S')}  {_phrase(one)}")


class _Picture:
    """The whole pool on one screen: sums, daemons, then what runs, waits and ended."""

    def __init__(self, view: PoolView, chosen: Watched) -> None:
        self.screen = Screen()
        self._view = view
        self._chosen = chosen

    def show(self, changes: Sequence[Change]) -> None:
        """Draw it again; also where nothing changed, since runs get older."""
        state = "" if self._view.connected else click.style("   NATS is not reached; trying again", fg="red")
        keys = click.style(f"pool {self._chosen.pool}, q leaves{state}", dim=not state)
        self.screen.show([_styled(line) for line in (*self.lines(self.screen.rows - 1), keys)])

    def lines(self, most: int) -> list[str]:
        """Return so many lines."""
        daemons = sorted(self._view.daemons.values(), key=lambda one: (-one.running, one.daemon.name))
        head = [totals_line(self._view.totals), "", *daemon_lines(daemons[:_MOST_DAEMONS])]
        if len(daemons) > _MOST_DAEMONS:
            head.append(f"and {counted(len(daemons) - _MOST_DAEMONS, 'daemon')} more")
        rows = by_urgency(row for row in self._view.runs.values() if self._chosen.shows(row))
        # Only those that fit are laid out: there may be thousands, and this is done every second.
        room = max(most - len(head) - 3, 1)
        left = [f"and {counted(len(rows) - room, 'run')} more"] if len(rows) > room else []
        return [*head, "", *run_lines(rows[:room]), *left][:most]


def _phrase(change: Change) -> str:
    if change.run is not None:
        return run_phrase(change.run)
    one = change.daemon or change.gone
    assert one is not None
    state = "gone" if change.gone else f"{one.running}/{one.slots} slots" + (", draining" if one.draining else "")
    return f"daemon {brief(one.daemon.name, 30)} on {brief(one.daemon.host, 30)}  {state}"


def _styled(line: str) -> str:
    """Return a line in colours or without, as this command writes to its streams."""
    context = click.get_current_context(silent=True)
    return click.unstyle(line) if context is not None and context.color is False else line
