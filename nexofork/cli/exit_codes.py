"""What the exit codes mean, and which error leads to which.

Scripts in other languages branch on these numbers, so they are part of the contract: bad input can be told from a NATS
that is down, and both from a child that did not complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexofork.bus.failures import NoSuchPool, PayloadTooLarge, RunAborted, RunExists
from nexofork.cli.os_errors import is_taken, is_unwritten
from nexofork.errors import BusError, NexoforkError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BAD_INPUT", "INTERRUPTED", "NOT_COMPLETED", "NOT_REACHABLE", "OK", "code_of", "expected_error"]

OK = 0
NOT_COMPLETED = 1
"""Some child did not complete; its result says why."""
BAD_INPUT = 2
NOT_REACHABLE = 3
"""NATS was not reached, or refused; or an address to listen on is taken, which may be free at the next try."""
INTERRUPTED = 130
"""Ctrl-C or SIGTERM."""

# Raised by the bus, but about what the caller gave.
_ABOUT_INPUT = (NoSuchPool, RunExists, RunAborted, PayloadTooLarge)


def code_of(error: BaseException) -> int:
    """Return the exit code for an error the caller can do something about."""
    if isinstance(error, BusError) and not isinstance(error, _ABOUT_INPUT):
        return NOT_REACHABLE
    if is_taken(error) or is_taken(error.__cause__):
        return NOT_REACHABLE
    return BAD_INPUT


def expected_error(error: BaseException) -> BaseException | None:
    """Return the error to tell the caller about, taken out of its group; None where it is a defect of ours."""
    leaves = list(_leaves(error))
    if not all(isinstance(leaf, NexoforkError) or is_unwritten(leaf) for leaf in leaves):
        return None
    return leaves[0]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
