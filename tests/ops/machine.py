"""A machine with a systemd of its own, in a container of systemd-nspawn, with nexofork installed by the units' guide.

It shares this host's network, so that its daemons reach the test's NATS and simulator. Building it takes most of the
time; NEXOFORK_OPS_ROOT names a root file system that was built before (`mmdebstrap`, see `PACKAGES`).
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Machine", "machine"]

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "daemon" / "systemd"
PACKAGES = "systemd,systemd-sysv,dbus,python3,python3-venv,bubblewrap,git,procps"
_CGROUPS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
_LIMIT_S = 60.0


class Machine:
    """A booted machine."""

    def __init__(self, root: Path, cgroup: Path) -> None:
        self.root = root
        self._cgroup = cgroup
        self._log = root.with_name("console.log").open("wb")
        # The sandbox limits user namespaces in /proc/sys, which only a container has read-only.
        settings = {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1", "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "1"}
        enter = f"echo $$ > {cgroup}/cgroup.procs; exec systemd-nspawn -q -D {root} --register=no --keep-unit"
        self._process = subprocess.Popen(
            ["sh", "-c", f"{enter} --console=pipe -b"],
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self._init = ""

    def boot(self) -> None:
        """Return when it is up."""
        until(lambda: bool(self._leader()), "the machine has no init")
        self._init = self._leader()
        until(lambda: self.run("systemctl", "is-system-running", check=False) in ("running", "degraded"), "no boot")

    def _leader(self) -> str:
        """The first process inside; the container's own helpers come before it."""
        pid = self._process.pid
        with suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                if Path(f"/proc/{child}/comm").read_text() == "systemd\n":
                    return child
        return ""

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command in it as root and return what it printed."""
        done = subprocess.run(
            ["nsenter", "-t", self._init, "-a", "--", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return (done.stdout + ("" if check else done.stderr)).strip()

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file of it."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", unit, "-p", name, "--value")

    def journal(self, unit: str, *options: str) -> str:
        """What a unit logged."""
        return self.run("journalctl", "-u", unit, "--no-pager", *options)

    def close(self) -> None:
        """Turn it off."""
        if self._init:
            self.run("systemctl", "poweroff", "--force", check=False)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        for group in sorted(self._cgroup.rglob("**"), reverse=True):  # those of its units first
            with suppress(OSError):
                group.rmdir()


def until(holds: Callable[[], bool], what: str) -> None:
    """Return when it holds."""
    give_up = time.monotonic() + _LIMIT_S
    while not holds():
        assert time.monotonic() < give_up, what
        time.sleep(0.05)


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One machine for all tests, or a skip that names what is missing."""
    unified = next((path for path in _CGROUPS if (path / "cgroup.procs").exists()), None)
    lacking = [name for name in ("mmdebstrap", "systemd-nspawn", "nsenter") if shutil.which(name) is None]
    lacking += [] if os.geteuid() == 0 else ["root"]
    lacking += [] if unified else ["a unified cgroup hierarchy"]
    lacking += [] if sys.version_info[:2] == (3, 11) else ["Python 3.11, which the machine has"]
    if lacking or unified is None:
        pytest.skip(f"no systemd of our own without {', '.join(lacking)} (apt install mmdebstrap systemd-container)")
    folder = tmp_path_factory.mktemp("machine")
    built = os.environ.get("NEXOFORK_OPS_ROOT")
    root = Path(built) if built else folder / "root"
    if not built:
        _call("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root))
    _call(sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(root / "wheels"), str(ROOT))
    cgroup = unified / f"nexofork-{secrets.token_hex(4)}"
    cgroup.mkdir()
    computer = Machine(root, cgroup)
    try:
        computer.boot()
        _install(computer)
        yield computer
    finally:
        computer.close()


def _install(computer: Machine) -> None:
    """What daemon/systemd/README.md says."""
    computer.run("python3", "-m", "venv", "/opt/nexofork")
    pip = ("/opt/nexofork/bin/pip", "install", "--quiet", "--no-index", "--find-links", "/wheels")
    computer.run(*pip, "--force-reinstall", "--no-deps", "nexofork")
    computer.run(*pip, "nexofork")
    for unit in UNITS.glob("*.service"):
        shutil.copy(unit, computer.root / "etc/systemd/system")
    for name in ("sysusers", "tmpfiles"):
        place = computer.root / f"usr/lib/{name}.d"
        place.mkdir(exist_ok=True)
        shutil.copy(UNITS / f"nexofork.{name}", place / "nexofork.conf")
    (computer.root / "etc/nexofork").mkdir(exist_ok=True)
    shutil.copy(UNITS / "nexoforkd.toml", computer.root / "etc/nexofork")
    computer.run("systemd-sysusers")
    computer.run("systemd-tmpfiles", "--create", "nexofork.conf")
    computer.run("systemctl", "daemon-reload")


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
