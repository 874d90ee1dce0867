"""Where a run's tools work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nexofork.tools.limits import Limits

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork.sandbox.mounts import View
    from nexofork.sandbox.run_sandbox import Enclosure

__all__ = ["Checkout", "Place"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A run's checkout of its parent's repository."""

    root: Path
    """Where it is on this host."""
    known_as: tuple[str, ...] = ()
    """The parent's paths of the repository, without ``..`` and the like; the history names files by them."""
    mounted: bool = False
    """Whether the run sees it at those paths alone; else it sees it at `root`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run's tools work; one per run.

    `writable` and `protected` are for the sandbox: without one, tools reach whatever the daemon's user does.
    """

    cwd: Path | None = None
    """Where commands run and relative paths start; None is where this process does, or a folder of the sandbox's."""
    named: bool = False
    """Whether `cwd` was named by the request: then it may not be one that no run may see."""
    opened: int | None = None
    """A descriptor of `cwd` where a request named it: what is mounted is what was checked, wherever the path leads."""
    writable: tuple[Path, ...] = ()
    """Folders that tools may change, beside `cwd`, which they may change always."""
    protected: tuple[Path, ...] = ()
    """Files and folders, inside those or elsewhere, that tools may read and not change; they have to exist."""
    checkout: Checkout | None = None
    """What comes back to the parent; None where the run has no git workspace."""
    shared: tuple[Path, ...] = ()
    """Folders that the parent has too: what is written there need not come back."""
    sandbox: Enclosure | None = None
    """What tools run in; None is bare."""
    home: Path | None = None
    """The home of commands without a sandbox; None is a temporary folder."""
    view: View | None = None
    """How file tools read paths without a sandbox; None is as they stand."""
    limits: Limits = field(default_factory=Limits)
    """What a command may use."""

    @property
    def shown_cwd(self) -> Path | None:
        """Where the run believes that it works, which differs from `cwd` only in a sandbox."""
        return self.sandbox.cwd if self.sandbox is not None else self.cwd
