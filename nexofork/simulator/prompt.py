"""Lay a request out as the row of blocks the cache sees, and hash it cumulatively.

The order is tools, then system, then messages; one tool, one system block and one content block is one position. The
hash after a position covers everything before it, and the parameters of a level are mixed in where that level begins,
so a changed `tool_choice` leaves tools and system alone and loses the messages.
Invariant: appending blocks never changes the hash of an earlier position.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from math import ceil
from typing import TYPE_CHECKING, Any

from nexofork.simulator.canon import BYTES_PER_TOKEN, canonical, without_markers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Level", "LevelDigests", "Marker", "Position", "Prompt", "content_blocks", "lay_out"]


class Level(Enum):
    """The three parts of a prompt, in the order they are cached."""

    TOOLS = "tools"
    SYSTEM = "system"
    MESSAGES = "messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """One `cache_control` as it stands in the request."""

    path: str
    ttl: str
    """Either `5m` or `1h`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One block of the prompt."""

    level: Level
    path: str
    """Where the block is in the request, as error messages write it."""
    frame: bytes
    """What surrounds the block: level, role, and whether it opens a message."""
    content: bytes
    """The block's canonical form, without markers."""
    kind: str
    """The block's type; a plain string counts as `text`."""
    markers: tuple[Marker, ...]

    @property
    def tokens(self) -> int:
        """What the block costs."""
        return ceil(len(self.content) / BYTES_PER_TOKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelDigests:
    """The parameters each level depends on, as bytes to be mixed into the chain."""

    root: bytes
    system: bytes
    messages: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The row of blocks of one request."""

    positions: tuple[Position, ...]

    def totals(self) -> list[int]:
        """Cumulative tokens after each position."""
        return list(accumulate(position.tokens for position in self.positions))

    @property
    def tokens(self) -> int:
        """What the whole prompt costs."""
        return sum(position.tokens for position in self.positions)

    def chain(self, digests: LevelDigests) -> list[bytes]:
        """The cumulative hash after each position."""
        return list(_chain(self.positions, digests))


def lay_out(request: dict[str, Any]) -> Prompt:
    """The blocks of a request whose shape has been checked."""
    return Prompt(positions=(*_tools(request), *_system(request), *_messages(request)))


def content_blocks(content: str | Sequence[Any]) -> Sequence[Any]:
    """The blocks of a `content` or `system` value; a string is one block, and an empty one is none."""
    if isinstance(content, str):
        return [content] if content else []
    return content


def _tools(request: dict[str, Any]) -> Iterator[Position]:
    for index, tool in enumerate(request.get("tools") or []):
        yield _position(Level.TOOLS, f"tools.{index}", b"tools", tool)


def _system(request: dict[str, Any]) -> Iterator[Position]:
    system = request.get("system") or []
    for index, block in enumerate(content_blocks(system)):
        yield _position(Level.SYSTEM, "system" if isinstance(system, str) else f"system.{index}", b"system", block)


def _messages(request: dict[str, Any]) -> Iterator[Position]:
    for number, message in enumerate(request["messages"]):
        content = message["content"]
        rest = {key: value for key, value in message.items() if key not in {"role", "content"}}
        opening = canonical([message["role"], rest]) if rest else message["role"].encode()
        for index, block in enumerate(content_blocks(content)):
            path = f"messages.{number}.content" + ("" if isinstance(content, str) else f".{index}")
            # Two user messages in a row read the same as one to the model; here they are another prefix.
            yield _position(Level.MESSAGES, path, opening if index == 0 else b"", block)


def _position(level: Level, path: str, frame: bytes, block: Any) -> Position:
    kind = "text" if isinstance(block, str) else str(block.get("type") or "custom")
    return Position(
        level=level,
        path=path,
        frame=frame,
        content=canonical(without_markers(block)),
        kind=kind,
        markers=tuple(_markers(block, path)),
    )


def _markers(block: Any, path: str) -> Iterator[Marker]:
    """The markers of a block in reading order: those inside a tool result come before its own."""
    if not isinstance(block, dict):
        return
    if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
        for index, inner in enumerate(block["content"]):
            yield from _markers(inner, f"{path}.content.{index}")
    if (control := block.get("cache_control")) is not None:
        yield Marker(path=path, ttl=control.get("ttl") or "5m")


def _chain(positions: Sequence[Position], digests: LevelDigests) -> Iterator[bytes]:
    link = _link(b"", b"root", digests.root)
    pending = [(Level.SYSTEM, digests.system), (Level.MESSAGES, digests.messages)]
    order = list(Level)
    for position in positions:
        while pending and order.index(pending[0][0]) <= order.index(position.level):
            level, digest = pending.pop(0)
            link = _link(link, level.value.encode(), digest)
        link = _link(link, position.frame, position.content)
        yield link


def _link(before: bytes, frame: bytes, content: bytes) -> bytes:
    digest = hashlib.sha256(before)
    digest.update(b"%d:%d:" % (len(frame), len(content)))
    digest.update(frame)
    digest.update(content)
    return digest.digest()
