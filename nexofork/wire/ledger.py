"""What the ledger keeps of a model call: tokens and whose they were. Dollars are worked out by whoever reads it.

A call may be booked more than once: by the daemon that made it, and as unconfirmed by the one that took the run over.
The call's id is the same, and the entry that knows most counts.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import Field

from nexofork.core.usage import Usage
from nexofork.wire.messages import Message

__all__ = ["BookedCall", "Outcome", "call_id"]

Outcome: TypeAlias = Literal["confirmed", "unconfirmed", "failed"]
"""``confirmed``: the answer came to its end. ``failed``: the provider refused it and billed nothing.

``unconfirmed``: it may have been sent, and was billed for at least what is known.
"""


class BookedCall(Message):
    """One attempt of one model call. `at` is when it was sent, or was about to be."""

    kind: Literal["call"] = "call"
    call_id: str = Field(max_length=256)
    run_id: str
    turn: int = Field(ge=0)
    """0 for a pre-warm."""
    attempt: int = Field(default=1, ge=1)
    model: str = ""
    outcome: Outcome
    usage: dict[str, Any] = Field(default_factory=dict)
    """Under the API's names; empty where nothing is known."""
    message_id: str = ""
    error: str = ""
    prefix: str = ""
    """Names the prefix that the call's siblings share."""
    warm_tokens: int = Field(default=0, ge=0)
    """How much of that prefix was in the cache before the first sibling came."""
    ttl: str = "5m"
    label: str = ""
    group: str | None = None
    parent: str = ""
    host: str = ""
    """The daemon that made it."""

    @property
    def tokens(self) -> Usage:
        """What is known to be billed."""
        return Usage.from_wire(self.usage)


def call_id(run_id: str, *, epoch: int, turn: int, attempt: int) -> str:
    """Return a call's id: the same for whoever books it.

    >>> call_id("r1", epoch=1, turn=2, attempt=1)
    'r1.1.2.1'
    """
    return f"{run_id}.{epoch}.{turn}.{attempt}"
