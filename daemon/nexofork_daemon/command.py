"""``nexoforkd``: read the settings, connect, serve until told to stop.

The first SIGTERM or SIGINT drains: no new work, running forks finish within their limit. The second does not wait for
that. Once no fork is left, further ones change nothing and the daemon ends with 0. SIGHUP reads the settings again. A
NATS that is not there, at the start or later, is waited for; a signal before the daemon is ready ends it at once. A
server that does not let this daemon in ends it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

from nexofork import __version__
from nexofork.bus.connection import BusSettings, open_bus
from nexofork.cli import run_command
from nexofork.cli.exit_codes import OK
from nexofork.cli.session import finish
from nexofork.cli.setting_options import DAEMON_FILE, DAEMON_VARIABLE, daemon_file, setting_options, surroundings
from nexofork.config.keys import DAEMON_KEYS
from nexofork.config.secrets import find_provider_key
from nexofork.config.settings import read_settings
from nexofork.economics.prices import current_prices
from nexofork.providers.anthropic import AnthropicProvider
from nexofork.sandbox.sandbox import open_sandbox, shared_folders
from nexofork.tools.builtin import BuiltinTools
from nexofork.tools.mcp_config import read_mcp_config
from nexofork_daemon.health import Health, open_health
from nexofork_daemon.logs import start_logging
from nexofork_daemon.run_environment import Environments, open_tool_sources
from nexofork_daemon.service import run_daemon
from nexofork_daemon.settings import (
    LiveSettings,
    Reloader,
    daemon_settings,
    forget_provider_key,
    hide_environment,
    logs_to_journal,
    supervisor,
)
from nexofork_daemon.state_folder import StateFolder
from nexofork_daemon.systemd import Watch
from nexofork_daemon.workspaces import Workspaces

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nexofork.bus.connection import Bus
    from nexofork.config.settings import Settings
    from nexofork.sandbox.sandbox import Sandbox
    from nexofork_daemon.settings import DaemonSettings

__all__ = ["main"]

log = logging.getLogger(__name__)

_STOPPING = (signal.SIGINT, signal.SIGTERM)
_DENIED_S = 30.0
"""How long NATS may refuse a running daemon before it ends: longer than a server takes to be configured anew."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    metavar="FILE",
    help=f"Settings file. Also from {DAEMON_VARIABLE}.  [default: {DAEMON_FILE} if there]",
)
@setting_options(DAEMON_KEYS, file=daemon_file)
@click.version_option(__version__, prog_name="nexoforkd")
def daemon(*, settings: Settings, config: str | None) -> None:
    """Run forks on this host.

    What is not given by a flag comes from the environment (NEXOFORK_SECTION_NAME, as NEXOFORK_DAEMON_SLOTS), then from
    the settings file. The provider's key comes from ANTHROPIC_API_KEY or a file. Prints `ready` when it can take work.
    SIGTERM drains; a second one hands over at once. SIGHUP reads the settings again.

    Commands run in a sandbox. Where bubblewrap does not work the daemon does not start, unless --sandbox none says that
    they shall run bare; as root that takes --allow-root as well.
    """
    del config  # it was read on the way here, see daemon_file
    start_logging(
        level=settings["daemon.log_level"],
        form=settings["daemon.log_format"],
        host=settings["daemon.name"],
        journal=logs_to_journal(),
    )
    finish(lambda: _daemon(settings), exports=False)


async def _daemon(read: Settings) -> int:
    settings = daemon_settings(read)
    key = find_provider_key(read, surroundings(None).environment)
    servers = read_mcp_config(read["tools.mcp_config"]) if read["tools.mcp_config"] else []
    current_prices()  # a price file that cannot be used is named now, not in the middle of a run
    stop, hurry, watch = asyncio.Event(), asyncio.Event(), Watch(supervisor())
    live = LiveSettings(slots=settings.slots, drain_s=settings.drain_s)
    started = _stop_on_signals(stop, hurry)
    reloader = Reloader(read, read=lambda: _read_again(read), live=live, watch=watch)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.reload)
    try:
        async with (
            open_health(settings, stop) as health,
            _opened_sandbox(settings) as sandbox,
            open_bus(_bus_settings(read), told=lambda what: _waiting(what, health, watch)) as bus,
            AnthropicProvider.from_env(base_url=read["provider.base_url"], api_key=key.value) as provider,
            open_tool_sources(settings, servers) as tool_sources,
        ):
            forget_provider_key()
            await run_daemon(
                settings,
                bus=bus,
                provider=provider,
                environments=Environments(
                    BuiltinTools,
                    tool_sources,
                    sandbox=sandbox,
                    workspaces=Workspaces(
                        StateFolder(settings.state_dir, settings.disk), shared_folders(settings.sandboxing)
                    ),
                ),
                stop=stop,
                ready=lambda: _ready(health, bus, watch, started),
                hurry=hurry,
                live=live,
                watch=watch,
            )
    except asyncio.CancelledError:
        if started.is_set() or not stop.is_set():
            raise
        log.info("told to stop before it was ready")
    for number in _STOPPING:
        signal.signal(number, signal.SIG_IGN)  # nothing is left to stop, so the daemon ends well
    return OK


@asynccontextmanager
async def _opened_sandbox(settings: DaemonSettings) -> AsyncIterator[Sandbox]:
    """Open the sandbox, and warn of one that protects less than it could."""
    if settings.sandbox == "none":
        who = "root" if os.geteuid() == 0 else "this user"
        click.echo(f"WARNING: commands run bare on this host and may do all that {who} may (--sandbox none).", err=True)
    async with open_sandbox(settings.sandboxing) as sandbox:
        if settings.sandbox != "none" and os.geteuid() == 0:
            click.echo(
                "WARNING: this daemon runs as root, so a command that breaks out of the sandbox is root on this host. "
                "Run it as another user (User= in a systemd unit).",
                err=True,
            )
        yield sandbox


def _bus_settings(read: Settings) -> BusSettings:
    return BusSettings(
        urls=read["nats.url"],
        creds=read["nats.creds_file"],
        nkey_seed=read["nats.nkey_file"],
        ca=read["nats.ca_file"],
        name=f"nexoforkd {read['daemon.name']}",
        denied_s=_DENIED_S,
        unreached_s=math.inf,
    )


def _read_again(read: Settings) -> Settings:
    return read_settings(DAEMON_KEYS, read.flags, surroundings(read.file))


def _waiting(what: str, health: Health, watch: Watch) -> None:
    health.waiting = bool(what)
    if what and health.starting:
        watch.waiting()


def _ready(health: Health, bus: Bus, watch: Watch, started: asyncio.Event) -> None:
    started.set()
    health.watch(bus)
    watch.ready()
    click.echo("ready")


def _stop_on_signals(stop: asyncio.Event, hurry: asyncio.Event) -> asyncio.Event:
    """Drain at the first signal, hand over at the second.

    The handlers are not the loop's: when it closes it would leave the signals to kill the process.

    Returns:
        To be set once the daemon is ready. Before that, the first signal ends it.
    """
    loop, started, task = asyncio.get_running_loop(), asyncio.Event(), asyncio.current_task()
    assert task is not None

    def stop_or_hurry() -> None:
        if stop.is_set():
            hurry.set()
            return
        stop.set()
        if not started.is_set():
            task.cancel()

    for number in _STOPPING:
        loop.remove_signal_handler(number)
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop_or_hurry))
    return started


def main() -> None:
    """Run the daemon's command line."""
    hide_environment()
    sys.exit(run_command(daemon, name="nexofork daemon"))
