"""``nexofork auth``: make, change and check the keys and permissions of a NATS server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nexofork.auth.book import ROLES
from nexofork.auth.folder import (
    add_user,
    create,
    extend,
    finish_rotation,
    read_book,
    remove_user,
    rotate,
    start_rotation,
)
from nexofork.cli.auth_check import check
from nexofork.cli.auth_server import certificate, host_and_port, nodes, server_of
from nexofork.cli.exit_codes import BAD_INPUT
from nexofork.cli.groups import HelpfulGroup
from nexofork.cli.options import json_option, token
from nexofork.cli.output import plain, print_json, print_table
from nexofork.errors import BadAuth
from nexofork.wire.subjects import DEFAULT_POOL

if TYPE_CHECKING:
    from nexofork.auth.book import Book, Role

__all__ = ["auth"]

_FOLDER = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
_ROLE = click.argument("role", type=click.Choice(ROLES))
_NAME = click.argument("name", type=token)
_TENANT = click.option("--tenant", type=token, metavar="NAME", help="Needed where there are several.")
_FORCE = click.option("--force", is_flag=True, help="Render again even if the configuration was edited by hand.")


class _Auth(HelpfulGroup):
    """What cannot be done is said in one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BadAuth as exc:
            click.echo(plain(f"Error: {exc}"), err=True)
            raise click.exceptions.Exit(BAD_INPUT) from exc


@click.group(cls=_Auth)
def auth() -> None:
    """Make, change and check the keys and permissions of a NATS server.

    DIR holds the configuration of the server, public keys only, and below `seeds` the secret of each user. Give every
    daemon, parent and observer the file with its own seed, and nothing else.
    """


auth.add_command(check)


