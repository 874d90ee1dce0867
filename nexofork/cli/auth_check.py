"""``nexofork auth check``: attack a server with each role's key, and say what could be done."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nexofork.auth.book import ROLES
from nexofork.auth.check import check_server
from nexofork.auth.folder import BOOK, read_book
from nexofork.bus.connection import BusSettings
from nexofork.cli.exit_codes import NOT_COMPLETED, OK
from nexofork.cli.options import json_option, server_options, token
from nexofork.cli.output import brief, print_json
from nexofork.cli.session import finish
from nexofork.errors import BadAuth
from nexofork.wire.subjects import DEFAULT_POOL

if TYPE_CHECKING:
    from nexofork.auth.book import Role
    from nexofork.auth.check import Outcome
    from nexofork.cli.options import Target

__all__ = ["check"]


@click.command()
@server_options
@click.option(
    "--seeds",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="Seeds of every role: what `auth init` made, or a folder like its `seeds`.",
)
@click.option("--tenant", "tenants", type=token, multiple=True, metavar="NAME", help="These alone.  [default: all]")
@click.option("--pool", "pools", type=token, multiple=True, metavar="NAME", help="These alone.  [default: all]")
@json_option
def check(
    *,
    target: Target,
    seeds: Path,
    tenants: tuple[str, ...],
    pools: tuple[str, ...],
    as_json: bool,
) -> None:
    """Try as each role what it must not be able to do; exit code 1 if anything succeeds.

    Can be run on a server in use: the attempts name runs and keys that nobody has, or ask for what would be refused
    to everybody. Messages that they leave behind are named at the end, and expire.
    """
    files = _seed_files(seeds, tenants)
    chosen = pools or _pools(seeds)
    settings = BusSettings(urls=target.urls, ca=target.ca)
    finish(lambda: _check(settings, files, chosen, as_json=as_json))


async def _check(
    settings: BusSettings, files: dict[str, dict[Role, Path]], pools: tuple[str, ...], *, as_json: bool
) -> int:
    outcomes: list[Outcome] = []

    def tell(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if as_json:
            print_json(asdict(outcome))
        else:
            click.echo(_line(outcome))

    # Every attack that is refused would be a warning, and that is what is hoped for.
    quiet = logging.getLogger("nexofork.bus.connection")
    usual = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        left = await check_server(settings, files, pools=pools, tell=tell)
    finally:
        quiet.setLevel(usual)
    succeeded = [outcome for outcome in outcomes if not outcome.refused]
    if as_json:
        print_json({"attacks": len(outcomes), "succeeded": len(succeeded), "left_behind": left})
    else:
        click.echo(f"{len(outcomes)} attacks, {len(succeeded)} succeeded.")
        if left:
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            click.echo(f"Left behind, until they expire: {', '.join(left[:3])}{more}.")
    return NOT_COMPLETED if succeeded else OK


def _line(outcome: Outcome) -> str:
    who = f"{outcome.tenant} {outcome.role}".strip()
    if outcome.refused:
        return f"passed  {who}: {outcome.what} ({brief(outcome.detail, 120)})"
    return click.style("FAILED", fg="red") + f"  {who} could {outcome.what}: {brief(outcome.detail, 400)}"


def _seed_files(folder: Path, tenants: tuple[str, ...]) -> dict[str, dict[Role, Path]]:
    """Return one seed of each role by tenant.

    Raises:
        BadAuth: A tenant is not there, or a role of it has no seed.
    """
    root = folder / "seeds" if (folder / "seeds").is_dir() else folder
    try:
        there = sorted(path.name for path in root.iterdir() if path.is_dir())
    except OSError as exc:
        raise BadAuth(f"{root} cannot be read ({exc.strerror})", fix="Name a folder with seeds.") from exc
    names = tenants or tuple(there)
    if not names:
        raise BadAuth(f"{root} holds no seeds", fix="Name a folder made by `nexofork auth init`.")
    found: dict[str, dict[Role, Path]] = {}
    for name in names:
        found[name] = {
            role: seed for role in ROLES if (seed := next(iter(sorted((root / name / role).glob("*.nk"))), None))
        }
        if missing := [role for role in ROLES if role not in found[name]]:
            raise BadAuth(
                f"{root / name} has no seed of {', '.join(missing)}",
                fix="The check needs one of each role: they are ROLE/NAME.nk in the tenant's folder.",
            )
    return found


def _pools(folder: Path) -> tuple[str, ...]:
    for home in (folder, folder.parent):
        if (home / BOOK).exists():
            return read_book(home).tenants[0].pools
    return (DEFAULT_POOL,)
