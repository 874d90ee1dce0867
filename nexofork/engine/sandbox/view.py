"""What a run sees of the host's files, and where the daemon finds it.

Commands get this view from the kernel. The file tools run in the daemon, so they walk it here: component by component,
links resolved as they would be inside, where ``/tmp`` is the run's own. A path that leads out of the view is not
available, whatever there is on the host.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["Found", "Mount", "NotShown", "View", "parent_aliases", "plain_path", "within"]

_MAX_LINKS = 40
_MAX_PATH_BYTES, _MAX_NAME_BYTES, _MAX_DEPTH = 2048, 255, 64


class NotShown(Exception):
    """A path that the run does not see; the text is the path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One folder or file of the host and where the run sees it, both canonical."""

    inside: str
    outside: str
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Where a path leads."""

    inside: str
    """Canonical, as the run knows it."""
    outside: str
    """Canonical, on the host."""
    writable: bool


class View:
    """All that a run sees; of two mounts the deeper one counts.

    `aliases` are folders that only the file tools know: each is taken for one that is seen where the host has it.
    """

    def __init__(self, mounts: Iterable[Mount], aliases: Mapping[str, str] | None = None) -> None:
        self.mounts = tuple(sorted(mounts, key=lambda mount: mount.inside.count("/")))
        self._aliases = {alias: Mount(inside=alias, outside=folder) for alias, folder in (aliases or {}).items()}
        self._by_path = {mount.inside: mount for mount in (*self.mounts, *self._aliases.values())}
        self._on_the_way = {folder for path in self._by_path for folder in _above(path)}

    def find(self, path: str) -> Found:
        """Return where an absolute path leads, ``..`` and links included; the file itself need not exist.

        Raises:
            NotShown: It leads to something that the run does not see.
            OSError: It leads through links in a circle.
        """
        todo, at, links = deque(path.split("/")), "/", 0
        while todo:
            part = todo.popleft()
            if part in ("", "."):
                continue
            if part == "..":
                at = os.path.dirname(at)
                continue
            here = os.path.join(at, part)
            target = self._link(here)
            if target is None:
                at = here
                continue
            links += 1
            if links > _MAX_LINKS:
                raise OSError(40, "too many links", path)
            todo.extendleft(reversed(target.split("/")))
            at = "/" if target.startswith("/") else at
        mount = self._mount(at)
        if mount is not None and mount.inside in self._aliases:
            at = _moved(at, mount)
            mount = self._mount(at)
        if mount is None:  # a folder that is there only because others are in it: what the host has there is hidden
            return Found(inside=at, outside="/", writable=False)
        return Found(inside=at, outside=_moved(at, mount), writable=mount.writable)

    def _link(self, path: str) -> str | None:
        """Return what a link inside says; None where there is none."""
        mount = self._mount(path)
        if mount is None:
            if path in self._on_the_way:
                return None
            raise NotShown(path)
        try:
            return os.readlink(_moved(path, mount))
        except OSError:
            return None

    def _mount(self, path: str) -> Mount | None:
        for folder in (path, *_above(path)):
            if (mount := self._by_path.get(folder)) is not None:
                return mount
        return None


def within(path: str, folder: str) -> bool:
    """Whether a canonical path is a folder or in it."""
    return path == folder or folder == "/" or path.startswith(folder + "/")


def plain_path(path: str) -> str | None:
    r"""Return an absolute path without ``.``, ``..`` and repeated slashes; None if it is no path that a run could have.

    The words alone decide: no file system is asked.

    >>> plain_path("//home//me/./x/../repo/")
    '/home/me/repo'
    >>> plain_path("C:/repo") is plain_path("repo") is plain_path("/a\nb") is None
    True
    """
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return None
    if not path.startswith("/") or size > _MAX_PATH_BYTES or not path.isprintable():
        return None
    plain = "/" + os.path.normpath(path).lstrip("/")
    names = plain.split("/")
    if len(names) > _MAX_DEPTH or any(len(name.encode()) > _MAX_NAME_BYTES for name in names):
        return None
    return plain


def parent_aliases(known_as: Iterable[str], checkout: str | Path) -> dict[str, str]:
    """Return the folders that file tools take for a checkout: the parent's paths of it."""
    root = os.path.realpath(checkout)
    return {path: root for path in known_as if not within(path, root) and not within(root, path)}


def _above(path: str) -> list[str]:
    """The folders a path is in, the nearest first."""
    found = []
    while path != "/":
        path = os.path.dirname(path)
        found.append(path)
    return found


def _moved(path: str, mount: Mount) -> str:
    return mount.outside + path[len(mount.inside) :]
