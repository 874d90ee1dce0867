"""No secret leaves the daemon: not by logs, arguments, NATS, or what a fork's commands can see."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkStatus
from nexofork.bus.credentials import new_seed
from nexofork.bus.embedded import EmbeddedServer
from nexofork.bus.jetstream import call as api
from tests.support.conversation import AGENT, KEY, call, says
from tests.support.fleet import open_fleet
from tests.support.parents import results_in
from tests.support.sandboxes import needs_bubblewrap

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nexofork.bus.connection import Bus, Msg
    from nexofork.simulator import Simulator
    from tests.support.fleet import Fleet, Nursery

TOOLS: list[dict[str, Any]] = [AGENT, {"name": "Bash", "input_schema": {"type": "object"}}]
LOOK = "env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'; ls -la / /tmp /run; cat {key} {seed} {config}; false"


@pytest.fixture
async def own_fleet(sim: Simulator, nursery: Nursery, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet on a server that nobody else has stored anything on: all of it is read."""
    with EmbeddedServer(store_dir=tmp_path / "nats") as server:
        async with open_fleet((server.url,), sim=sim, nursery=nursery, folder=tmp_path) as opened:
            yield opened


@needs_bubblewrap
async def test_marked_secrets_are_nowhere_to_be_found(own_fleet: Fleet) -> None:
    """Key, seed and settings in files of the daemon's; two forks, one of which fails, with everything logged."""
    fleet = own_fleet
    seed_text = new_seed()[0]
    key, seed, config = (fleet.folder / name for name in ("key", "seed", "d.toml"))
    for file, text in ((key, KEY), (seed, seed_text)):
        file.write_text(text)
        file.chmod(0o600)
    config.write_text(
        f'[daemon]\nname = "marked"\nlog_level = "debug"\nstate_dir = "{fleet.folder}/state"\n'
        f'[nats]\nurl = "{fleet.url}"\npool = "{fleet.pool}"\nnkey_file = "seed"\n'
        f'[provider]\napi_key_file = "key"\nbase_url = "{fleet.sim.url}"\n'
    )
    fleet.captured = await fleet.agent.ask(tools=TOOLS)
    heard: list[bytes] = []
    await fleet.bus.subscribe(">", lambda message: heard.append(whole(message)))
    with (fleet.folder / "daemon.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "nexofork_daemon", "--config", str(config)),
            env={name: value for name, value in os.environ.items() if not name.startswith("NEXOFORK")},
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    look = LOOK.format(key=key, seed=seed, config=config)
    async with fleet.connect() as forks:
        works = says("Look.", {"tools": [call("Bash", command=look)]}, {"text": "Done."})
        breaks = says("Break.", {"fault": 400})
        results = [await (await forks.fork(await fleet.params(text))).result() for text in (works, breaks)]
        arguments = command_lines()
        environment = environment_of(process.pid)
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0

    assert [result.status for result in results] == [ForkStatus.COMPLETED, ForkStatus.FAILED], results[1].error
    places = {
        "the daemon's log": (fleet.folder / "daemon.log").read_bytes(),
        "arguments of processes": arguments,
        "the daemon's environment": environment,
        "what NATS carried": b"\n".join(heard),
        "what NATS stores": await stored(fleet.bus),
        "what a command saw": json.dumps(results_in(fleet.sim, 2)).encode(),
        "results": repr(results).encode(),
    }
    assert b"PATH=" in places["what a command saw"]
    assert b"DEBUG" in places["the daemon's log"]
    assert results[0].run_id.encode() in places["what NATS stores"]
    assert results[0].run_id.encode() in places["what NATS carried"]
    found = [
        (what, secret[:8])
        for what, content in places.items()
        for secret in (KEY, seed_text)
        if any(form in content for form in forms(secret))
    ]
    assert found == []


def forms(secret: str) -> list[bytes]:
    """A secret as it is, and in Base64 at any offset."""
    raw = secret.encode()
    encoded = [base64.b64encode(b" " * pad + raw)[4 if pad else 0 : -4] for pad in range(3)]
    return [raw, *encoded]


def whole(message: Msg) -> bytes:
    """Everything of a message."""
    return message.subject.encode() + json.dumps(dict(message.headers)).encode() + message.data


def command_lines() -> bytes:
    """The arguments of every process of this host."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(file.read_bytes())
        except OSError:
            continue
    return b"\n".join(found)


def environment_of(pid: int) -> bytes:
    """What a process was started with, as far as this user may see it."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        return b""


async def stored(bus: Bus) -> bytes:
    """The content of every stream."""
    content = []
    for name in (await api(bus, "STREAM.NAMES"))["streams"]:
        state = (await api(bus, f"STREAM.INFO.{name}"))["state"]
        seq = state["first_seq"]
        while state["messages"] and seq <= state["last_seq"]:
            # The next one there is, from this place on: many were overwritten.
            message = (await api(bus, f"STREAM.MSG.GET.{name}", {"seq": seq, "next_by_subj": ">"}))["message"]
            content.append(message["subject"].encode() + base64.b64decode(message.get("data", "")))
            content.append(base64.b64decode(message.get("hdrs", "")))
            seq = message["seq"] + 1
    return b"\n".join(content)
