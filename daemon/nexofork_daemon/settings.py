"""What an operator sets: when the daemon starts, and again on SIGHUP while it runs.

A reload takes what can change at once and names what needs a restart. Wrong settings change nothing.
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nexofork.config.secrets import PROVIDER_VARIABLES
from nexofork.errors import BadSettings, ForkRefused, SettingProblem
from nexofork.sandbox.sandbox import SandboxSettings
from nexofork.tools.limits import Limits, half_of_memory
from nexofork.wire.subjects import DEFAULT_POOL, check_token
from nexofork.workspace.settings import default_state_dir
from nexofork_daemon.logs import set_level
from nexofork_daemon.state_folder import DiskLimits
from nexofork_daemon.systemd import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexofork.config.settings import Setting, Settings
    from nexofork_daemon.systemd import Watch

__all__ = [
    "DaemonSettings",
    "LiveSettings",
    "Reloader",
    "daemon_settings",
    "forget_provider_key",
    "hide_environment",
    "logs_to_journal",
    "supervisor",
]

log = logging.getLogger(__name__)

_MB = 1024 * 1024
_PR_SET_DUMPABLE = 4
_ENVIRONMENT_FIELDS = (47, 48)
"""Where ``/proc/self/stat`` says where the environment begins and ends, counted after the program's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """One daemon's settings."""

    name: str = field(default_factory=socket.gethostname)
    slots: int = 64
    """How many forks run at once."""
    pool: str = DEFAULT_POOL
    lease_s: float = 15.0
    """How long a run may go unrenewed before another daemon takes it."""
    sets_lease: bool = False
    """Whether somebody said so; else a pool that is there keeps its own."""
    drain_s: float = 60.0
    """How long running forks get to finish at shutdown before they are handed over."""
    epoch_limit: int = 5
    """How many daemons a run may have; one that keeps killing them ends as failed."""
    leader_wait_s: float = 30.0
    """The longest a fork waits for the sibling that writes their common prefix."""
    ask_s: float = 30.0
    """How long to wait for something only the parent can give."""
    tool_deadline_s: float = 300.0
    """How long to wait for a tool that the parent runs; a request may shorten it."""
    shared_dirs: tuple[str, ...] = ()
    """Folders that are the same ones here and at the parents: memory folders and `path` workspaces are used here."""
    state_dir: Path = field(default_factory=default_state_dir)
    """Where runs get folders of their own."""
    sandbox: str = "auto"
    """What commands run in: ``auto`` and ``bwrap`` want bubblewrap, ``none`` is bare."""
    sandbox_network: bool = False
    """Whether commands may use the host's network."""
    sandbox_read: tuple[Path, ...] = ()
    """Folders that commands may read beside the system's."""
    memory_mb: int = field(default_factory=lambda: half_of_memory() // _MB)
    """What a command may use, all its processes together."""
    disk_mb: int = 4096
    """What a run may write to its folders in the sandbox."""
    secrets: tuple[Path, ...] = ()
    """Files that no command may see in the sandbox, wherever they are."""
    disk: DiskLimits = field(default_factory=DiskLimits)
    """What git workspaces may take of the disk."""
    health_port: int | None = None
    """Where /metrics, /healthz and /readyz are answered; 0 takes a free port, None answers nowhere."""
    health_host: str = "127.0.0.1"
    """The address it listens on; ``*`` is all of them."""
    host: str = field(default_factory=socket.gethostname)
    instance: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def __post_init__(self) -> None:
        problems = []
        if self.slots < 1:
            problems.append(f"slots is {self.slots}; give at least 1")
        if self.lease_s < 0.5:
            problems.append(f"lease_s is {self.lease_s:g}; give at least 0.5")
        if not self.leader_wait_s >= 0:
            problems.append(f"leader_wait_s is {self.leader_wait_s:g}; give 0 or more")
        if self.drain_s < 0:
            problems.append(f"drain_s is {self.drain_s:g}; give 0 or more")
        if not self.tool_deadline_s > 0:
            problems.append(f"tool_deadline_s is {self.tool_deadline_s:g}; give more than 0")
        problems += [
            f"shared_dirs has {folder!r}, which is no absolute path of a folder here"
            for folder in self.shared_dirs
            if not os.path.isabs(folder) or not os.path.isdir(folder)
        ]
        if self.memory_mb < 16:
            problems.append(f"memory_mb is {self.memory_mb}; give at least 16")
        if self.disk_mb < 1:
            problems.append(f"disk_mb is {self.disk_mb}; give at least 1")
        if min(self.disk.workspace_bytes, self.disk.total_bytes, self.disk.bases_bytes) < 1 or self.disk.free_bytes < 0:
            problems.append("a disk limit is below 1; give megabytes above 0")
        if self.health_port is not None and not 0 <= self.health_port <= 65535:
            problems.append(f"health_port is {self.health_port}; give a port from 1 to 65535, or 0 for a free one")
        if problems:
            raise ForkRefused("The daemon's settings are wrong: " + "; ".join(problems) + ".")
        check_token(self.pool, "pool")

    @property
    def sandboxing(self) -> SandboxSettings:
        """What commands run in."""
        return SandboxSettings(
            kind=self.sandbox,
            state_dir=self.state_dir,
            network=self.sandbox_network,
            read=self.sandbox_read,
            shared=tuple(map(Path, self.shared_dirs)),
            secrets=self.secrets,
            limits=Limits(resident_bytes=self.memory_mb * _MB),
            disk_bytes=self.disk_mb * _MB,
        )


def daemon_settings(settings: Settings) -> DaemonSettings:
    """Return a daemon's settings from what was read.

    Every file that was named is a secret to the commands that forks run, the settings file too: it says where the
    others are.

    Raises:
        BadSettings: Commands would run bare as root, and the operator has not allowed that.
    """
    if settings["sandbox.kind"] == "none" and os.geteuid() == 0 and not settings["daemon.allow_root"]:
        raise BadSettings([_bare_root(settings.by_path["sandbox.kind"])])
    files = ("nats.creds_file", "nats.nkey_file", "provider.api_key_file", "tools.mcp_config")
    named = (*(settings[path] for path in files), settings.file)
    return DaemonSettings(
        name=settings["daemon.name"],
        slots=settings["daemon.slots"],
        pool=settings["nats.pool"],
        lease_s=settings["daemon.lease_s"],
        sets_lease=settings.given("daemon.lease_s"),
        drain_s=settings["daemon.drain_s"],
        leader_wait_s=settings["daemon.leader_wait_s"],
        tool_deadline_s=settings["tools.deadline_s"],
        shared_dirs=tuple(map(str, settings["tools.shared_dirs"])),
        state_dir=settings["daemon.state_dir"],
        sandbox=settings["sandbox.kind"],
        sandbox_network=settings["sandbox.network"],
        sandbox_read=settings["sandbox.read"],
        memory_mb=settings["sandbox.memory_mb"],
        disk_mb=settings["sandbox.disk_mb"],
        disk=DiskLimits(
            workspace_bytes=settings["workspace.one_mb"] * _MB,
            total_bytes=settings["workspace.all_mb"] * _MB,
            free_bytes=settings["workspace.disk_floor_mb"] * _MB,
        ),
        health_port=settings["telemetry.health_port"],
        health_host=settings["telemetry.health_host"],
        secrets=tuple(path for path in named if path is not None and path.is_file()),
    )


def _bare_root(kind: Setting) -> SettingProblem:
    return SettingProblem(
        where=f"{kind.source}: {kind.key.path}" if kind.level == "file" else kind.source,
        said="is none and this daemon is root's, so every command of a fork would run as root on this host",
        fix="Run the daemon as another user (User= in a systemd unit), use bubblewrap instead of --sandbox none, or "
        "allow it with --allow-root.",
    )


def hide_environment() -> None:
    """Take what this process was started with out of ``/proc``, where every process of the same user could read it.

    The kernel shows the memory in which the environment was handed over. The values are copied from there, so that this
    process still has them, and the memory is overwritten. Without rights, processes of the same user can then read
    neither this one's memory nor its descriptors either, and it leaves no core.
    """
    for name, value in os.environ.items():
        os.putenv(name, value)
    fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
    start, end = (int(fields[number]) for number in _ENVIRONMENT_FIELDS)
    if 0 < start < end:
        ctypes.memset(start, 0, end - start)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def forget_provider_key() -> None:
    """Drop the provider's key from what programs that this process starts inherit."""
    for name in PROVIDER_VARIABLES:
        os.environ.pop(name, None)


def supervisor() -> Supervisor:
    """Return how systemd wants to be told; nobody is told where it did not start us."""
    limit, whose = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    ours = limit.isdigit() and int(limit) > 0 and whose in ("", str(os.getpid()))
    return Supervisor(address=os.environ.get("NOTIFY_SOCKET", ""), watchdog_s=int(limit) / 1e6 if ours else None)


def logs_to_journal() -> bool:
    """Whether stderr goes to the journal, as systemd says by the file behind it."""
    try:
        behind = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{behind.st_dev}:{behind.st_ino}"


@dataclass(slots=True, kw_only=True)
class LiveSettings:
    """The settings in force; fewer slots end no run, they only keep new ones away."""

    slots: int
    drain_s: float
    _changed: list[Callable[[], None]] = field(default_factory=list)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back whenever a setting was changed."""
        self._changed.append(callback)

    def turn(self, *, slots: int, drain_s: float) -> None:
        """Change the settings."""
        self.slots, self.drain_s = slots, drain_s
        for callback in self._changed:
            callback()


class Reloader:
    """Holds the settings in force. Settings that are wrong change nothing at all."""

    def __init__(self, settings: Settings, *, read: Callable[[], Settings], live: LiveSettings, watch: Watch) -> None:
        """Start with the settings the daemon started with.

        Args:
            settings: Those.
            read: Reads them again, with the flags of the start.
            live: What takes new values.
            watch: Told that a reload begins and ends.
        """
        self._started = settings
        self._in_force = settings
        self._read = read
        self._live = live
        self._watch = watch

    def reload(self) -> None:
        """Take new settings."""
        self._watch.reloading()
        try:
            self._take(self._read())
        except BadSettings as exc:
            log.error("the settings stay as they were: %s", exc)
        finally:
            self._watch.ready()

    def _take(self, settings: Settings) -> None:
        for warning in settings.warnings:
            log.warning("%s", warning)
        changed = [
            setting.key for setting in settings if setting.value != self._in_force.by_path[setting.key.path].value
        ]
        taken = [f"{key.path} = {settings[key.path]}" for key in changed if key.reloads]
        # Against what the daemon started with: it may have been said at an earlier reload, and still waits.
        waiting = [
            setting.key.path
            for setting in settings
            if not setting.key.reloads and setting.value != self._started.by_path[setting.key.path].value
        ]
        self._in_force = settings
        set_level(settings["daemon.log_level"])
        self._live.turn(slots=settings["daemon.slots"], drain_s=settings["daemon.drain_s"])
        log.warning("settings were read again; changed now: %s", ", ".join(taken) or "nothing")
        if waiting:
            log.warning("these take a restart: %s", ", ".join(waiting))
