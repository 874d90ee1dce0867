"""Choose what commands run in, and make sure that it holds before any does.

That the program is installed says little: a container, a hardened unit or a kernel setting may keep it from working, or
from keeping things apart. So a command is run in the sandbox, and what it can see is checked.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from nexofork.errors import SandboxUnavailable
from nexofork.sandbox.bubblewrap import Bubblewrap
from nexofork.sandbox.mounts import Mount, View, kernel_files, parent_aliases, system_mounts, within
from nexofork.sandbox.run_folder import SharedFolders, daemon_folder
from nexofork.tools.limits import Limits, delegated
from nexofork.tools.place import Place
from nexofork.tools.process import Output, run_command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

__all__ = [
    "INSTALL",
    "NoSandbox",
    "Sandbox",
    "SandboxSettings",
    "check_sandbox",
    "find_bubblewrap",
    "open_sandbox",
    "shared_folders",
]

INSTALL = "Install bubblewrap (apt install bubblewrap), or run commands bare on this host with --sandbox none."
_PATH = "/usr/local/bin:/usr/bin:/bin"
_LIMIT_S = 20.0
_FIX = (
    "Allow user namespaces (sysctl kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns, "
    "user.max_user_namespaces; a container needs a seccomp profile that permits them), or run commands bare on this "
    "host with --sandbox none."
)
_REPLACE = (
    "Use another version of bubblewrap, run the daemon as a user without rights (User= in a systemd unit), or run "
    "commands bare on this host with --sandbox none."
)
_KINDS = ("user", "pid", "ipc", "uts", "mnt", "net")
_PROBE = r"""
for kind in user pid ipc uts mnt net; do echo "ns $kind $(readlink /proc/self/ns/$kind)"; done
echo "env $(compgen -e | tr '\n' ' ')"
for path in "$@"; do if [ -d "$path" ] || [ -s "$path" ]; then echo "seen $path"; fi; done
for path in /usr / /etc; do { echo x >"$path/nexofork-probe"; } 2>/dev/null && echo "wrote $path"; done
for path in /proc/sys/kernel/core_pattern /proc/sys/vm/swappiness; do
    { value=$(<"$path") && echo "$value" >"$path"; } 2>/dev/null && echo "wrote $path"
done
for path in /proc/sysrq-trigger /proc/irq/default_smp_affinity /proc/mtrr /proc/self/oom_score_adj; do
    { : >>"$path"; } 2>/dev/null && echo "wrote $path"
done
for path in "$PWD" /tmp; do echo kept >"$path/written" && echo "kept $path"; done
"""
_ENVIRONMENT = {"PATH", "LANG", "HOME", "PWD", "SHLVL", "OLDPWD", "_"}
_HOME_ENTRIES = 50


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


async def check_sandbox(sandbox: Bubblewrap) -> None:
    """Return if a command inside has everything of its own and sees nothing of the daemon's.

    Raises:
        SandboxUnavailable: It could not be run, or sees or changes what it must not, or cannot do its work.
    """
    async with sandbox.open(Place(), name="check") as place:
        assert place.sandbox is not None
        assert place.cwd is not None
        output = Output(64 * 1024)
        try:
            ended = await run_command(
                ("/bin/bash", "-c", _PROBE, "bash", *_to_be_hidden(sandbox, place)),
                output=output,
                limits=Limits(time_s=_LIMIT_S),
                sandbox=place.sandbox,
            )
        except OSError as exc:
            raise SandboxUnavailable(f"bubblewrap could not be started ({exc})", fix=_FIX) from exc
        said = output.text().strip()
        if ended.killed is not None or f"kept {place.cwd}" not in said:
            why = ended.killed or said.rpartition("\n")[2] or f"bubblewrap ended with {ended.code}"
            raise SandboxUnavailable(f"a command could not be run in it ({why})", fix=_FIX)
        if problem := _problem(sandbox, place.cwd, said.splitlines()):
            raise SandboxUnavailable(problem, fix=_REPLACE)


def _problem(sandbox: Bubblewrap, cwd: Path, said: list[str]) -> str | None:
    apart = [kind for kind in _KINDS if not (kind == "net" and sandbox.network)]
    for kind in apart:
        if f"ns {kind} {os.readlink(f'/proc/self/ns/{kind}')}" in said:
            return f"a command in it shares the host's {kind} namespace"
    for line in said:
        if line.startswith("env ") and (more := set(line.split()[1:]) - _ENVIRONMENT):
            return f"a command in it sees {', '.join(sorted(more))} in its environment"
        if line.startswith("seen "):
            return f"a command in it can see {line.removeprefix('seen ')}"
        if line.startswith("wrote "):
            return f"a command in it can write to {line.removeprefix('wrote ')}"
    try:
        (cwd / "written").unlink()
    except OSError as exc:
        return f"what a command wrote cannot be removed ({exc.strerror})"
    return None


def _to_be_hidden(sandbox: Bubblewrap, place: Place) -> list[str]:
    """Things of the daemon's that are really there: its own files, its credentials, and some of its home."""
    assert place.sandbox is not None
    shown = [mount.inside for mount in place.sandbox.view.mounts]
    paths = [str(sandbox.folder / "lock"), str(sandbox.folder / "etc")]
    for hidden in sandbox.hidden:
        if os.path.isdir(hidden):
            paths += [entry.path for entry in os.scandir(hidden)][:_HOME_ENTRIES]
        else:
            paths.append(hidden)
    return [path for path in paths if not any(within(path, one) or within(one, path) for one in shown if one != "/")]
