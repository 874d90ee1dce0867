"""Find the cache breakpoints of a request, and refuse the ones the provider refuses.

At most four; the automatic one takes a slot; a one-hour marker must not follow a five-minute one. A marker inside a
tool result counts like any other and makes the enclosing block the breakpoint.
Invariant: what `find_breakpoints` returns is ascending by position with at most one entry per position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nexofork.simulator.errors import invalid
from nexofork.simulator.prompt import Marker, Prompt

__all__ = ["Breakpoint", "find_breakpoints"]

MAX_BREAKPOINTS = 4
NEVER_MARKED = frozenset({"thinking", "redacted_thinking"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakpoint:
    """A place where an entry is written."""

    position: int
    """Index into the prompt's positions, from zero."""
    ttl: str


def find_breakpoints(request: dict[str, Any], prompt: Prompt) -> list[Breakpoint]:
    """The breakpoints of a request, automatic caching included.

    Raises:
        ApiError: too many markers, or a TTL out of order.
    """
    markers = [marker for position in prompt.positions for marker in position.markers]
    # Four explicit markers leave no slot for the automatic one, even where it would mark a marked block.
    found = len(markers) + (request.get("cache_control") is not None)
    if found > MAX_BREAKPOINTS:
        raise invalid(f"A maximum of {MAX_BREAKPOINTS} blocks with cache_control may be provided. Found {found}.")
    breakpoints = {
        index: Breakpoint(position=index, ttl=position.markers[-1].ttl)
        for index, position in enumerate(prompt.positions)
        if position.markers
    }
    automatic = _automatic(request, prompt)
    if automatic is not None and automatic not in breakpoints:
        ttl = _ttl(request["cache_control"])
        breakpoints[automatic] = Breakpoint(position=automatic, ttl=ttl)
        markers.append(Marker(path=prompt.positions[automatic].path, ttl=ttl))
    _refuse_disorder(markers)
    return [breakpoints[index] for index in sorted(breakpoints)]


def _automatic(request: dict[str, Any], prompt: Prompt) -> int | None:
    """Index of the block that a top-level `cache_control` marks: the last one that can be marked."""
    control = request.get("cache_control")
    if control is None:
        return None
    for index in range(len(prompt.positions) - 1, -1, -1):
        position = prompt.positions[index]
        if position.kind in NEVER_MARKED:
            continue
        if position.markers and position.markers[-1].ttl != _ttl(control):
            raise invalid(
                f"cache_control: the last cacheable block {position.path} already has cache_control with "
                f"ttl='{position.markers[-1].ttl}', which differs from the top-level ttl='{_ttl(control)}'."
            )
        return index
    return None


def _ttl(control: dict[str, Any]) -> str:
    return str(control.get("ttl") or "5m")


def _refuse_disorder(markers: list[Marker]) -> None:
    short = False
    for marker in markers:
        if marker.ttl == "1h" and short:
            raise invalid(
                f"{marker.path}.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' "
                "cache_control block. Note that blocks are processed in the following order: `tools`, `system`, "
                "`messages`."
            )
        short = short or marker.ttl == "5m"
