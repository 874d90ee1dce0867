"""What every run sees of the host: its programs and libraries, and a few files of ``/etc``.

A command is the daemon's user outside, so the modes of files keep nothing from it: root's daemon would show it
``/etc/shadow``. Therefore only what is named here is shown. The files of ``/etc`` are copied once, because every
further mount would cost each command a sixth of a millisecond.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from nexofork.engine.sandbox.view import Mount, within

__all__ = ["GID", "UID", "copy_etc", "kernel_files", "system_links", "system_mounts"]

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
