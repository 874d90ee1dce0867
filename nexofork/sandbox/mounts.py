"""What a run sees of the host's files, and where the daemon finds it.

Commands get this view from the kernel. The file tools run in the daemon, so they walk it here: component by component,
links resolved as they would be inside, where ``/tmp`` is the run's own. A path that leads out of the view is not
available, whatever there is on the host.

Every run sees the host's programs and libraries and a few files of ``/etc``, and only what is named here: a command is
the daemon's user outside, so the modes of files keep nothing from it, and root's daemon would show it ``/etc/shadow``.
The files of ``/etc`` are copied once, because every further mount would cost each command a sixth of a millisecond.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "GID",
    "UID",
    "Found",
    "Mount",
    "NotShown",
    "View",
    "copy_etc",
    "kernel_files",
    "parent_aliases",
    "plain_path",
    "system_links",
    "system_mounts",
    "within",
]

_MAX_LINKS = 40
_MAX_PATH_BYTES, _MAX_NAME_BYTES, _MAX_DEPTH = 2048, 255, 64
UID = GID = 1000
"""Who a command is inside; outside it is the daemon's user, who can therefore read and remove what it leaves."""

_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "fonts",
    "gai.conf",
    "host.conf",
    "inputrc",
    "java-*",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "magic",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "perl",
    "pki/ca-trust",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "protocols",
    "python3*",
    "redhat-release",
    "rpc",
    "services",
    "shells",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
)
_KERNEL = frozenset(
    (
        *("binder", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "cpuset", "debugfs", "devpts", "devtmpfs"),
        *("efivarfs", "functionfs", "fusectl", "hugetlbfs", "mqueue", "nfsd", "nsfs", "proc", "pstore", "resctrl"),
        *("rpc_pipefs", "securityfs", "selinuxfs", "smackfs", "sysfs", "tracefs", "usbfs", "xenfs"),
    )
)
"""File systems that show the kernel, its devices or other processes."""
_KERNEL_FOLDERS = ("/proc", "/sys", "/dev")
"""Theirs whatever is mounted there: in a container ``/dev`` is an ordinary file system with devices in it."""
_PASSWD = f"fork:x:{UID}:{GID}::/tmp:/bin/bash\nnobody:x:65534:65534::/nonexistent:/bin/false\n"
_GROUP = f"fork:x:{GID}:\nnogroup:x:65534:\n"
_HOSTS = "127.0.0.1 localhost\n::1 localhost\n"


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


def system_mounts() -> list[Mount]:
    """Return the folders of programs and libraries."""
    return [Mount(inside=path, outside=path) for path in _FOLDERS if os.path.isdir(path) and not os.path.islink(path)]


def system_links() -> dict[str, str]:
    """Return which of those folders are links on this host, and what they say."""
    return {path: os.readlink(path) for path in _FOLDERS if os.path.islink(path)}


def kernel_files(path: str, descriptor: int | None = None) -> str | None:
    """Return where the kernel's own files are in a folder, or around it: a command must not reach them by such a mount.

    Args:
        path: A folder of the host's, canonical.
        descriptor: The folder where it is open: then it counts where that is mounted, even if the path leads elsewhere.
    """
    numbers: dict[int, str] = {}
    kinds: dict[str, str] = {}
    for line in os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).rstrip("\n").split("\n"):
        before, _, after = line.partition(" - ")
        fields = before.split(" ")  # other spaces may be in a name
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4])
        numbers[int(fields[0])] = point
        kinds[point] = after.split()[0]  # of several mounts at one place the last one is seen
    nearest = max((point for point in kinds if within(path, point)), key=len, default="/")
    if descriptor is not None:
        facts = dict(line.split(":", 1) for line in Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines())
        nearest = numbers.get(int(facts["mnt_id"]), nearest)
    around = [nearest, *(point for point in kinds if within(point, path))]
    named = (folder for folder in _KERNEL_FOLDERS if within(path, folder) and not within(path, "/dev/shm"))
    return next(named, None) or next((point for point in around if kinds.get(point) in _KERNEL), None)


def copy_etc(folder: Path, *, network: bool) -> None:
    """Fill a folder with what a run sees as ``/etc``.

    Raises:
        OSError: It cannot be written.
    """
    folder.mkdir()
    for pattern in (*_ETC, *(("resolv.conf",) if network else ())):
        for source in Path("/etc").glob(pattern):
            target = folder / source.relative_to("/etc")
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(OSError, shutil.Error):  # a file that cannot be read is one less to see
                if source.is_dir():
                    shutil.copytree(source, target, symlinks=True, ignore_dangling_symlinks=True)
                else:
                    shutil.copyfile(source, target)
    for name, text in (("passwd", _PASSWD), ("group", _GROUP), ("hosts", _HOSTS)):
        (folder / name).write_text(text)
