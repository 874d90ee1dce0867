"""``nexofork sidecar``: what a session wants done beside it, from its recorded request; each reads its cache."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nexofork.agents.sidecars import SidecarHost, away, btw, dream, session_memory, suggest
from nexofork.cli.exit_codes import BAD_INPUT, NOT_COMPLETED, OK
from nexofork.cli.fork_order import tool_name_option
from nexofork.cli.hosting import local_option, open_hosting
from nexofork.cli.options import json_option, seconds, target_options
from nexofork.cli.output import brief, plain, print_json
from nexofork.cli.parent_files import read_snapshot, snapshot_options
from nexofork.cli.session import finish
from nexofork.core.query_source import QuerySource
from nexofork.core.snapshot import CacheSafeSlot
from nexofork.providers.failures import Unauthorized

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nexofork.agents.sidecars import DreamResult, NotesResult
    from nexofork.agents.sidecars.speech import Said
    from nexofork.cli.options import Target
    from nexofork.run.result import ForkResult

    Run = Callable[[SidecarHost], Awaitable[Any]]

__all__ = ["sidecar"]

_FOLDER = click.Path(path_type=Path)


@click.group()
def sidecar() -> None:
    """Work beside a session: memory, notes, answers in passing.

    All of them go on from the session's recorded request and reply, read what its last turn left in the prompt cache,
    and never enter its conversation. Exits with 0 if it completed or was not needed, 1 if not, 2 on bad input, 3 if
    NATS is not reachable, 130 after Ctrl-C, which aborts it.
    """


def _options(seconds_at_most: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return what adds the options that all of them have."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        timeout = click.option(
            "--timeout",
            type=seconds,
            metavar="SECONDS",
            default=seconds_at_most,
            show_default=True,
            help="Give up after.",
        )
        for option in (target_options, json_option, tool_name_option, local_option, timeout, snapshot_options):
            command = option(command)
        return command

    return add


@sidecar.command("dream")
@click.option("--memory", type=_FOLDER, metavar="DIR", required=True, help="The folder with the notes.")
@click.option("--watch", "watched", type=_FOLDER, metavar="DIR", multiple=True, help="Report changes here as well.")
@click.option("--stale", type=seconds, metavar="SECONDS", default=120.0, help="When a lock is stale.")
@click.option("--owner", default="", help="Who dreams, for whoever finds the lock.")
@click.option("--force", is_flag=True, help="Also where nothing is new.")
@_options(600.0)
def dream_command(
    *, memory: Path, watched: tuple[Path, ...], stale: float, owner: str, force: bool, timeout: float, **common: Any
) -> None:
    """Consolidate the notes in a folder: one at a time, and only where something is new."""

    async def run(host: SidecarHost) -> DreamResult:
        return await dream(host, memory, watched=watched, owner=owner, stale_s=stale, timeout_s=timeout, force=force)

    _finish(run, _tell_dream, **common)


@sidecar.command("session-memory")
@click.option("--notes", type=_FOLDER, metavar="FILE", required=True, help="Where the session's notes are kept.")
@_options(120.0)
def session_memory_command(*, notes: Path, timeout: float, **common: Any) -> None:
    """Bring the notes of a session up to date."""
    _finish(lambda host: session_memory(host, notes, timeout_s=timeout), _tell_notes, **common)


@sidecar.command("away")
@click.option("--since", default="", metavar="TEXT", help="How long the user was away, in words.")
@_options(120.0)
def away_command(*, since: str, timeout: float, **common: Any) -> None:
    """Say what happened while the user was away."""
    _finish(lambda host: away(host, since=since, timeout_s=timeout), _tell_said, **common)


@sidecar.command("suggest")
@_options(30.0)
def suggest_command(*, timeout: float, **common: Any) -> None:
    """Guess the user's next message; prints nothing where none is likely."""
    _finish(lambda host: suggest(host, timeout_s=timeout), _tell_said, **common)


@sidecar.command("btw")
@click.argument("question")
@_options(120.0)
def btw_command(question: str, *, timeout: float, **common: Any) -> None:
    """Answer a question in passing, without tools."""
    _finish(lambda host: btw(host, question, timeout_s=timeout), _tell_said, **common)


def _finish(run: Run, tell: Callable[[Any, bool], ForkResult | None], **common: Any) -> None:
    finish(lambda: _host(run, tell, **common))


async def _host(
    run: Run,
    tell: Callable[[Any, bool], ForkResult | None],
    *,
    target: Target,
    local: bool,
    tool_names: tuple[str, ...],
    as_json: bool,
    **files: Any,
) -> int:
    slot = CacheSafeSlot()
    slot.save(read_snapshot(**files), QuerySource.SDK)
    async with open_hosting(target, local=local, tool_names=tool_names) as hosting:
        done = await run(SidecarHost(forks=hosting.forks, source=slot, equip=hosting.equip))
    result = tell(done, as_json)
    if result is not None and not result.ok and not as_json:
        click.echo(f"{result.run_id}: {result.status}. {brief(result.error or result.end, 400)}", err=True)
    if done.ok:
        return OK
    # The key of a run in this process is the caller's to give; that of a daemon is not.
    without_key = local and result is not None and result.end == Unauthorized.__name__
    return BAD_INPUT if without_key else NOT_COMPLETED


def _tell_said(said: Said, as_json: bool) -> ForkResult:
    if as_json:
        print_json({"text": said.text, "ok": said.ok, "result": said.result.to_json()})
    elif said.text:
        click.echo(plain(said.text))
    return said.result


def _tell_notes(kept: NotesResult, as_json: bool) -> ForkResult:
    if as_json:
        print_json({"changed": kept.changed, "reason": kept.reason, "ok": kept.ok, "result": kept.result.to_json()})
    else:
        click.echo("The notes were written." if kept.changed else f"The notes are as they were: {plain(kept.reason)}.")
    return kept.result


def _tell_dream(dreamt: DreamResult, as_json: bool) -> ForkResult | None:
    if as_json:
        print_json(dreamt.to_json())
        return dreamt.result
    if dreamt.skipped:
        click.echo(f"Not dreamed: {plain(dreamt.reason)}.")
    for change in dreamt.changed:
        click.echo(f"{change.what:<8} {plain(change.path)}")
    if dreamt.result is not None and dreamt.result.ok:
        click.echo(plain(dreamt.result.final_text))
    for one in dreamt.audit:
        click.echo(f"{one['what']} {plain(one['path'])}, which no dream may change.", err=True)
    if not dreamt.audited:
        click.echo("Not everything could be looked at for changes that no dream may make.", err=True)
    return dreamt.result
