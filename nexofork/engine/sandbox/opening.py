"""Choose what commands run in, and make sure that it holds before any does."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from nexofork.engine.sandbox.bubblewrap import Bubblewrap
from nexofork.engine.sandbox.checking import check_sandbox
from nexofork.engine.sandbox.folders import SharedFolders, daemon_folder
from nexofork.engine.sandbox.system import kernel_files, system_mounts
from nexofork.engine.sandbox.view import Mount, View, parent_aliases, within
from nexofork.engine.tools.fence import delegated
from nexofork.engine.tools.watching import Limits
from nexofork.errors import SandboxUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    from nexofork.engine.tools.place import Place

__all__ = ["INSTALL", "NoSandbox", "Sandbox", "SandboxSettings", "find_bubblewrap", "open_sandbox", "shared_folders"]

INSTALL = "Install bubblewrap (apt install bubblewrap), or run commands bare on this host with --sandbox none."
_PATH = "/usr/local/bin:/usr/bin:/bin"


class Sandbox(Protocol):
    """What a daemon's commands run in."""

    @property
    def name(self) -> str:
        """What it is called in reports."""

    def mounts_at(self, paths: Sequence[str]) -> bool:
        """Whether a run can see its checkout at all these paths."""

    def shows(self, path: str) -> bool:
        """Whether commands of every run find something at an absolute path."""

    def open(self, place: Place, *, name: str) -> AbstractAsyncContextManager[Place]:
        """Give a run its place, and take it down at the end.

        Raises:
            ForkRefused: The run cannot work there.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """What an operator sets about it; a request cannot widen any of it."""

    kind: str = "auto"
    """``auto`` and ``bwrap`` want bubblewrap, ``none`` runs commands bare."""
    state_dir: Path
    """Where runs get folders of their own."""
    network: bool = False
    """Whether commands may use the host's network."""
    read: tuple[Path, ...] = ()
    """Folders that commands may read beside the system's."""
    shared: tuple[Path, ...] = ()
    """Folders that a request may name as its workspace, with all that is in them."""
    secrets: tuple[Path, ...] = ()
    """Files that no command may see, wherever they are."""
    limits: Limits = field(default_factory=Limits)
    disk_bytes: int = 4 * 1024**3
    """What a run may write to its folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSandbox:
    """Runs commands bare."""

    limits: Limits = field(default_factory=Limits)
    home: Path | None = None
    """The home of all commands; None is a temporary folder."""

    @property
    def name(self) -> str:
        """What it is called in reports."""
        return "none"

    def mounts_at(self, paths: Sequence[str]) -> bool:
        """Nothing can be mounted."""
        return False

    def shows(self, path: str) -> bool:
        """Commands see what the host has."""
        return os.path.lexists(path)

    @asynccontextmanager
    async def open(self, place: Place, *, name: str) -> AsyncIterator[Place]:
        """Close nothing off; the file tools find the checkout under the parent's paths of it."""
        checkout = place.checkout
        aliases = parent_aliases(checkout.known_as, checkout.root) if checkout else {}
        view = View([Mount(inside="/", outside="/", writable=True)], aliases) if aliases else None
        yield replace(place, limits=self.limits, view=view, home=self.home)


@asynccontextmanager
async def open_sandbox(settings: SandboxSettings) -> AsyncIterator[Sandbox]:
    """Give a daemon the sandbox it asks for, tried out; what it made on disk is gone at the end.

    Raises:
        SandboxUnavailable: It does not work on this host.
    """
    delegated()  # before any other program of ours runs in the same control group
    if settings.kind == "none":
        with _home(settings.state_dir) as home:
            yield NoSandbox(limits=settings.limits, home=home)
        return
    program = find_bubblewrap()
    _refuse_seen(settings.state_dir)
    hidden = _hidden(settings)
    read = _readable(settings, hidden)
    with daemon_folder(settings.state_dir) as folder:
        sandbox = Bubblewrap(
            program=program,
            folder=folder,
            network=settings.network,
            read=read,
            hidden=hidden,
            shared=tuple(map(os.path.realpath, settings.shared)),
            limits=settings.limits,
            disk_bytes=settings.disk_bytes,
            bind_fd=_knows(program, "--bind-fd"),
            disable_userns=_knows(program, "--disable-userns"),
        )
        sandbox.prepare()
        await check_sandbox(sandbox)
        yield sandbox


@contextmanager
def _home(state_dir: Path) -> Iterator[Path | None]:
    """Make a home for bare commands; None where the state directory cannot be written."""
    with ExitStack() as stack:
        try:
            home = stack.enter_context(daemon_folder(state_dir)) / "home"
        except SandboxUnavailable:
            yield None  # the daemon starts all the same, and refuses only forks that need the state directory
            return
        home.mkdir(mode=0o700)
        yield home


def shared_folders(settings: SandboxSettings) -> SharedFolders:
    """Return the folders that a request may name, for a daemon with these settings."""
    return SharedFolders(settings.shared, hidden=_hidden(settings), bare=settings.kind == "none")


def find_bubblewrap() -> str:
    """Return where the program is.

    Raises:
        SandboxUnavailable: It is not installed.
    """
    program = shutil.which("bwrap", path=_PATH)
    if program is None:
        raise SandboxUnavailable("bubblewrap is not installed", fix=INSTALL)
    return program


def _refuse_seen(state_dir: Path) -> None:
    """Refuse a state directory among the programs, where every run could read what the others do."""
    state = os.path.realpath(state_dir)
    for mount in system_mounts():
        if within(state, mount.outside):
            raise SandboxUnavailable(
                f"the state directory {state} is in {mount.outside}, which every command sees",
                fix="Give another one with --state-dir.",
            )


def _hidden(settings: SandboxSettings) -> tuple[str, ...]:
    """What no run may see. A home of ``/`` is nobody's."""
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        home = "/"
    paths = [os.path.realpath(path) for path in (home, str(settings.state_dir), *map(str, settings.secrets))]
    return tuple(dict.fromkeys(path for path in paths if path != "/"))


def _readable(settings: SandboxSettings, hidden: tuple[str, ...]) -> tuple[str, ...]:
    read = tuple(map(os.path.realpath, settings.read))
    for path in read:
        if not os.path.isdir(path):
            raise SandboxUnavailable(f"{path} is no folder", fix="Give folders that exist with --sandbox-read.")
        for secret in hidden:
            if within(secret, path):
                raise SandboxUnavailable(
                    f"{secret}, which no command may see, is in {path}",
                    fix="Give a narrower folder with --sandbox-read.",
                )
        if (kernels := kernel_files(path)) is not None:
            raise SandboxUnavailable(
                f"{kernels}, which holds files of the kernel, is in {path} or around it",
                fix="Give another folder with --sandbox-read.",
            )
    return read


def _knows(program: str, option: str) -> bool:
    shown = subprocess.run([program, "--help"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return option in shown.stdout
