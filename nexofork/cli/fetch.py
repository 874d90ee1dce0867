"""``nexofork fetch``: take what finished runs committed into a repository; merging is left to its owner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nexofork.bus.run_log import RunLog
from nexofork.cli.exit_codes import OK
from nexofork.cli.options import json_option, target_options
from nexofork.cli.output import brief, counted, print_json
from nexofork.cli.run_ids import resolve_runs, runs_argument
from nexofork.cli.session import finish, open_target
from nexofork.client.fleet import FleetSettings, NatsForkSubagent
from nexofork.errors import ForkRefused
from nexofork.wire.messages import Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.cli.options import Target
    from nexofork.run.result import ForkResult
    from nexofork.workspace.fetch import Fetched

__all__ = ["fetch"]

_SHOWN = 20


@click.command()
@runs_argument(required=True)
@click.option(
    "--repo",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The repository; the one that was forked from unless said.",
)
@json_option
@target_options
def fetch(run_ids: tuple[str, ...], *, repo: Path | None, as_json: bool, target: Target) -> None:
    """Take the commits of finished runs into refs/forks/RUN_ID of a repository.

    Says what they change and whether they would merge; merges nothing. Doing it twice is harmless. Exits with 0 if all
    of it was taken, or a run had changed nothing (with --json `fetched` is false), 2 if something cannot be: a run that
    is not over, had no git workspace or lost its work, or a repository that lacks the commit it began with; 3 if NATS
    is not reachable.
    """
    finish(lambda: _fetch(run_ids, repo, as_json=as_json, target=target))


async def _fetch(given: Sequence[str], repo: Path | None, *, as_json: bool, target: Target) -> int:
    settings = FleetSettings(pool=target.pool)
    async with open_target(target) as bus, NatsForkSubagent(bus, settings) as forks:
        run_ids = await resolve_runs(bus, given, pool=target.pool)
        handles = [await forks.attach(run_id) for run_id in run_ids]
        for handle in handles:
            last = await RunLog(bus, handle.run_id, pool=target.pool).entries()
            if not any(isinstance(entry.message, Final) for entry in last):
                raise ForkRefused(f"Run {handle.run_id} is not over; wait for it with `nexofork wait`.")
            if _changed_nothing(await handle.result()):
                _print_nothing(handle.run_id, as_json=as_json)
                continue
            fetched = await handle.fetch(repo)
            if as_json:
                print_json({"fetched": True, **fetched.to_json()})
            else:
                _print(fetched)
    return OK


def _changed_nothing(result: ForkResult) -> bool:
    """Whether there is nothing to take because nothing was done; what was lost is another matter."""
    work = result.workspace
    return work is not None and work.bundle is None and not work.problem


def _print_nothing(run_id: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"fetched": False, "run_id": run_id})
    else:
        click.echo(f"Run {run_id} changed nothing; there is nothing to fetch.")


def _print(fetched: Fetched) -> None:
    click.echo(f"{fetched.ref} in {fetched.root}")
    for commit in fetched.commits[:_SHOWN]:
        click.echo(f"  {commit.id[:12]} {brief(commit.subject, 100)}")
    for file in fetched.files[:_SHOWN]:
        counts = "binary" if file.added is None else f"+{file.added} -{file.deleted}"
        click.echo(f"  {brief(file.path, 100)}  {counts}")
    if len(fetched.files) > _SHOWN:
        click.echo(f"  and {counted(len(fetched.files) - _SHOWN, 'file')} more")
    if fetched.merges:
        first = "once yours is committed" if fetched.in_the_way else "cleanly"
        click.echo(f"Merges {first}: git merge {fetched.ref}")
    elif fetched.conflicts:
        click.echo(brief(f"Conflicts with HEAD in: {', '.join(fetched.conflicts)}", 2000))
    else:
        click.echo(f"HEAD has no history in common with it any more; take it with git cherry-pick {fetched.ref}")
    if fetched.in_the_way:
        click.echo(brief(f"Commit or stash first, it holds them too: {', '.join(fetched.in_the_way)}", 2000))
    if fetched.problem:
        click.echo(f"Not all of it came back: {brief(fetched.problem, 500)}")
