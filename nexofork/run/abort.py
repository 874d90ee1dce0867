"""Abort goes one way: from a parent to its children, never back up.

A fork gets a token of its own below the caller's. Aborting the caller's token aborts the fork; a timeout, a dropped
handle or the fork's own end touches only the fork's token. Whoever aborts says why first, so the report can.
"""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Abort", "AbortReason", "AbortToken"]


class AbortReason(StrEnum):
    """Who or what ended a run before its end."""

    PARENT = "parent"
    LEASE_LOST = "lease_lost"
    SHUTDOWN = "shutdown"
    DEADLINE = "deadline"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """Why a run was ended."""

    reason: AbortReason
    note: str = ""


class AbortToken:
    """A switch that is thrown once; to be used in the thread of one event loop."""

    def __init__(self) -> None:
        self._thrown = asyncio.Event()
        self._children: weakref.WeakSet[AbortToken] = weakref.WeakSet()
        self.cause: Abort | None = None
        """Why it was thrown, or None as long as it was not."""

    def abort(self, reason: AbortReason = AbortReason.PARENT, note: str = "") -> bool:
        """Throw the switch, here and in every child token; the first cause stays.

        Returns:
            Whether this call was the first.
        """
        if self.cause is not None:
            return False
        self.cause = Abort(reason=reason, note=note)
        self._thrown.set()
        for child in list(self._children):
            child.abort(reason, note)
        return True

    async def wait(self) -> Abort:
        """Return the cause once the switch is thrown."""
        await self._thrown.wait()
        assert self.cause is not None
        return self.cause

    def child(self) -> AbortToken:
        """Return a token that is aborted with this one and can be aborted without it."""
        token = AbortToken()
        if self.cause is not None:
            token.abort(self.cause.reason, self.cause.note)
        else:
            self._children.add(token)
        return token
