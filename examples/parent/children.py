"""The agent's children: numbered in the order they were started, on whichever hosts run them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nexofork import NexoforkError
from nexofork.errors import BusError, ForkRefused

if TYPE_CHECKING:
    from nexofork import ForkHandle, ForkParams, NatsForkSubagent

__all__ = ["Children"]

_DIGITS = 3
"""Whoever types so few means a number: a run id that happens to begin with them is another agent."""


class Children:
    """Starts runs for the Agent tool, and keeps their handles for the person at the terminal."""

    def __init__(self, forks: NatsForkSubagent, tasks: asyncio.TaskGroup) -> None:
        self._forks = forks
        self._tasks = tasks
        self._starting: set[asyncio.Task[ForkHandle | NexoforkError]] = set()
        self.handles: list[ForkHandle] = []

    async def fork(self, params: ForkParams) -> ForkHandle:
        """Start one; whoever is cancelled meanwhile leaves a child that `end` knows of.

        Raises:
            NexoforkError: It was not started.
        """
        starting = self._tasks.create_task(self._started(params))
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        outcome = await asyncio.shield(starting)
        if isinstance(outcome, NexoforkError):
            raise outcome
        return outcome

    async def _started(self, params: ForkParams) -> ForkHandle | NexoforkError:
        try:
            handle = await self._forks.fork(params)
        except NexoforkError as exc:
            return exc  # raised here, it would end the session
        self.handles.append(handle)
        return handle

    @property
    def running(self) -> list[ForkHandle]:
        """Those that have not ended."""
        return [handle for handle in self.handles if not handle.status.over]

    async def settled(self) -> None:
        """Return when all that are being started are."""
        if self._starting:
            await asyncio.wait(self._starting)

    def number(self, run_id: str) -> int:
        """Return what a run is called here; 0 where it is none of these."""
        return next((at for at, handle in enumerate(self.handles, start=1) if handle.run_id == run_id), 0)

    def name(self, run_id: str) -> str:
        """Return how a run is named to the person; the agent's own calls belong to no run."""
        number = self.number(run_id)
        return f"Agent {number} ({self.handles[number - 1].label})" if number else "The agent"

    def find(self, word: str) -> ForkHandle:
        """Return the child of a number, or of a run id or the beginning of one; up to three digits are a number.

        Raises:
            ForkRefused: There is none, or several.
        """
        if word.isdecimal() and len(word) <= _DIGITS:
            found = [handle for number, handle in enumerate(self.handles, start=1) if number == int(word)]
        else:
            found = [handle for handle in self.handles if word and handle.run_id.startswith(word)]
        if len(found) != 1:
            known = f"1 to {len(self.handles)}" if self.handles else "none yet"
            raise ForkRefused(f"{word or 'Nothing'} names {len(found) or 'no'} agents; agents here are: {known}.")
        return found[0]

    async def end(self, note: str) -> list[str]:
        """Abort all that run or are being started, and return when the end of each is on its log.

        Returns:
            What went wrong with which.
        """
        await self.settled()
        problems: list[str] = []

        async def end_one(handle: ForkHandle) -> None:
            try:
                await handle.abort(note)
                await handle.result()
            except (BusError, ForkRefused) as exc:
                problems.append(f"{self.name(handle.run_id)}: {exc}")

        async with asyncio.TaskGroup() as tasks:
            for handle in self.running:
                tasks.create_task(end_one(handle))
        return problems