@auth.command()
@_FOLDER
@click.option("--tenant", "tenants", type=token, multiple=True, metavar="NAME", help="Several share nothing.")
@click.option("--pool", "pools", type=token, multiple=True, metavar="NAME", help=f"[default: {DEFAULT_POOL}]")
@click.option(
    "--listen",
    type=host_and_port,
    metavar="HOST[:PORT]",
    default="127.0.0.1:4222",
    show_default=True,
    help="For clients.",
)
@click.option("--store", type=click.Path(path_type=Path), help="Where the server keeps its data.  [default: DIR/store]")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="The server's certificate.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Its key.")
@click.option(
    "--tls-ca", type=click.Path(path_type=Path), help="The authority that signed it; guards the cluster, too."
)
@click.option(
    "--cluster",
    type=nodes,
    metavar="NAME=HOST[:PORT[:ROUTE_PORT]],…",
    default="",
    help="Three or five servers; one configuration for each.",
)
@click.option(
    "--replicas", type=click.IntRange(1, 5), help="Copies of every stream.  [default: 3 on a cluster, else 1]"
)
@click.option(
    "--sync-always/--no-sync-always",
    default=None,
    help="Sync every write before it is acknowledged; otherwise a power failure may take two minutes of them. "
    "[default: on a cluster]",
)
@json_option
def init(*, folder: Path, tenants: tuple[str, ...], pools: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Make keys for every role and the configuration of a server that tells them apart."""
    folder = folder.absolute()
    files = [given.pop(name) for name in ("tls_cert", "tls_key", "tls_ca")]
    tls = certificate(*files, listen=given["listen"], cluster=given["cluster"])
    server = server_of(folder, tls=tls, **given)
    book = create(folder, server, tenants=tenants or ("default",), pools=pools or (DEFAULT_POOL,))
    if as_json:
        print_json({"folder": folder, "seeds": folder / "seeds", "tenants": [one.model_dump() for one in book.tenants]})
    else:
        _next_steps(folder, book)


@auth.command()
@_FOLDER
@_ROLE
@_NAME
@_TENANT
@_FORCE
@json_option
def add(*, folder: Path, role: Role, name: str, tenant: str | None, force: bool, as_json: bool) -> None:
    """Give another daemon, parent, observer or admin a key of its own."""
    seed = add_user(folder, role, name, tenant=tenant, force=force)
    _done(folder, f"The seed of {role} {name} is in {seed}.", as_json=as_json, role=role, name=name, seed=seed)


@auth.command(name="rotate")
@_FOLDER
@_ROLE
@_NAME
@_TENANT
@click.option("--grace", is_flag=True, help="Keep the old key valid until --finish.")
@click.option("--finish", is_flag=True, help="Take the old key away.")
@_FORCE
@json_option
def rotate_key(
    *, folder: Path, role: str, name: str, tenant: str | None, grace: bool, finish: bool, force: bool, as_json: bool
) -> None:
    """Give a user another key: at once, or in two steps with --grace and --finish."""
    if grace and finish:
        raise click.UsageError("--grace is the first step and --finish the second; give one of them.")
    step = start_rotation if grace else finish_rotation if finish else rotate
    words = (
        "The old key stays valid until `--finish`. The new seed is in"
        if grace
        else "The old key is gone. The seed is in"
    )
    seed = step(folder, role, name, tenant=tenant, force=force)
    _done(folder, f"{words} {seed}.", as_json=as_json, role=role, name=name, seed=seed, old_key_valid=grace)


@auth.command()
@_FOLDER
@_ROLE
@_NAME
@_TENANT
@_FORCE
@json_option
def remove(*, folder: Path, role: str, name: str, tenant: str | None, force: bool, as_json: bool) -> None:
    """Take a user's key away and delete its seed."""
    remove_user(folder, role, name, tenant=tenant, force=force)
    _done(folder, "Removed.", as_json=as_json, role=role, name=name)


@auth.command(name="extend")
@_FOLDER
@click.option("--tenant", "tenants", type=token, multiple=True, metavar="NAME", help="With a user of each role.")
@click.option("--pool", "pools", type=token, multiple=True, metavar="NAME", help="For every tenant.")
@_FORCE
@json_option
def extend_server(
    *, folder: Path, tenants: tuple[str, ...], pools: tuple[str, ...], force: bool, as_json: bool
) -> None:
    """Add tenants and pools; existing keys stay as they are."""
    if not tenants and not pools:
        raise click.UsageError("Name a --tenant or a --pool to add.")
    extend(folder, tenants=tenants, pools=pools, force=force)
    # Measured with nats-server 2.15: accounts that are new find each other at the second reload.
    twice = " Do that twice: new accounts find each other at the second time." if tenants else ""
    then = f"{twice} Then let each admin run `nexofork provision` for every new pool."
    _done(folder, "Added.", then, as_json=as_json, tenants=tenants, pools=pools)


@auth.command(name="list")
@_FOLDER
@json_option
def list_users(*, folder: Path, as_json: bool) -> None:
    """Show tenants, pools and users with their public keys."""
    book = read_book(folder)
    if as_json:
        for tenant in book.tenants:
            print_json(tenant.model_dump())
        return
    rows = [
        (tenant.name, user.role, user.name, key, "old" if len(user.keys) > 1 and key == user.keys[0] else "")
        for tenant in book.tenants
        for user in tenant.users
        for key in user.keys
    ]
    print_table(("TENANT", "ROLE", "NAME", "PUBLIC KEY", ""), rows)
    click.echo(f"Pools: {', '.join(book.tenants[0].pools)}")


def _done(folder: Path, words: str, then: str = "", *, as_json: bool, **facts: Any) -> None:
    """Say what was done and what is to be done now."""
    if as_json:
        print_json({**facts, "next": f"{_reload(folder)}{then}"})
    else:
        click.echo(f"{words} {_reload(folder)}{then}")


def _reload(folder: Path) -> str:
    where = "every server" if read_book(folder).server.cluster else "the server"
    return f"Tell {where} with `nats-server --signal reload`; the others stay connected."


def _next_steps(folder: Path, book: Book) -> None:
    server = book.server
    seeds, scheme = folder / "seeds" / book.tenants[0].name, "tls" if server.tls else "nats"
    host = server.cluster[0].host if server.cluster else server.host
    port = server.cluster[0].port if server.cluster else server.port
    ca = f" --nats-ca {server.tls.ca}" if server.tls and server.tls.ca else ""
    at = f"--nats {scheme}://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}{ca} --nkey {seeds}"
    config = folder / (f"nats-server-{server.cluster[0].name}.conf" if server.cluster else "nats-server.conf")
    click.echo(f"Keys are below {folder / 'seeds'}: guard them. Next:")
    click.echo(f"  nats-server -c {config}" + ("   # and the others on their hosts" if server.cluster else ""))
    for pool in book.tenants[0].pools:
        named = "" if pool == DEFAULT_POOL else f" --pool {pool}"
        click.echo(f"  nexofork provision {at}/admin/default.nk --replicas {server.replicas}{named}")
    click.echo(f"  nexofork daemon {at}/daemon/default.nk")
    click.echo(f"  nexofork fork {at}/parent/default.nk …")
    click.echo(f"  nexofork auth check {at.partition(' --nkey')[0]} --seeds {folder}")
    if len(book.tenants) > 1:
        click.echo(
            f"The same for tenants {', '.join(tenant.name for tenant in book.tenants[1:])} with their own seeds."
        )
