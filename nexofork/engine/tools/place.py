"""Where a run's tools work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nexofork.engine.tools.watching import Limits

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork.engine.sandbox.enclosure import Enclosure

__all__ = ["Place"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run's tools work; one per run.

    `writable` and `protected` are for the sandbox: without one, tools reach whatever the daemon's user does.
    """

    cwd: Path | None = None
    """Where commands run and relative paths start; None is where this process does, or a folder of the sandbox's."""
    named: bool = False
    """Whether `cwd` was named by the request: then it may not be one that no run may see."""
    writable: tuple[Path, ...] = ()
    """Folders that tools may change, beside `cwd`, which they may change always."""
    protected: tuple[Path, ...] = ()
    """Files and folders, inside those or elsewhere, that tools may read and not change; they have to exist."""
    sandbox: Enclosure | None = None
    """What tools run in; None is bare."""
    limits: Limits = field(default_factory=Limits)
    """What a command may use."""
