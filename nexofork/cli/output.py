"""Print results: JSON lines for programs, tables for people.

What a model or a stranger wrote is shown to people without its control characters: a terminal obeys them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from nexofork.cli.columns import table_lines
from nexofork.cli.terminal import plain
from nexofork.run.result import ForkStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexofork.run.result import ForkResult
    from nexofork.wire.workspace import WorkspaceWork

__all__ = ["brief", "coloured", "counted", "plain", "print_json", "print_results", "print_table", "work_phrase"]

_COLOURS = {
    ForkStatus.COMPLETED: "green",
    ForkStatus.RUNNING: "cyan",
    "queued": "yellow",
    "aborting": "yellow",
    ForkStatus.ABORTING_NO_DAEMON: "yellow",
    ForkStatus.ABORTED: "yellow",
}


def print_json(value: Mapping[str, Any]) -> None:
    """Print one object on one line; what is not printable is an escape, because a terminal may show it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    if not text.isprintable():
        text = "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)
    click.echo(text.encode())


def brief(text: object, width: int) -> str:
    """Return the beginning of a text as one line of at most so many characters."""
    line = plain(" ".join(str(text).split()))
    return line if len(line) <= width else line[: max(width - 3, 0)] + "..."


def counted(number: int, noun: str) -> str:
    """Return a number of things, in the plural unless it is one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def coloured(status: str) -> str:
    """Return a status in its colour."""
    return click.style(brief(status, 20), fg=_COLOURS.get(status, "red"))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> None:
    """Print columns as wide as they need to be.

    Args:
        header: The columns' names.
        rows: Cells; they may be coloured.
        right: Which columns are numbers.
    """
    for line in table_lines(header, rows, right=right):
        click.echo(line)


def print_results(results: Sequence[ForkResult]) -> None:
    """Print what finished forks reported, a summary, and below it why any of them did not complete."""
    for result in results:
        if result.final_text.strip():
            click.echo(f"{result.run_id}  {brief(result.directive, 60)}\n{plain(result.final_text.strip())}\n")
    header = ("fork", "status", "daemon", "read", "written", "fresh", "hit", "$")
    print_table(header, [_row(result) for result in results], right=frozenset(range(3, 8)))
    costs = [result.cost_usd for result in results if result.cost_usd is not None]
    done = sum(result.ok for result in results)
    click.echo(f"\n{done} of {len(results)} completed" + (f", ${sum(costs):.4f}" if costs or not results else ""))
    for note in dict.fromkeys(result.cost_note for result in results if result.cost_note):
        click.echo(brief(note, 400), err=True)
    for result in results:
        if result.workspace is not None:
            click.echo(f"{result.run_id}: {work_phrase(result.workspace)}")
    for result in results:
        if not result.ok:
            click.echo(f"{result.run_id}: {result.status}. {brief(_why(result), 400)}".rstrip(), err=True)


def _row(result: ForkResult) -> tuple[str, ...]:
    usage = result.usage
    return (
        brief(result.directive or result.run_id, 36),
        coloured(result.status.value),
        brief(result.daemon or "-", 24),
        f"{usage.cache_read_tokens:,}",
        f"{usage.cache_write_tokens:,}",
        f"{usage.input_tokens:,}",
        f"{usage.hit_ratio:.1%}",
        "-" if result.cost_usd is None else f"{result.cost_usd:.4f}",
    )


def _why(result: ForkResult) -> str:
    if result.error:
        return result.error
    return result.abort.note if result.abort else result.end


def work_phrase(work: WorkspaceWork) -> str:
    """Say in one line what became of a workspace."""
    if work.problem:
        return f"its work could not be kept: {brief(work.problem, 300)}"
    if work.bundle is None:
        return "changed no files"
    files = f"{counted(work.files_changed, 'file')}, +{work.insertions} -{work.deletions}"
    left = ", the last of what was left uncommitted" if work.uncommitted else ""
    return f"{counted(len(work.commits), 'commit')}{left}; {files}; get it with `nexofork fetch`"
