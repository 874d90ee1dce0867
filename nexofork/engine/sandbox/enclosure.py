"""One run's sandbox: what its tools see, and how a command gets into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.engine.sandbox.view import within

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nexofork.engine.sandbox.meter import DiskMeter
    from nexofork.engine.sandbox.view import View

__all__ = ["Enclosure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosure:
    """One run's sandbox."""

    program: str
    options: tuple[str, ...]
    """What makes the sandbox, without where in it to run and what."""
    view: View
    cwd: Path
    """Where commands run and relative paths start."""
    own: tuple[str, ...]
    """The folders that the run may change."""
    meter: DiskMeter
    descriptors: tuple[int, ...] = ()
    """What the options refer to: the program needs them, and closes them before it runs a command."""

    def command(
        self, argv: Sequence[str], *, cwd: str | Path | None = None, readable: Sequence[str] = (), info_fd: int
    ) -> list[str]:
        """Return the command line that runs another inside.

        Args:
            argv: The program and its arguments, as seen inside.
            cwd: Where it runs, inside.
            readable: Further folders of the host that it needs to run at all.
            info_fd: Where to write which process is the first one inside.
        """
        more = [word for path in readable if not self.sees(path) for word in ("--ro-bind", path, path)]
        return [
            self.program,
            *("--info-fd", str(info_fd)),
            *self.options,
            *more,
            # Last of all. /dev and / are made of memory, so they must not grow. Outside, a command is the daemon's
            # user: root's could write to /proc/sys, and so change the host.
            *(word for path in ("/proc", "/dev", "/") for word in ("--remount-ro", path)),
            *("--chdir", str(cwd or self.cwd), "--", *argv),
        ]

    def sees(self, path: str) -> bool:
        """Whether what the host has at a canonical path is there inside as well."""
        return any(within(path, mount.inside) and mount.inside == mount.outside for mount in self.view.mounts)
