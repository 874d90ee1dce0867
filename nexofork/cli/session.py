"""Run a command's coroutine: signals end it in order, and every expected error ends as one line and an exit code."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click
import uvloop

from nexofork.bus.connection import BusSettings, open_bus
from nexofork.bus.provisioning import provision
from nexofork.cli.exit_codes import INTERRUPTED, code_of, expected_error
from nexofork.errors import NexoforkError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from nexofork.bus.connection import Bus
    from nexofork.cli.options import Target

__all__ = ["finish", "on_signals", "open_target"]


def finish(work: Callable[[], Coroutine[Any, Any, int]]) -> NoReturn:
    """Run a command to its end and leave with its exit code.

    A first SIGINT or SIGTERM cancels the work, which may clean up; a second one cancels the cleaning up.

    Raises:
        click.exceptions.Exit: Always, but for
        BrokenPipeError: Whoever read our output has left.
    """
    logging.basicConfig(level=logging.WARNING, format="nexofork: %(message)s", stream=sys.stderr)
    try:
        code = uvloop.run(_interruptible(work()))
    except asyncio.CancelledError:
        code = INTERRUPTED
    except (NexoforkError, BrokenPipeError, BaseExceptionGroup) as exc:
        error = expected_error(exc)
        if error is None:
            raise
        if isinstance(error, BrokenPipeError):
            raise error from None
        click.echo(f"Error: {' '.join(str(error).split())}", err=True)
        code = code_of(error)
    raise click.exceptions.Exit(code)


async def _interruptible(work: Coroutine[Any, Any, int]) -> int:
    task = asyncio.current_task()
    assert task is not None
    on_signals(lambda: task.cancel())
    return await work


def on_signals(callback: Callable[[], object]) -> None:
    """Call back on every SIGINT and SIGTERM from here on."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, callback)


@asynccontextmanager
async def open_target(target: Target, *, name: str = "nexofork-cli") -> AsyncIterator[Bus]:
    """Connect to NATS and make sure that the pool's streams are there.

    Raises:
        BusError: NATS was not reached or refused.
    """
    settings = BusSettings(urls=target.urls, creds=target.creds, nkey_seed=target.nkey, name=name)
    async with open_bus(settings) as bus:
        # The lease is the operators' setting: whoever only uses the fleet leaves it alone.
        await provision(bus, pool=target.pool, lease_s=None)
        yield bus
