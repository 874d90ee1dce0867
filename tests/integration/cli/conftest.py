"""One NATS server, one simulated provider and one daemon for all tests of the command line, each of them real."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nexofork.bus.embedded import EmbeddedServer
from nexofork.cli import run_command
from nexofork.simulator import simulator_thread
from tests.support.conversation import KEY, request
from tests.support.fleet import restartable
from tests.support.nats import accounts_server
from tests.support.terminals import at_terminal
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from nexofork.simulator import ThreadedSimulator
    from tests.support.terminals import Terminal
    from tests.support.witness import Witness

__all__ = ["World", "accounts_server", "restartable"]

_NEXOFORK = Path(sys.executable).with_name("nexofork")
_FOREIGN = ("ANTHROPIC_", "NATS_", "NEXOFORK_PRICES", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")


@dataclass(frozen=True, kw_only=True)
class World:
    """What a command finds outside of itself."""

    nats: str
    sim: ThreadedSimulator
    folder: Path
    pool: str = "fork"
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def request(self) -> Path:
        """The parent's request, byte for byte."""
        return self.folder / "REQUEST.json"

    @property
    def reply(self) -> Path:
        """The response it got."""
        return self.folder / "REPLY.json"

    def run(self, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        given = {"capture_output": True, "text": True, "timeout": PATIENCE_S, "env": self.environment, **options}
        return subprocess.run([str(_NEXOFORK), *map(str, arguments)], **given)

    def ask(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command in this process: the same, without the time a process takes to start."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        words = [*map(str, arguments), *([] if "--nats" in arguments else ["--nats", self.nats])]
        with redirect_stdout(out), redirect_stderr(err):
            code = run_command(arguments=words)
        said = [stream.buffer.getvalue().decode() for stream in (out, err)]
        return subprocess.CompletedProcess(words, code, *said)

    def until_logged(self, run_id: str, event: str) -> None:
        """Return when a run's log has such an entry."""
        give_up = time.monotonic() + PATIENCE_S
        while event not in [one["event"] for one in objects(self.ask("logs", run_id, "--json", *self.at).stdout)]:
            assert time.monotonic() < give_up, f"{run_id} has no {event}"

    @property
    def at(self) -> list[str]:
        """The arguments that name the pool."""
        return ["--pool", self.pool]

    @contextmanager
    def start(self, *arguments: str | Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
        """Start a command; it is gone at the end of the block."""
        given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": self.environment, **options}
        with subprocess.Popen([str(_NEXOFORK), *map(str, arguments)], **given) as process:
            try:
                yield process
            finally:
                process.kill()

    def at_terminal(self, *arguments: str | Path, **options: Any) -> AbstractContextManager[Terminal]:
        """Start a command at a terminal; it is gone at the end of the block."""
        environment = {**self.environment, "TERM": "xterm", **options.pop("environment", {})}
        return at_terminal([str(_NEXOFORK), *map(str, arguments)], environment, **options)

    def forking(self, *directives: str) -> list[str]:
        """The arguments that fork the parent's conversation."""
        files = ["fork", "--request", str(self.request), "--reply", str(self.reply), "--pool", self.pool]
        return [*files, *(word for directive in directives for word in ("-d", directive))]

    def detached(self, *directives: str, **more: str) -> list[str]:
        """Fork and leave; returns the run ids."""
        options = [word for key, value in more.items() for word in (f"--{key.replace('_', '-')}", value)]
        done = self.ask(*self.forking(*directives), *options, "--detach", "--json")
        assert done.returncode == 0, done.stderr
        return [run["run_id"] for run in objects(done.stdout)]

    @contextmanager
    def daemon(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A daemon of this world's pool that can take work."""
        bare = () if "--sandbox" in arguments else ("--sandbox", "none", "--allow-root")
        with self.start("daemon", "--pool", self.pool, *bare, *arguments, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process


def objects(text: str) -> list[dict[str, Any]]:
    """The JSON objects of NDJSON."""
    return [json.loads(line) for line in text.splitlines()]


def until(process: subprocess.Popen[str], *events: str) -> list[dict[str, Any]]:
    """What a command printed, up to and with the last of these events; each is awaited once, in any order."""
    assert process.stdout is not None
    found, left = [], list(events)
    for line in process.stdout:
        found.append(json.loads(line))
        if found[-1]["event"] in left:
            left.remove(found[-1]["event"])
        if not left:
            return found
    raise AssertionError(f"it ended without {left}: {found}, {process.stderr.read() if process.stderr else ''}")


@pytest.fixture(scope="session")
def _shared_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("cli")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer(store_dir=folder / "nats"))
        sim = stack.enter_context(simulator_thread())
        environment = {**clean, "NATS_URL": server.url, "ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": sim.url}
        world = World(nats=server.url, sim=sim, folder=folder, environment=environment)
        _parent_turn(world)
        daemon = stack.enter_context(world.daemon("--name", "d1"))
        yield world
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(PATIENCE_S) == 0


@pytest.fixture
def world(_shared_world: World, witness: Witness) -> World:
    """The shared world; what its forks send is judged after the test."""
    sim = _shared_world.sim
    witness.watch(lambda: [body for record in sim.log if (body := sim.body(record.index)) is not None])
    return _shared_world


@pytest.fixture
def own_pool(world: World) -> World:
    """The same world with a pool that nobody has made yet."""
    pool = f"p{uuid.uuid4().hex[:8]}"
    return World(nats=world.nats, sim=world.sim, folder=world.folder, pool=pool, environment=world.environment)


@pytest.fixture
def empty_pool(own_pool: World) -> World:
    """The same world with a pool that has no daemon and no run yet."""
    made = own_pool.ask("provision", *own_pool.at)
    assert made.returncode == 0, made.stderr
    return own_pool


def _parent_turn(world: World) -> None:
    body = json.dumps(request(), separators=(",", ":")).encode()
    world.request.write_bytes(body)
    head = {"x-api-key": KEY, "anthropic-version": "2026-10-21", "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{world.sim.url}/v1/messages", data=body, headers=head)) as got:
        world.reply.write_bytes(got.read())
