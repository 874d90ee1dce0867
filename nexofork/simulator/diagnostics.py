"""Answer `diagnostics`: which part of the request changed since an earlier one.

It compares the structure of two requests, not what was found in the cache, as the provider does. The earlier request
is remembered by the id of its answer. Invariant: an appended message is no change; any other difference is one, and
the first one in prompt order is named.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexofork.simulator.prompt import Level, LevelDigests, Position, Prompt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nexofork.simulator.cache import Bill

__all__ = ["Fingerprint", "RequestMemory", "fingerprint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What is compared of a request."""

    workspace: str
    model: tuple[str, str]
    tools: bytes
    system: bytes
    messages: tuple[bytes, ...]
    parameters: bytes
    """Everything else that reaches the prompt."""
    cached_tokens: int
    """What a request with the same prefix would read, or the whole prompt when nothing was cached."""


def fingerprint(
    request: dict[str, Any], prompt: Prompt, *, workspace: str, digests: LevelDigests, bill: Bill
) -> Fingerprint:
    """The fingerprint of a request, markers left out."""
    cached = bill.total - bill.fresh
    by_level = {level: [item for item in prompt.positions if item.level is level] for level in Level}
    return Fingerprint(
        workspace=workspace,
        model=(request["model"], request.get("speed") or "standard"),
        tools=_digest(by_level[Level.TOOLS]),
        system=_digest(by_level[Level.SYSTEM]),
        messages=tuple(_digest(message) for message in _by_message(by_level[Level.MESSAGES])),
        parameters=hashlib.sha256(digests.system + digests.messages).digest(),
        cached_tokens=cached or bill.total,
    )


class RequestMemory:
    """The fingerprints of recent requests by message id."""

    def __init__(self, capacity: int = 20_000) -> None:
        self._capacity = capacity
        self._known: OrderedDict[str, Fingerprint] = OrderedDict()

    def remember(self, message_id: str, print_: Fingerprint) -> None:
        """Keep a fingerprint; the oldest one goes when there are too many."""
        self._known[message_id] = print_
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)

    def clear(self) -> None:
        """Forget every request."""
        self._known.clear()

    def diagnose(self, request: dict[str, Any], current: Fingerprint, bill: Bill) -> dict[str, Any] | None:
        """The answer's `diagnostics`: null when not asked, when there is nothing to compare, or nothing changed."""
        previous_id = (request.get("diagnostics") or {}).get("previous_message_id")
        if previous_id is None:
            return None
        previous = self._known.get(previous_id)
        if previous is None or previous.workspace != current.workspace:
            return {"cache_miss_reason": {"type": "previous_message_not_found"}}
        reason = _first_change(previous, current)
        if reason is None:
            return None
        if reason == "unavailable":
            return {"cache_miss_reason": {"type": reason}}
        missed = max(0, previous.cached_tokens - bill.read)
        return {"cache_miss_reason": {"type": reason, "cache_missed_input_tokens": missed}}


def _first_change(previous: Fingerprint, current: Fingerprint) -> str | None:
    if previous.model != current.model:
        return "model_changed"
    if previous.tools != current.tools:
        return "tools_changed"
    if previous.system != current.system:
        return "system_changed"
    if current.messages[: len(previous.messages)] != previous.messages:
        return "messages_changed"
    return "unavailable" if previous.parameters != current.parameters else None


def _by_message(positions: Sequence[Position]) -> Iterator[list[Position]]:
    message: list[Position] = []
    for position in positions:
        if position.frame and message:
            yield message
            message = []
        message.append(position)
    yield message


def _digest(positions: Sequence[Position]) -> bytes:
    digest = hashlib.sha256()
    for position in positions:
        digest.update(b"%d:%d:" % (len(position.frame), len(position.content)))
        digest.update(position.frame)
        digest.update(position.content)
    return digest.digest()
