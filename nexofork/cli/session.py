"""Run a command's coroutine: signals end it in order, and every expected error ends as one line and an exit code."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import click
import uvloop

from nexofork.bus.connection import BusSettings, open_bus
from nexofork.bus.provisioning import check_pool, provision
from nexofork.cli.exit_codes import INTERRUPTED, code_of, expected_error
from nexofork.cli.patience import patience
from nexofork.cli.terminal import can_redraw, plain
from nexofork.errors import BusError, NexoforkError
from nexofork.telemetry.settings import TelemetrySettings, read_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from contextlib import AbstractContextManager

    from nexofork.bus.connection import Bus
    from nexofork.cli.options import Target

__all__ = ["finish", "on_signals", "open_target"]


def finish(work: Callable[[], Coroutine[Any, Any, int]], *, exports: bool = True) -> NoReturn:
    """Run a command to its end and leave with its exit code.

    A first SIGINT or SIGTERM cancels the work, which may clean up; a second one cancels the cleaning up.

    Args:
        work: What the command does.
        exports: Whether its traces go where the environment says; not where it sees to that itself.

    Raises:
        click.exceptions.Exit: Always, but for
        OSError: Our output could not be written, or whoever read it has left.
    """
    clear = "\r\x1b[K" if can_redraw(sys.stderr) else ""  # what `patience` shows
    logging.basicConfig(level=logging.WARNING, format=f"{clear}nexofork: %(message)s", stream=sys.stderr)
    try:
        with _telemetry() if exports else nullcontext():
            code = uvloop.run(_interruptible(work()))
    except asyncio.CancelledError:
        code = INTERRUPTED
    except (NexoforkError, OSError, BaseExceptionGroup) as exc:
        error = expected_error(exc)
        if error is None:
            raise
        if isinstance(error, OSError):
            raise error from None
        click.echo(plain(f"Error: {' '.join(str(error).split())}"), err=True)
        code = code_of(error)
    raise click.exceptions.Exit(code)


def _telemetry() -> AbstractContextManager[object]:
    settings = read_settings()
    if settings == TelemetrySettings():
        return nullcontext()
    # The SDK takes as long to load as all else together: only where it is used.
    opened: AbstractContextManager[object] = import_module("nexofork.telemetry.sdk").open_telemetry(
        settings, service="nexofork"
    )
    return opened


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
async def open_target(target: Target, *, makes: bool = False) -> AsyncIterator[Bus]:
    """Connect to NATS and make sure that the pool is there.

    Args:
        target: Where.
        makes: Whether a pool that is not there is made; who only looks would make one of every mistyped name.

    Raises:
        BusError: NATS was not reached or refused, also later on, or there is no such pool.
    """
    settings = BusSettings(
        urls=target.urls, creds=target.creds, nkey_seed=target.nkey, ca=target.ca, name="nexofork-cli"
    )
    async with AsyncExitStack() as stack:
        places = ", ".join(url.rpartition("@")[2] for url in target.urls)  # without a password
        with patience(f"Connecting to {places}"):
            bus = await stack.enter_async_context(open_bus(settings))
            # The lease is the operators' setting: whoever only uses the fleet leaves it alone.
            await (provision(bus, pool=target.pool, lease_s=None) if makes else check_pool(bus, pool=target.pool))
        async with _as_long_as_let_in(bus):
            yield bus


@asynccontextmanager
async def _as_long_as_let_in(bus: Bus) -> AsyncIterator[None]:
    """End what waits in the block when NATS does not let us in any more.

    Raises:
        BusError: It does not.
    """
    task, refusals = asyncio.current_task(), list[BusError]()
    assert task is not None

    def end(refusal: BusError) -> None:
        refusals.append(refusal)
        task.cancel()

    remove = bus.on_shut_out(end)
    try:
        yield
    except asyncio.CancelledError:
        if refusals and not task.uncancel():  # else somebody else has cancelled it too
            raise refusals[0] from None
        raise
    finally:
        remove()
