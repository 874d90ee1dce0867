"""Where the events of watched runs go: JSON lines on stdout, or progress for people on stderr.

Progress is on stderr so that a summary can be piped. On a terminal every child has one line that changes; anywhere else
every event is a line of its own.
"""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import click

from nexofork.cli.columns import clipped
from nexofork.cli.event_lines import event_object, event_phrase
from nexofork.cli.output import brief, print_json
from nexofork.cli.terminal import can_redraw
from nexofork.run.events import CacheBreakDetected, ForkAsked, ForkEnded, ForkStarted

if TYPE_CHECKING:
    from nexofork.run.events import ForkEvent

__all__ = ["EventLines", "LiveProgress", "PlainProgress", "ResultLines", "Sink", "people_sink"]

_NAME_WIDTH = 34


class Sink(Protocol):
    """Takes what happens."""

    def event(self, run_id: str, event: ForkEvent) -> None:
        """Take an event of a run."""

    def tick(self) -> None:
        """A moment has passed."""

    def note(self, text: str) -> None:
        """Take something to tell the caller that is no event."""


class _Notes:
    """Notes go to stderr, and time passes unnoticed."""

    def tick(self) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Print a note."""
        click.echo(text, err=True)


class ResultLines(_Notes):
    """Prints a child's result when it has one."""

    def event(self, run_id: str, event: ForkEvent) -> None:
        """Print the result if this is the end."""
        if isinstance(event, ForkEnded):
            print_json(event.result.to_json())


class EventLines(_Notes):
    """Prints everything."""

    def event(self, run_id: str, event: ForkEvent) -> None:
        """Print the event."""
        print_json(event_object(event))


@dataclass(slots=True)
class _Advice:
    """Tells what to do: about a question, and once per cause about a missed cache, which siblings mostly share."""

    _told: set[str] = field(default_factory=set)

    def note(self, run_id: str, event: ForkEvent) -> str:
        """Return what to tell about an event; empty where there is nothing, or nothing new."""
        if isinstance(event, ForkAsked) and event.what == "permission":
            limit = f" within {event.deadline_s:.0f} s" if event.deadline_s else ""
            return f"Answer{limit}: nexofork answer {run_id} {event.ask_id} allow (or deny)."
        if not isinstance(event, CacheBreakDetected) or not event.check.cause or event.check.cause in self._told:
            return ""
        self._told.add(event.check.cause)
        why = brief(event.check.detail, 600)
        return f"Cache missed ({event.check.cause}): {why} More with `nexofork explain {run_id}`."


class PlainProgress(_Notes):
    """Prints a line per event, for logs and pipes."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._advice = _Advice()

    def event(self, run_id: str, event: ForkEvent) -> None:
        """Print what happened and to whom."""
        name = _name_of(self._names, run_id, event)
        if phrase := event_phrase(event):
            click.echo(f"{name:<{_NAME_WIDTH}} {brief(phrase, 200)}", err=True)
        if told := self._advice.note(run_id, event):
            self.note(told)


@dataclass(slots=True)
class _Line:
    name: str
    phrase: str
    since: float
    over: bool = False


@dataclass(slots=True)
class LiveProgress:
    """Keeps one line per child up to date on a terminal."""

    _lines: dict[str, _Line] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _advice: _Advice = field(default_factory=_Advice)
    _drawn: int = 0

    def event(self, run_id: str, event: ForkEvent) -> None:
        """Change the child's line."""
        if told := self._advice.note(run_id, event):
            self.note(told)
        name = _name_of(self._names, run_id, event)
        line = self._lines.setdefault(run_id, _Line(name, "", time.monotonic()))
        line.name = name
        if phrase := event_phrase(event):
            line.phrase, line.since, line.over = brief(phrase, 200), time.monotonic(), isinstance(event, ForkEnded)
        self._draw()

    def tick(self) -> None:
        """Show how long nothing has happened."""
        self._draw()

    def note(self, text: str) -> None:
        """Print a note above the lines."""
        self._erase()
        click.echo(text, err=True)
        self._draw()

    def _draw(self) -> None:
        self._erase()
        columns, rows = shutil.get_terminal_size()
        # A block taller than the screen cannot be redrawn: the children that still run are the ones to show.
        shown = sorted(self._lines.values(), key=lambda line: line.over)[: max(rows - 2, 1)]
        for line in shown:
            quiet = "" if line.over else f" ({time.monotonic() - line.since:.0f} s)"
            click.echo(clipped(f"{line.name:<{_NAME_WIDTH}} {line.phrase}{quiet}", columns - 1), err=True)
        self._drawn = len(shown)

    def _erase(self) -> None:
        if self._drawn:
            sys.stderr.write(f"\x1b[{self._drawn}A\x1b[J")
        self._drawn = 0


def people_sink() -> Sink:
    """Return the progress that suits where stderr goes."""
    if can_redraw(sys.stderr):
        return LiveProgress()
    return PlainProgress()


def _name_of(names: dict[str, str], run_id: str, event: ForkEvent) -> str:
    if isinstance(event, ForkStarted):
        names[run_id] = brief(event.directive, _NAME_WIDTH)
    elif isinstance(event, ForkEnded) and event.result.directive:
        names[run_id] = brief(event.result.directive, _NAME_WIDTH)
    return names.get(run_id, brief(run_id, _NAME_WIDTH))
