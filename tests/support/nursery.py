"""A process that has everything imported and forks daemons and parents in milliseconds: real processes, real pids.

Run as ``python -m tests.support.nursery``. It reads one JSON object per line and forks a process for each; what they
say, and how they end, comes back as JSON lines. All of them die with it.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import sys
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nexofork import AnthropicProvider, CacheSafeParams, ForkParams, ForkStatus, FunctionTools, Reply
from nexofork.bus.connection import BusSettings, open_bus
from nexofork.client.fleet import FleetSettings, connect
from nexofork.sandbox.sandbox import open_sandbox, shared_folders
from nexofork.telemetry.sdk import open_telemetry
from nexofork.telemetry.settings import read_settings
from nexofork.tools.builtin import BuiltinTools
from nexofork.tools.dispatch import ToolOutcome
from nexofork.tools.mcp_config import read_mcp_config
from nexofork.tools.tool_names import BUILTIN_TOOLS
from nexofork_daemon.health import Health, open_health
from nexofork_daemon.run_environment import Environments, open_tool_sources
from nexofork_daemon.service import run_daemon
from nexofork_daemon.settings import DaemonSettings
from nexofork_daemon.state_folder import DiskLimits, StateFolder
from nexofork_daemon.workspaces import Workspaces
from tests.support.parents import QUICK

if TYPE_CHECKING:
    from nexofork.bus.connection import Bus
    from nexofork.tools.dispatch import ToolCall
    from nexofork.tools.place import Place

_PR_SET_PDEATHSIG = 1
_LINUX_CAPABILITY_VERSION_3 = 0x20080522
_DAC_CAPABILITIES = 0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_POLL_S = 0.01


class HeldTools(BuiltinTools):
    """The built-in tools, a read-only ``Look`` beside them, and a door in front of each call that names one."""

    names = (*BUILTIN_TOOLS, "Look")

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        if words := os.environ.get("NEXOFORK_TEST_DEFECT"):
            raise ValueError(words)  # a defect that no code expects

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Wait for the file named by ``behind``, if any, then run the call."""
        if behind := call.input.get("behind"):
            await _exists(Path(behind))
        if call.name != "Look":
            return await super().dispatch(call)
        _note(Path(call.input["tally"]))
        await _exists(Path(call.input["until"]))
        return ToolOutcome(content="nothing new")

    def read_only(self, call: ToolCall) -> bool:
        """Looking changes nothing that counts."""
        return call.name == "Look" or super().read_only(call)


def _note(tally: Path) -> None:
    with tally.open("a") as file:
        file.write("looked\n")


async def _exists(path: Path) -> None:
    there = path.exists
    while not there():  # noqa: ASYNC110 - a file has no event
        await asyncio.sleep(_POLL_S)


def say(**fact: Any) -> None:
    """Tell whoever reads the nursery; one write, so that lines of several processes do not mix."""
    os.write(1, json.dumps(fact | {"pid": os.getpid()}).encode() + b"\n")


async def be_daemon(spec: dict[str, Any]) -> None:
    """Serve as a daemon until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    if spec.get("obeys_modes"):
        _obey_modes()
    seed = Path(spec["nkey_seed"]) if spec.get("nkey_seed") else None
    bus_settings = BusSettings(urls=tuple(spec["urls"]), nkey_seed=seed)
    settings = _settings(spec["settings"], seed)
    sys.path[:0] = spec.get("path", [])
    servers = read_mcp_config(Path(spec["mcp_config"])) if spec.get("mcp_config") else []
    async with (
        open_health(settings, stop) as health,
        open_tool_sources(settings, servers) as tool_sources,
        open_sandbox(settings.sandboxing) as sandbox,
        open_bus(bus_settings) as bus,
        AnthropicProvider.from_env(base_url=spec["base_url"], api_key=spec["key"], retry=QUICK) as llm,
    ):
        workspaces = Workspaces(StateFolder(settings.state_dir, settings.disk), shared_folders(settings.sandboxing))
        await run_daemon(
            settings,
            bus=bus,
            provider=llm,
            environments=Environments(HeldTools, tool_sources, sandbox=sandbox, workspaces=workspaces),
            stop=stop,
            ready=lambda: _ready(health, bus),
        )


def _obey_modes() -> None:
    """Give up what lets root read and write whatever a file's mode says."""
    libc, data = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint32 * 6)()
    header = (ctypes.c_uint32 * 2)(_LINUX_CAPABILITY_VERSION_3, 0)
    assert libc.capget(header, data) == 0, os.strerror(ctypes.get_errno())
    for index in (0, 1):  # effective and permitted, capabilities below 32
        data[index] &= ~_DAC_CAPABILITIES
    assert libc.capset(header, data) == 0, os.strerror(ctypes.get_errno())


def _ready(health: Health, bus: Bus) -> None:
    health.watch(bus)
    say(said="ready", health=health.port)


def _settings(given: dict[str, Any], seed: Path | None) -> DaemonSettings:
    """A daemon's settings; its commands run bare unless they are told otherwise."""
    if "state_dir" in given:
        given = {**given, "state_dir": Path(given["state_dir"])}
    if "disk" in given:
        given = {**given, "disk": DiskLimits(**given["disk"])}
    given = {"sandbox": "none", "sets_lease": "lease_s" in given, **given}
    return DaemonSettings(**given, secrets=() if seed is None else (seed,))


async def be_parent(spec: dict[str, Any]) -> None:
    """Fork as told, say the run ids, and leave at SIGTERM or when all are done."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    snapshot = _snapshot(Path(spec["body"]), Path(spec["reply"]))
    with open_telemetry(read_settings(), service="parent"):
        await _fork_all(spec, snapshot, stop)


async def _fork_all(spec: dict[str, Any], snapshot: CacheSafeParams, stop: asyncio.Event) -> None:
    async with connect(",".join(spec["urls"]), settings=FleetSettings(**spec["settings"])) as forks:
        params = ForkParams(cache_safe=snapshot, prompt_messages="x")
        if spec.get("bubbled"):
            tool = _echo if spec.get("echo") else _never
            params = replace(params, tool_dispatcher=FunctionTools(dict.fromkeys(spec["bubbled"], tool)))
        handles = await forks.fork_each(params, spec["directives"])
        if spec.get("detach"):
            for handle in handles:
                handle.detach()
        say(said="forked", run_ids=[handle.run_id for handle in handles])
        while not stop.is_set() and any(handle.status is ForkStatus.RUNNING for handle in handles):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)


async def _echo(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments)


async def _never(arguments: dict[str, Any]) -> str:
    say(said="called", arguments=arguments)
    await asyncio.Event().wait()
    return "never"


def _snapshot(body: Path, reply: Path) -> CacheSafeParams:
    return CacheSafeParams.from_parent_request(body.read_bytes(), reply=Reply.from_response(reply.read_bytes()))


_ROLES = {"daemon": be_daemon, "parent": be_parent}


def _child(spec: dict[str, Any]) -> None:
    """Become what the order says; never returns."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
        os.environ.update(spec.get("env", {}))
        asyncio.run(_ROLES[spec["role"]](spec))
        code = 0
    except BaseException:  # noqa: BLE001 - nothing may return into the nursery's loop
        traceback.print_exc()
    finally:
        os._exit(code)


def _reap(*_: object) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            say(ended=ended[0], code=os.waitstatus_to_exitcode(ended[1]))


def main() -> None:
    """Fork on order until the orders end."""
    signal.signal(signal.SIGCHLD, _reap)
    say(said="open")
    for line in sys.stdin:
        spec = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _child(spec)
        say(forked=pid, order=spec["order"])


if __name__ == "__main__":
    main()
