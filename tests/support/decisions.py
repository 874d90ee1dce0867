"""A decision for tests of what follows from it."""

from __future__ import annotations

from nexofork.economics.fan_out import Decision

__all__ = ["LEADER_FIRST"]

LEADER_FIRST = Decision(
    plan="leader_first",
    why="",
    siblings=2,
    shared_tokens=20_000,
    warm_tokens=0,
    all_at_once=2.0,
    leader_first=1.0,
    prewarm=None,
    first_byte_s=1.0,
)
