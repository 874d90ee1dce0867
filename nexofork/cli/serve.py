"""``nexofork serve``: a NATS server for one machine, in the foreground, with everything the fleet needs on it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from nexofork.bus.connection import BusSettings, open_bus
from nexofork.bus.embedded import EmbeddedServer
from nexofork.bus.failures import ServerFailed
from nexofork.bus.provisioning import provision
from nexofork.cli.exit_codes import OK
from nexofork.cli.options import json_option, token
from nexofork.cli.output import print_json
from nexofork.cli.session import finish, on_signals
from nexofork.wire.subjects import DEFAULT_POOL

__all__ = ["serve"]

_LOOK_S = 0.5
_LOOPBACK = ("127.", "localhost", "::1")


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=4222, show_default=True, help="0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--store", type=click.Path(file_okay=False, path_type=Path), help="Keep the data here between runs.")
@click.option(
    "--pool", type=token, metavar="NAME", default=DEFAULT_POOL, show_default=True, help="The pool to provision."
)
@json_option
def serve(*, port: int, host: str, store: Path | None, pool: str, as_json: bool) -> None:
    """Run a NATS server for one machine; stops with Ctrl-C.

    Prints `ready URL` when it can be used, with --json an object `ready`. It has one account and no passwords, so
    parents and daemons are kept apart by their code alone.
    """
    finish(lambda: _serve(port, host, store, pool, as_json=as_json))


async def _serve(port: int, host: str, store: Path | None, pool: str, *, as_json: bool) -> int:
    stop = asyncio.Event()
    on_signals(stop.set)
    async with EmbeddedServer(port=port, store_dir=store, host=host) as server:
        async with open_bus(BusSettings(urls=(server.url,), name="nexofork-serve")) as bus:
            await provision(bus, pool=pool, lease_s=None, repair=True)  # the server is ours alone
        click.echo(_promise(store), err=True)
        if not host.startswith(_LOOPBACK):
            click.echo(
                f"Warning: {host} can be reached from outside, and this server asks nobody who they are.", err=True
            )
        if as_json:
            print_json({"event": "ready", "url": server.url, "pool": pool, "store": server.store_dir})
        else:
            click.echo(f"ready {server.url}")
        await _until(stop, server)
    return OK


def _promise(store: Path | None) -> str:
    if store is None:
        return "Runs survive the end of any process but this one; give --store DIR to keep them when the server stops."
    return (
        f"Runs are kept in {store} and survive the end of any process; "
        "a power failure can lose those of the last two minutes."
    )


async def _until(stop: asyncio.Event, server: EmbeddedServer) -> None:
    """Return when told to; a server that ends by itself is an error."""
    while not stop.is_set():
        if server.server.ended():
            raise ServerFailed("ended by itself", fix=f"Read the log in {server.store_dir}, and start it again.")
        try:
            async with asyncio.timeout(_LOOK_S):  # a process has no event, only a poll
                await stop.wait()
        except TimeoutError:
            continue
