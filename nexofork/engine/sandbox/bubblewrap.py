"""Run commands with bubblewrap: own processes, own network, own ``/tmp``, and nothing of the host but its programs.

Whatever a run may change is a folder on disk: the root and ``/dev``, which are made of memory, are read-only. Inside a
folder that may be changed, something that may not is a mount, and so is every folder on the way to it: the kernel moves
and removes no mounts, so it cannot be put aside and made anew.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nexofork.engine.sandbox.enclosure import Enclosure
from nexofork.engine.sandbox.folders import REMOVE, run_folder
from nexofork.engine.sandbox.meter import DiskMeter
from nexofork.engine.sandbox.system import GID, UID, copy_etc, system_links, system_mounts
from nexofork.engine.sandbox.view import Mount, View, within
from nexofork.engine.tools.commands import Limits, Output, run_command
from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from nexofork.engine.tools.place import Place

__all__ = ["Bubblewrap"]

_REMOVE_S = 30.0
_SCRATCH = (("/tmp", "tmp"), ("/dev/shm", "shm"))
_APART = (
    *("--unshare-user", "--uid", str(UID), "--gid", str(GID), "--cap-drop", "ALL"),
    *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--hostname", "fork"),
    *("--die-with-parent", "--new-session"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubblewrap:
    """The sandbox of one daemon."""

    program: str
    folder: Path
    """The daemon's own, canonical; runs get theirs in it."""
    network: bool = False
    """Whether commands may use the host's network."""
    read: tuple[str, ...] = ()
    """Further folders that runs may read, canonical."""
    hidden: tuple[str, ...] = ()
    """What no run may see, canonical: the daemon's home, state and credentials."""
    shared: tuple[str, ...] = ()
    """Folders that the operator shares with the parents, canonical: a request may name them even inside `hidden`."""
    limits: Limits
    disk_bytes: int
    """What a run may write."""
    disable_userns: bool = True
    """Whether commands are kept from making user namespaces of their own; older versions cannot do that."""

    @property
    def name(self) -> str:
        """What it is called in reports."""
        return "bwrap"

    def prepare(self) -> None:
        """Make what all runs share.

        Raises:
            OSError: It cannot be written.
        """
        copy_etc(self.folder / "etc", network=self.network)
        (self.folder / "empty").touch()

    @asynccontextmanager
    async def open(self, place: Place, *, name: str) -> AsyncIterator[Place]:
        """Give a run its sandbox, and without a folder of its own one to work in; all it leaves in it is removed.

        Args:
            place: Where it works. What it may write to has to exist.
            name: What to call its folder.

        Raises:
            ForkRefused: It works where it would see what it must not.
        """
        with run_folder(self.folder, name) as folder:
            try:
                yield self._placed(place, folder)
            finally:
                removing = Limits(time_s=_REMOVE_S)
                await run_command((*REMOVE, str(folder)), output=Output(1000), limits=removing)

    def _placed(self, place: Place, folder: Path) -> Place:
        cwd = Path(os.path.realpath(place.cwd)) if place.cwd is not None else folder / "work"
        writable = list(dict.fromkeys(os.path.realpath(path) for path in (cwd, *place.writable)))
        protected = [os.path.realpath(path) for path in place.protected]
        self._refuse(writable, protected)
        if place.named:
            self._refuse_hidden(str(cwd))
        view = self._view(folder, writable, protected)
        for mount in view.mounts:
            if mount.writable and not os.path.lexists(mount.outside):
                os.mkdir(mount.outside, mode=0o700)  # on the way to another mount, in a folder of the run's own
        enclosure = Enclosure(
            program=self.program,
            options=self._options(view),
            view=View([*view.mounts, *(Mount(inside=link, outside=link) for link in system_links())]),
            cwd=cwd,
            own=(*writable, "/tmp"),
            meter=DiskMeter([*writable, str(folder)], limit=self.disk_bytes),
        )
        return replace(place, cwd=cwd, sandbox=enclosure, limits=self.limits)

    def _refuse(self, writable: Iterable[str], protected: Iterable[str]) -> None:
        for path in (*writable, *protected):
            if not os.path.exists(path):
                raise ForkRefused(f"{path} is not there, so no run can work with it on this host.")
        for path in writable:
            for hidden in self.hidden:
                if within(hidden, path) and os.path.isdir(hidden):
                    raise ForkRefused(f"A run cannot work in {path}: {hidden}, which no run may see, is in it.")

    def _refuse_hidden(self, path: str) -> None:
        for hidden in self.hidden:
            # What is shared has to lie in what is hidden: sharing a home does not share the state folder in it.
            shared = any(within(path, one) and within(one, hidden) for one in self.shared)
            if within(path, hidden) and not shared:
                raise ForkRefused(
                    f"A run cannot work in {path}: it lies in {hidden}, which no run may see on this host. "
                    "Its operator can share a folder in there with --shared-dir."
                )

    def _view(self, folder: Path, writable: Iterable[str], protected: Iterable[str]) -> View:
        tmp, shm = (Mount(inside=path, outside=str(folder / name), writable=True) for path, name in _SCRATCH)
        mounts = [
            *system_mounts(),
            Mount(inside="/etc", outside=str(self.folder / "etc")),
            *(Mount(inside=path, outside=path) for path in self.read),
            *(tmp, shm),
            *(Mount(inside=path, outside=path, writable=True) for path in writable),
            *(Mount(inside=path, outside=path) for path in protected),
        ]
        mounts += [mask for hidden in self.hidden for mask in self._masks(hidden, mounts)]
        by_path = {mount.inside: mount for mount in mounts}
        for mount in mounts:
            for pin in _pins(mount, mounts):
                by_path.setdefault(pin.inside, pin)
        return View(by_path.values())

    def _masks(self, hidden: str, mounts: Iterable[Mount]) -> Iterable[Mount]:
        """Cover what no run may see, wherever it would be seen."""
        for mount in mounts:
            if within(hidden, mount.outside) and os.path.isfile(hidden):
                yield Mount(inside=mount.inside + hidden[len(mount.outside) :], outside=str(self.folder / "empty"))

    def _options(self, view: View) -> tuple[str, ...]:
        options = [*_APART, *([] if self.network else ["--unshare-net"])]
        options += ["--disable-userns"] if self.disable_userns else []
        options += [word for link, target in system_links().items() for word in ("--symlink", target, link)]
        options += ["--proc", "/proc", "--dev", "/dev"]
        for mount in view.mounts:
            options += ["--bind" if mount.writable else "--ro-bind", mount.outside, mount.inside]
        return tuple(options)


def _pins(mount: Mount, mounts: Iterable[Mount]) -> Iterable[Mount]:
    """The folders between a mount and the writable folder it is in."""
    around = [one for one in mounts if one.writable and one.inside != mount.inside and within(mount.inside, one.inside)]
    if not around:
        return
    nearest = max(around, key=lambda one: len(one.inside))
    at = os.path.dirname(mount.inside)
    while at != nearest.inside:
        yield Mount(inside=at, outside=nearest.outside + at[len(nearest.inside) :], writable=True)
        at = os.path.dirname(at)
