"""The operator guide, followed from its first command to its last: it ends in a fleet that has run a fork."""

from __future__ import annotations

import json
import re
import secrets
from typing import TYPE_CHECKING

import pytest

from tests.support.conversation import KEY
from tests.support.guides import Reader, commands
from tests.support.parents import Parent
from tests.support.sandboxes import needs_bubblewrap

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork.simulator import Simulator

pytestmark = [pytest.mark.ops, pytest.mark.timeout(300)]


def on_loopback(folder: Path) -> dict[str, str]:
    """The guide's hosts as loopback addresses that nobody else has, its system folders in a folder of ours."""
    near = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250) + 1}"
    hosts = {f"10.0.0.{number}": f"{near}.{number}" for number in (1, 2, 3)}
    folders = {path: str(folder / path.strip("/").replace("/", "-")) for path in ("/etc/nats", "/var/lib/nats")}
    return {**hosts, **folders, "/var/lib/nexofork": str(folder / "state"), "-c auth/": "-c hosts/"}


def copy_configurations(made: Path, copies: Path) -> None:
    """Copy them, as to their hosts; the monitoring port, which one machine has once, is left to chance."""
    copies.mkdir(exist_ok=True)
    for configuration in made.glob("nats-server-*.conf"):
        text = re.sub(r"^http: \S+", "http: 127.0.0.1:-1", configuration.read_text(), flags=re.MULTILINE)
        (copies / configuration.name).write_text(text)


@needs_bubblewrap
async def test_following_the_guide_gives_a_fleet_of_three_that_runs_a_fork(sim: Simulator, tmp_path: Path) -> None:
    """Every command succeeds as it stands; the fork completes on one of the daemons, and the check finds no hole."""
    async with Parent(sim.url) as agent:
        snapshot = await agent.ask()
    assert snapshot.reply is not None
    (tmp_path / "request.json").write_bytes(snapshot.body)
    (tmp_path / "reply.json").write_bytes(snapshot.reply.to_wire())
    (tmp_path / "etc-nats").mkdir()
    provider = {"ANTHROPIC_BASE_URL": sim.url, "ANTHROPIC_API_KEY": KEY}

    async with Reader(folder=tmp_path, replaced=on_loopback(tmp_path), environment=provider) as reader:
        for command in commands("operator-guide.md"):
            if command.startswith("nats-server"):
                copy_configurations(tmp_path / "auth", tmp_path / "hosts")
            await reader.follow(command)

    printed = reader.outputs
    [fork] = [out for command, out in printed.items() if command.startswith("nexofork fork")]
    result = json.loads(fork.splitlines()[-1])
    assert (result["status"], result["daemon"] in ("host-a", "host-b")) == ("completed", True)
    [table] = [out for command, out in printed.items() if re.match(r"nexofork ps --nkey", command)]
    assert "host-a" in table
    assert "host-b" in table
