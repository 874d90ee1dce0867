"""``nexoforkd``: read the settings, connect, serve until told to stop.

The first SIGTERM or SIGINT drains: no new work, running forks finish within their limit. The second does not wait for
that. A connection that is lost later is restored for ever; only one that never was ends the daemon.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Any

import click

from nexofork import __version__
from nexofork.bus.connection import BusSettings, open_bus
from nexofork.cli import run_command
from nexofork.cli.exit_codes import OK
from nexofork.cli.options import has_api_key, seconds, seconds_or_zero, target_options
from nexofork.cli.session import finish, on_signals
from nexofork.economics.prices import current_prices
from nexofork.engine.tools.builtin import BuiltinTools
from nexofork.errors import ForkRefused
from nexofork.providers.anthropic import AnthropicProvider
from nexofork_daemon.service import run_daemon
from nexofork_daemon.settings import DaemonSettings

if TYPE_CHECKING:
    from nexofork.cli.options import Target

__all__ = ["main"]

_DEFAULT = DaemonSettings()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--slots", type=int, default=_DEFAULT.slots, show_default=True, help="How many forks run at once.")
@click.option("--name", default=_DEFAULT.name, show_default=True, help="What this daemon calls itself.")
@click.option(
    "--lease-s",
    type=seconds,
    metavar="SECONDS",
    default=_DEFAULT.lease_s,
    show_default=True,
    help="Silence before a takeover.",
)
@click.option(
    "--drain-s",
    type=seconds_or_zero,
    metavar="SECONDS",
    default=_DEFAULT.drain_s,
    show_default=True,
    help="Time to finish.",
)
@click.option(
    "--leader-wait-s",
    type=seconds_or_zero,
    metavar="SECONDS",
    default=_DEFAULT.leader_wait_s,
    show_default=True,
    help="Longest wait for a sibling that writes the common prefix.",
)
@click.option(
    "--sandbox",
    type=click.Choice(["auto", "bwrap", "none"]),
    default="auto",
    show_default=True,
    help="What commands run in; bwrap comes with a later version.",
)
@click.option("--config", metavar="FILE", help="Comes with a later version.")
@target_options
@click.version_option(__version__, prog_name="nexoforkd")
def daemon(*, target: Target, sandbox: str, config: str | None, **settings: Any) -> None:
    """Run forks on this host.

    The provider's key comes from ANTHROPIC_API_KEY, its address from ANTHROPIC_BASE_URL. Prints `ready` when it can
    take work. SIGTERM drains; a second one hands over at once.
    """
    if sandbox == "bwrap":
        raise click.UsageError("--sandbox bwrap comes with a later version; use auto or none.")
    if config is not None:
        raise click.UsageError("--config comes with a later version; use the options.")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    finish(lambda: _daemon(target, sandbox, settings))


async def _daemon(target: Target, sandbox: str, given: dict[str, Any]) -> int:
    settings = DaemonSettings(pool=target.pool, **given)
    if not has_api_key():
        raise ForkRefused(
            "There is no key for the provider: set ANTHROPIC_API_KEY (and ANTHROPIC_BASE_URL for a proxy)."
        )
    current_prices()  # a price file that cannot be used is named now, not in the middle of a run
    if sandbox == "auto":
        click.echo("Commands run unsandboxed on this host.", err=True)
    bus_settings = BusSettings(
        urls=target.urls, creds=target.creds, nkey_seed=target.nkey, name=f"nexoforkd {settings.name}"
    )
    stop = asyncio.Event()
    hurry = asyncio.Event()
    _stop_on_signals(stop, hurry)
    async with open_bus(bus_settings) as bus, AnthropicProvider.from_env() as provider:
        await run_daemon(
            settings,
            bus=bus,
            provider=provider,
            tools=BuiltinTools(),
            stop=stop,
            ready=lambda: click.echo("ready"),
            hurry=hurry,
        )
    return OK


def _stop_on_signals(stop: asyncio.Event, hurry: asyncio.Event) -> None:
    """Drain at the first signal, hand over at the second."""

    def stop_or_hurry() -> None:
        if stop.is_set():
            hurry.set()
        stop.set()

    on_signals(stop_or_hurry)


def main() -> None:
    """Run the daemon's command line."""
    sys.exit(run_command(daemon, name="nexofork daemon"))
