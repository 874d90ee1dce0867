"""`nexofork simulate`: run the simulated provider and say what every request read, wrote and cost.

Point any Anthropic client at it with a base URL; no key and no network are needed. Invariant: the first line printed
is ``ready <url>``, the last one is the total, and between them there is one line per request; with
``--json`` the same as objects.
"""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from nexofork.cli.exit_codes import NOT_REACHABLE
from nexofork.cli.os_errors import is_taken
from nexofork.simulator import RequestRecord, Simulator, SimulatorConfig

__all__ = ["simulate"]

JSON_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class _PortTaken(click.ClickException):
    exit_code = NOT_REACHABLE


@dataclass(slots=True)
class _Totals:
    """What has been charged so far."""

    requests: int = 0
    read: int = 0
    written: int = 0
    fresh: int = 0
    output: int = 0
    price_usd: float = 0.0

    def add(self, record: RequestRecord) -> None:
        self.requests += 1
        self.read += record.read
        self.written += record.write_5m + record.write_1h
        self.fresh += record.fresh
        self.output += record.output
        self.price_usd += record.price_usd


@click.command()
@click.option("--host", default=None, help="Address to listen on; the loopback unless given.")
@click.option("--port", default=None, type=click.IntRange(0, 65535), help="Port to listen on; a free one unless given.")
@click.option("--script", type=JSON_FILE, help="JSON file with rules for what the model says.")
@click.option("--config", type=JSON_FILE, help="JSON file with simulator settings (workspaces, rate_limits, ...).")
@click.option("--time-scale", type=float, default=None, help="Simulated seconds per real second, for cache expiry.")
@click.option("--json", "as_json", is_flag=True, help="Print objects: ready, one per request, total.")
def simulate(
    host: str | None,
    port: int | None,
    script: Path | None,
    config: Path | None,
    time_scale: float | None,
    as_json: bool,
) -> None:
    """Run an Anthropic-compatible server with real prompt-cache accounting."""
    try:
        settings = SimulatorConfig.from_mapping(_read(config) if config else {})
        given: dict[str, Any] = {"host": host, "port": port, "time_scale": time_scale}
        settings = replace(settings, **{name: value for name, value in given.items() if value is not None})
        asyncio.run(_serve(settings, _read(script) if script else None, as_json))
    except OSError as exc:
        problem = _PortTaken if is_taken(exc) else click.ClickException
        raise problem(f"{exc}. Choose another port, or name a file that can be read.") from exc
    except (ValueError, TypeError) as exc:
        raise click.ClickException(str(exc)) from exc


async def _serve(settings: SimulatorConfig, script: Any, as_json: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    totals = _Totals()

    def report(record: RequestRecord) -> None:
        totals.add(record)
        click.echo(json.dumps({"event": "request", **record.as_json()}) if as_json else _line(record))

    async with Simulator(settings, on_request=report) as simulator:
        if script is not None:
            simulator.load_script(script)
        click.echo(json.dumps({"event": "ready", "url": simulator.url}) if as_json else f"ready {simulator.url}")
        await stop.wait()
    if as_json:
        click.echo(json.dumps({"event": "total", **asdict(totals)}))
        return
    click.echo(
        f"total {totals.requests} requests  read {totals.read}  written {totals.written}  fresh {totals.fresh}  "
        f"output {totals.output}  ${totals.price_usd:.6f}"
    )


def _line(record: RequestRecord) -> str:
    outcome = str(record.status or "-")
    if record.error_type:
        outcome += f" {record.error_type}"
    if record.closed_early:
        outcome += " closed early"
    return (
        f"{record.index:>4}  {record.model or '-'}  {record.workspace or '-'}  read {record.read}  "
        f"write {record.write_5m}/{record.write_1h}  fresh {record.fresh}  output {record.output}  "
        f"${record.price_usd:.6f}  {outcome}"
    )


def _read(path: Path) -> Any:
    return json.loads(path.read_bytes())
