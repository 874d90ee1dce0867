"""Run commands with bubblewrap: own processes, own network, own ``/tmp``, and nothing of the host but its programs.

Whatever a run may change is a folder on disk: the root and ``/dev``, which are made of memory, are read-only. Inside a
folder that may be changed, something that may not is a mount, and so is every folder on the way to it: the kernel moves
and removes no mounts, so it cannot be put aside and made anew.
"""

from __future__ import annotations

import itertools
import os
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nexofork.errors import ForkRefused
from nexofork.sandbox.mounts import (
    GID,
    UID,
    Mount,
    View,
    copy_etc,
    kernel_files,
    parent_aliases,
    system_links,
    system_mounts,
    within,
)
from nexofork.sandbox.run_folder import REMOVE, DiskMeter, run_folder
from nexofork.sandbox.run_sandbox import Enclosure
from nexofork.tools.process import Limits, Output, run_command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from nexofork.tools.place import Checkout, Place

__all__ = ["Bubblewrap"]

_REMOVE_S = 30.0
_SCRATCH = (("/tmp", "tmp"), ("/dev/shm", "shm"))
_SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr", "/bin", "/sbin", "/run", "/boot")
_TOP = ("/", "/tmp", "/home", "/root", "/var")
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
    bind_fd: bool = True
    """Whether it can mount what a descriptor leads to; without that, a path is resolved anew for each command."""
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

    def mounts_at(self, paths: Sequence[str]) -> bool:
        """Whether a checkout can be seen at all these paths, which have no ``..`` and the like."""
        state = str(self.folder.parent.parent)
        taken = (*_SYSTEM, *self.read, state, os.path.realpath(sys.base_prefix))
        return (
            bool(paths)
            and all(path not in _TOP and not path.startswith("/lib") for path in paths)
            and not any(_touch(path, one) for path in paths for one in taken)
            and not any(_touch(*pair) for pair in itertools.combinations(paths, 2))
        )

    def shows(self, path: str) -> bool:
        """Whether every run sees something at an absolute path, whatever it works in."""
        if path in ("/", "/tmp") or within(path, "/proc") or within(path, "/dev"):
            return True
        return any(
            within(path, mount.inside) and os.path.lexists(mount.outside + path[len(mount.inside) :])
            for mount in (*self._fixed_mounts(), *_link_mounts())
        )

    def _placed(self, place: Place, folder: Path) -> Place:
        cwd = place.cwd if place.cwd is not None else folder / "work"
        if place.opened is None:  # else it was checked as it is, and may have become a link since
            cwd = Path(os.path.realpath(cwd))
        given = list(dict.fromkeys((str(cwd), *map(os.path.realpath, place.writable))))
        writable = [path for path in given if not any(path != one and within(path, one) for one in given)]
        protected = [os.path.realpath(path) for path in place.protected]
        self._refuse(writable, protected)
        if place.named:
            self._refuse_hidden(str(cwd))
        seen = self._seen(place.checkout)
        view = self._view(folder, writable, protected, seen)
        for mount in view.mounts:
            if mount.writable and not os.path.lexists(mount.outside):
                os.mkdir(mount.outside, mode=0o700)  # on the way to another mount, in a folder of the run's own
        enclosure = Enclosure(
            program=self.program,
            options=self._options(view, place),
            descriptors=() if place.opened is None or not self.bind_fd else (place.opened,),
            view=View([*view.mounts, *_link_mounts()], seen.aliases),
            cwd=Path(seen.at(str(cwd))[0]),
            own=(*(inside for path in writable for inside in seen.at(path)), "/tmp"),
            meter=DiskMeter([*writable, str(folder)], limit=self.disk_bytes),
        )
        return replace(place, cwd=cwd, sandbox=enclosure, limits=self.limits)

    def _seen(self, checkout: Checkout | None) -> _Seen:
        mounts = checkout is not None and self.mounts_at(checkout.known_as)
        if checkout and checkout.mounted and not mounts:
            raise ForkRefused(f"A checkout cannot be seen at {' and '.join(checkout.known_as)} in the sandbox.")
        return _Seen(checkout, mounts=mounts)

    def _refuse(self, writable: Iterable[str], protected: Iterable[str]) -> None:
        for path in (*writable, *protected):
            if not os.path.exists(path):
                raise ForkRefused(f"{path} is not there, so no run can work with it on this host.")
        for path in writable:
            if (kernels := kernel_files(path)) is not None:
                raise ForkRefused(
                    f"A run cannot work in {path}: {kernels} holds files of the kernel. Name another folder."
                )
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

    def _fixed_mounts(self) -> list[Mount]:
        """What every run sees of the host."""
        etc = Mount(inside="/etc", outside=str(self.folder / "etc"))
        return [*system_mounts(), etc, *(Mount(inside=path, outside=path) for path in self.read)]

    def _view(self, folder: Path, writable: Iterable[str], protected: Iterable[str], seen: _Seen) -> View:
        tmp, shm = (Mount(inside=path, outside=str(folder / name), writable=True) for path, name in _SCRATCH)
        mounts = [
            *self._fixed_mounts(),
            *(tmp, shm),
            *(Mount(inside=one, outside=path, writable=True) for path in writable for one in seen.at(path)),
            *(Mount(inside=one, outside=path) for path in protected for one in seen.at(path)),
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

    def _options(self, view: View, place: Place) -> tuple[str, ...]:
        options = [*_APART, *([] if self.network else ["--unshare-net"])]
        options += ["--disable-userns"] if self.disable_userns else []
        options += [word for link, target in system_links().items() for word in ("--symlink", target, link)]
        options += ["--proc", "/proc", "--dev", "/dev"]
        for mount in view.mounts:
            kind, source = "--bind" if mount.writable else "--ro-bind", mount.outside
            if self.bind_fd and place.opened is not None and source == str(place.cwd):
                kind, source = f"{kind}-fd", str(place.opened)
            options += [kind, source, mount.inside]
        return tuple(options)


class _Seen:
    """Where a run sees its checkout; everything else it sees where the host has it."""

    def __init__(self, checkout: Checkout | None, *, mounts: bool) -> None:
        self._root = os.path.realpath(checkout.root) if checkout else None
        known = checkout.known_as if checkout else ()
        own = () if self._root is None or (checkout and checkout.mounted) else (self._root,)
        self._inside = (*own, *(known if mounts else ()))
        """The first one is where it works."""
        self.aliases = {} if mounts or self._root is None else parent_aliases(known, self._root)

    def at(self, path: str) -> list[str]:
        """Return where a run sees a canonical path of the host."""
        if self._root is None or not within(path, self._root):
            return [path]
        return [inside + path[len(self._root) :] for inside in self._inside]


def _touch(one: str, other: str) -> bool:
    """Whether one of two paths is, or is in, the other."""
    return within(one, other) or within(other, one)


def _link_mounts() -> list[Mount]:
    return [Mount(inside=link, outside=link) for link in system_links()]


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
