"""What the ledger keeps of a model call: tokens and whose they were. Dollars are worked out by whoever reads it.

A call may be booked more than once: by the daemon that made it, and again by the one that took the run over. Its id is
the same, and the entry that knows most counts. One message holds many calls, and what they have in common stands in it
once, because a fan-out's calls differ in little.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from nexofork.core.usage import Usage
from nexofork.errors import BadMessage
from nexofork.wire.messages import Daemon, Message, encode
from nexofork.wire.subjects import DEFAULT_POOL

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "MOST_TOKENS",
    "BookedCall",
    "BookedCalls",
    "Outcome",
    "billed_tokens",
    "call_id",
    "cut_text",
    "decode_calls",
    "encode_calls",
]

Outcome: TypeAlias = Literal["confirmed", "unconfirmed", "failed"]
"""``confirmed``: the answer came to its end. ``failed``: the provider refused it and billed nothing.

``unconfirmed``: it may have been sent, and was billed for at least what is known.
"""

MOST_TOKENS = 10**12
"""No call has more; a count above it is a mistake, and would make sums that no number can hold."""
_TEXT = 200
_MOST_CALLS = 1_000
"""In one message; daemons put 500 into one."""
_SHARED_BYTES = 32 << 10
"""What calls have in common is repeated for each of them, so a reader takes no more of it than daemons write."""
_Count: TypeAlias = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
_Text: TypeAlias = Annotated[str, Field(max_length=_TEXT)]


class BookedCall(BaseModel):
    """One attempt of one model call."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    at: float = Field(ge=0, le=1e11)
    """Unix time it was sent at, or was about to be."""
    run_id: _Text
    """Whose call it is."""
    epoch: int = Field(default=1, ge=1)
    """With run, turn and attempt, the call's name."""
    turn: int = Field(default=1, ge=0)
    """0 for a pre-warm."""
    attempt: int = Field(default=1, ge=1)
    """Which attempt of the turn's call."""
    model: _Text = ""
    """What was called."""
    outcome: Outcome = "confirmed"
    """`failed` was refused and billed nothing; `unconfirmed` was cut off, or its daemon was lost."""
    billed: tuple[_Count, _Count, _Count, _Count, _Count] | None = None
    """Tokens: fresh, read, written for five minutes, written for an hour, output. None where nothing is known."""
    message_id: _Text = ""
    error: _Text = ""
    """What came of it, where it was no answer."""
    prefix: _Text = ""
    """Names the prefix that the call's siblings share."""
    warm_tokens: _Count = 0
    """How much of that prefix was in the cache before the call, as far as the daemon knew."""
    ttl: Literal["5m", "1h"] = "5m"
    """How long what it wrote lives."""
    label: _Text = ""
    """The fork's."""
    group: _Text | None = None
    """The fork's."""
    parent: _Text = ""
    """Who asked for it."""
    host: _Text = ""
    """The daemon that made it; on the wire, the one that books unless said."""
    pool: _Text = DEFAULT_POOL
    """Where it ran."""

    @property
    def call_id(self) -> str:
        """Names the call, whoever books it."""
        return call_id(self.run_id, epoch=self.epoch, turn=self.turn, attempt=self.attempt)

    @property
    def usage(self) -> Usage:
        """What is known to be billed."""
        fresh, read, write_5m, write_1h, output = self.billed or (0, 0, 0, 0, 0)
        return Usage(
            input_tokens=fresh,
            cache_read_tokens=read,
            cache_write_5m_tokens=write_5m,
            cache_write_1h_tokens=write_1h,
            output_tokens=output,
        )


class BookedCalls(Message):
    """Calls as one message of the ledger; the subject it is stored under names the same daemon."""

    kind: Literal["calls"] = "calls"
    daemon: Daemon
    shared: dict[str, Any] = Field(default_factory=dict)
    """Fields of a call that all of them have in common."""
    calls: list[dict[str, Any]] = Field(default_factory=list, max_length=_MOST_CALLS)
    """The rest of each."""


def billed_tokens(usage: Usage) -> tuple[int, int, int, int, int]:
    """Return a bill as the ledger keeps it; counts that no call can have are cut to size.

    >>> billed_tokens(Usage(input_tokens=3, output_tokens=-1))
    (3, 0, 0, 0, 0)
    """
    fresh, read = usage.input_tokens, usage.cache_read_tokens
    written = usage.cache_write_5m_tokens, usage.cache_write_1h_tokens
    return _count(fresh), _count(read), _count(written[0]), _count(written[1]), _count(usage.output_tokens)


def cut_text(text: str) -> str:
    """Return a name or an error as the ledger keeps it: its first 200 characters, as valid Unicode."""
    return text[:_TEXT].encode("utf-8", "replace").decode()


def _count(tokens: int) -> int:
    return min(max(tokens, 0), MOST_TOKENS)


def call_id(run_id: str, *, epoch: int, turn: int, attempt: int) -> str:
    """Return a call's id: the same for whoever books it.

    >>> call_id("r1", epoch=1, turn=2, attempt=1)
    'r1.1.2.1'
    """
    return f"{run_id}.{epoch}.{turn}.{attempt}"


def encode_calls(daemon: Daemon, calls: Sequence[BookedCall], *, at: float) -> bytes:
    """Return calls as one message."""
    plain = [call.model_dump(mode="json", exclude_defaults=True, exclude_none=True) for call in calls]
    for call in plain:
        if call.get("host", "") == daemon.name:
            call.pop("host", None)
        else:
            call.setdefault("host", "")
    first, *others = plain
    shared = {
        key: value
        for key, value in first.items()
        if others and all(key in call and call[key] == value for call in others)
    }
    rest = [{key: value for key, value in call.items() if key not in shared} for call in plain]
    return encode(BookedCalls(at=at, daemon=daemon, shared=shared, calls=rest))


def decode_calls(data: bytes) -> tuple[Daemon, list[BookedCall]]:
    """Return who booked, and the calls that can be read.

    Raises:
        BadMessage: It is not a message of the ledger.
    """
    try:
        message = BookedCalls.model_validate_json(data)
        shared = {"host": cut_text(message.daemon.name), **message.shared}
        shared_bytes = len(json.dumps(shared))
    except (ValueError, RecursionError) as exc:
        raise BadMessage("is not a message of the ledger", fix="See docs/protocol.md.") from exc
    if shared_bytes > _SHARED_BYTES:
        raise BadMessage(f"has {shared_bytes} bytes in common for each call", fix="See docs/protocol.md.")
    found = []
    for call in message.calls:
        try:
            # As JSON, where an array is a tuple.
            found.append(BookedCall.model_validate_json(json.dumps({**shared, **call})))
        except ValueError:
            continue
    return message.daemon, found
