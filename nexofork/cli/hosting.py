"""Where a command's runs go: onto the fleet, or into this process with ``--local``."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from nexofork.cli.fork_order import read_tool_names
from nexofork.cli.session import open_target
from nexofork.client.fleet import FleetSettings, NatsForkSubagent
from nexofork.client.local import DefaultForkSubagent
from nexofork.providers.anthropic import AnthropicProvider
from nexofork.tools.builtin import BuiltinTools
from nexofork.tools.place import Place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from nexofork.cli.options import Target
    from nexofork.client.handle import ForkHandle
    from nexofork.run.params import ForkParams

__all__ = ["Hosting", "local_option", "open_hosting"]

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosting:
    """Starts runs, and gives them what they need there."""

    forks: NatsForkSubagent | DefaultForkSubagent
    equip: Callable[[ForkParams], ForkParams]
    follow_up: Callable[[ForkHandle, str], Awaitable[ForkHandle]]
    """Continues a run that has ended."""


def local_option(command: Callable[..., R]) -> Callable[..., R]:
    """Add ``--local``."""
    return click.option(
        "--local",
        is_flag=True,
        help="Run in this process, with its key and its files, instead of on the fleet; NATS is not used.",
    )(command)


@asynccontextmanager
async def open_hosting(target: Target, *, local: bool, tool_names: Sequence[str]) -> AsyncIterator[Hosting]:
    """Open what runs go to.

    Raises:
        BusError: NATS was not reached or refused.
        ForkRefused: The names of tools cannot be meant.
    """
    names = read_tool_names(tool_names)
    if local:
        async with AnthropicProvider.from_env() as llm, DefaultForkSubagent() as forks:
            here = BuiltinTools(Place(cwd=Path.cwd()))
            equipment: dict[str, Any] = {"llm": llm, "tool_dispatcher": here, "tool_names": names}
            yield Hosting(forks=forks, equip=lambda params: replace(params, **equipment), follow_up=forks.wake)
        return
    async with (
        open_target(target, makes=True) as bus,
        NatsForkSubagent(bus, FleetSettings(pool=target.pool, on_parent_gone="abort")) as fleet,
    ):
        yield Hosting(
            forks=fleet,
            equip=lambda params: replace(params, tool_names=names),
            follow_up=lambda handle, text: fleet.wake(handle.run_id, text),
        )
