"""How a parent uses its fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nexofork.wire.subjects import DEFAULT_POOL

__all__ = ["FleetSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """How a parent uses its fleet."""

    pool: str = DEFAULT_POOL
    parent_id: str = ""
    """Names this parent to its children's daemons; empty makes one up."""
    heartbeat_s: float = 5.0
    window: int = 64
    """How many requests may wait unclaimed at once, so that one parent's flood does not starve another."""
    queue_limit_s: float | None = 300.0
    """How long a run may wait while no daemon is there at all before it ends as failed."""
    old_daemons_s: float = 60.0
    """How long a run is kept back, at most, because a daemon says that it is too old to read the request."""
    tells_of_waits: bool = True
    """Whether a run that waits because no daemon is there is logged as a warning; not where it is shown otherwise."""
    auto_background_s: float | None = None
    """After how long a synchronous wait moves to the background by itself."""
    on_parent_gone: Literal["continue", "abort"] = "continue"
    """What becomes of the children when this process dies. An orderly exit aborts what was not detached."""
    serve_files: bool = True
    """Whether this process stays to run the file tools of children that keep notes in a memory folder here."""
