"""Start a sidecar from the session's newest snapshot and wait for it.

A sidecar is a fork without the fork's boilerplate: its own prompt is the one new message behind the parent's reply, so
it reads all that the parent's last turn left in the cache. It is nobody's to answer, so it never asks for permission:
what it may do is its filter's to say.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nexofork.policy.filters import AllOfFilter, AllowAllFilter
from nexofork.policy.permissions import Permissions
from nexofork.run.abort import AbortToken
from nexofork.run.params import DelegateMode, ForkParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nexofork.agents.tool import Forks, SnapshotSource
    from nexofork.core.snapshot import CacheSafeParams
    from nexofork.policy.filters import ToolFilter
    from nexofork.run.result import ForkResult

__all__ = ["Sidecar", "SidecarHost"]


def _as_it_is(params: ForkParams) -> ForkParams:
    return params


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """One kind of run beside a session."""

    label: str
    query_source: str
    prompt: Sequence[str]
    """What it is told, then anything further; all of it behind what the session has cached."""
    tool_filter: ToolFilter
    max_turns: int
    timeout_s: float
    looks: bool = True
    """Whether it may look at files, so that a workspace is of use to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarHost:
    """Who starts a session's sidecars, and from what."""

    forks: Forks
    """In this process, or a fleet."""
    source: SnapshotSource
    """Has the session's newest request: a `CacheSafeSlot` or a `Capture`."""
    equip: Callable[[ForkParams], ForkParams] = field(default=_as_it_is)
    """Gives every run what a sidecar does not know: its provider and tools in process, budgets, names of tools."""

    def equipped(self, sidecar: Sidecar, snapshot: CacheSafeParams) -> ForkParams:
        """Return the fork a sidecar is; what makes it one cannot be equipped away.

        Args:
            sidecar: Which.
            snapshot: What it is forked from.
        """
        params = self.equip(ForkParams(cache_safe=snapshot, prompt_messages=tuple(sidecar.prompt)))
        return replace(
            params,
            cache_safe=snapshot,
            prompt_messages=tuple(sidecar.prompt),
            query_source=sidecar.query_source,
            fork_label=sidecar.label,
            tool_filter=_both(sidecar.tool_filter, params.tool_filter),
            permissions=Permissions(deny=params.permissions.deny),
            max_turns=sidecar.max_turns,
            timeout=sidecar.timeout_s,
            workspace=params.workspace if sidecar.looks else None,
            skip_transcript=True,
            boilerplate=False,
            mode=DelegateMode.FORK_AND_FORGET,
        )

    def token(self, snapshot: CacheSafeParams) -> AbortToken:
        """Return a token for one run, below the one that runs are equipped with."""
        given = self.equip(ForkParams(cache_safe=snapshot, prompt_messages="")).external_abort
        return AbortToken() if given is None else given.child()

    async def run(
        self, sidecar: Sidecar, *, snapshot: CacheSafeParams | None = None, abort: AbortToken | None = None
    ) -> ForkResult:
        """Run a sidecar to its end; cancelling this aborts it.

        Args:
            sidecar: Which.
            snapshot: What it is forked from; the session's newest unless said.
            abort: Aborting it aborts the run; what `token` returned.

        Raises:
            EmptySlot: The session has not made a request yet.
            ForkRefused: The run cannot be started as it is.
            BusError: NATS was not reached.
        """
        params = self.equipped(sidecar, self.source.snapshot() if snapshot is None else snapshot)
        if abort is not None:
            params = replace(params, external_abort=abort)
        handle = await self.forks.fork(params)
        try:
            return await handle.result()
        except asyncio.CancelledError:
            handle.abort("nobody waits for this sidecar any more")
            raise


def _both(own: ToolFilter, equipped: ToolFilter) -> ToolFilter:
    """Return what both let run; an own filter alone stays as it is, since a fleet looks for memory folders in it."""
    return own if type(equipped) is AllowAllFilter else AllOfFilter([own, equipped])
