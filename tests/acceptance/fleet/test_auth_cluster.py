"""The rendered cluster of three: a fork runs, every attack is refused, and the leader may die."""

from __future__ import annotations

import json
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from nexofork import ForkStatus
from nexofork.auth.book import ROLES, Node, Server, Tls
from nexofork.auth.check import Outcome, check_server
from nexofork.auth.folder import create, seed_file
from nexofork.bus.connection import BusSettings, open_bus
from nexofork.bus.jetstream import call
from nexofork.bus.provisioning import provision
from tests.support.certificates import make_authority, make_certificate
from tests.support.conversation import says
from tests.support.fleet import open_fleet
from tests.support.nats import SMALL, ServerProcess, free_port
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork.simulator import Simulator
    from tests.support.fleet import Nursery

pytestmark = [pytest.mark.ops, pytest.mark.timeout(300)]
DONE = "Scope: all\nResult: done"


def _meta(server: ServerProcess) -> dict[str, object]:
    with urllib.request.urlopen(f"{server.monitor_url}/jsz", timeout=2) as response:
        found: dict[str, object] = json.load(response).get("meta_cluster") or {}
    return found


async def test_a_cluster_of_three_runs_forks_and_refuses_attacks(
    sim: Simulator, nursery: Nursery, tmp_path: Path
) -> None:
    """Routes are guarded by certificates; clients on loopback speak plainly; streams have three replicas."""
    ca = make_authority(tmp_path)
    pair = make_certificate(tmp_path, ca, not_after="20990101000000Z")
    nodes = tuple(
        Node(name=f"n{number}", host="127.0.0.1", port=free_port(), route_port=free_port()) for number in (1, 2, 3)
    )
    made = tmp_path / "auth"
    store, tls = str(tmp_path / "store"), Tls(cert=str(pair.cert), key=str(pair.key), ca=str(ca.cert))
    create(made, Server(monitor_port=-1, store=store, cluster=nodes, replicas=3, sync_always=True, tls=tls))
    for node in nodes:  # fleets of the tests know no authority
        path = made / f"nats-server-{node.name}.conf"
        path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.startswith("tls ")))
    seeds = {role: seed_file(made, "default", role, "default") for role in ROLES}

    with ExitStack() as stack:
        servers = {}
        for node in nodes:
            text = f'include "../auth/nats-server-{node.name}.conf"'
            servers[node.name] = ServerProcess(text, folder=tmp_path / node.name)
            stack.callback(servers[node.name].kill)
            servers[node.name].spawn()
        for server in servers.values():
            await eventually(server.ready)
        await eventually(lambda: all(_meta(one).get("leader") for one in servers.values()), deadline_s=60)
        urls = tuple(server.url for server in servers.values())
        async with open_bus(BusSettings(urls=urls, nkey_seed=seeds["admin"])) as admin:
            await provision(admin, replicas=3, max_bytes=SMALL)
            info = await call(admin, "STREAM.INFO.FORK")
        assert info["config"]["num_replicas"] == 3

        outcomes: list[Outcome] = []
        left = await check_server(BusSettings(urls=urls), {"default": seeds}, pools=("fork",), tell=outcomes.append)
        assert [outcome for outcome in outcomes if not outcome.refused] == []
        assert left == []

        async with open_fleet(
            urls, sim=sim, nursery=nursery, folder=tmp_path, pool="fork", seeds={role: seeds[role] for role in ROLES}
        ) as fleet:
            await fleet.daemon()
            async with fleet.connect() as forks:
                first = await (await forks.fork(await fleet.params(says("ash", DONE)))).result()
                servers[str(info["cluster"]["leader"])].kill()
                second = await (await forks.fork(await fleet.params(says("beech", DONE)))).result()
    assert (first.status, second.status) == (ForkStatus.COMPLETED, ForkStatus.COMPLETED)
