"""The commands that stay: daemon, serve; and the admin's provision."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import time
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from nexofork.bus.connection import BusSettings, open_bus
from nexofork.bus.jetstream import call as call_api
from nexofork.wire.streams import CONSUMER, log_stream
from tests.integration.cli.conftest import objects
from tests.support.conversation import call, says
from tests.support.nats import SMALL, connected
from tests.support.sandboxes import needs_bubblewrap
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli.conftest import World

SLEEPS = says("Sleep.", {"tools": [call(command="sleep 600")]})


def until_draining(world: World) -> None:
    """Return when the pool's daemon has said so: a second signal that came sooner could be one with the first."""
    give_up = time.monotonic() + PATIENCE_S
    while not any(one["draining"] for one in objects(world.ask("ps", "--json", *world.at).stdout)[0]["daemons"]):
        assert time.monotonic() < give_up, "it does not drain"


def test_a_daemon_finishes_what_it_runs(own_pool: World) -> None:
    """Told to stop, it takes nothing new, lets the child end, and leaves with 0."""
    gate = uuid.uuid4().hex
    with own_pool.daemon("--name", "d2", "--slots", "2") as daemon:
        (run_id,) = own_pool.detached(
            says("Wait.", {"text": "Result: done", "hold": {"gate": gate, "after_events": 1}})
        )
        own_pool.until_logged(run_id, "claimed")
        daemon.send_signal(signal.SIGTERM)
        until_draining(own_pool)
        with pytest.raises(subprocess.TimeoutExpired):
            daemon.wait(0.5)
        own_pool.sim.release(gate)
        assert daemon.wait(PATIENCE_S) == 0

    (result,) = objects(own_pool.ask("wait", run_id, "--json", *own_pool.at).stdout)
    assert (result["status"], result["daemon"], result["attempts"]) == ("completed", "d2", 1)


def test_a_second_signal_does_not_wait(own_pool: World) -> None:
    """The run is not lost: the next daemon has it."""
    with own_pool.daemon("--name", "d2", "--drain-s", "600", "--lease-s", "600") as daemon:
        (run_id,) = own_pool.detached(SLEEPS)
        own_pool.until_logged(run_id, "tool_started")
        daemon.send_signal(signal.SIGINT)
        until_draining(own_pool)
        daemon.send_signal(signal.SIGINT)
        daemon.wait(PATIENCE_S)

    with own_pool.daemon("--name", "d3", "--lease-s", "600"):
        (result,) = objects(own_pool.ask("wait", run_id, "--json", *own_pool.at).stdout)
    assert (result["status"], result["daemon"], result["attempts"]) == ("completed", "d3", 2)


def test_a_second_signal_to_an_idle_daemon_is_no_failure(own_pool: World) -> None:
    """Nothing was lost, so it ends with 0; signals come until it has ended, so also in its very last moments."""
    with own_pool.daemon("--name", "d2") as daemon:
        while daemon.poll() is None:
            daemon.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(0.002)

    assert daemon.returncode == 0


@pytest.mark.parametrize("sandbox", ["none", pytest.param("bwrap", marks=needs_bubblewrap)])
def test_a_killed_daemon_leaves_nothing_to_the_next(own_pool: World, tmp_path: Path, sandbox: str) -> None:
    """The homes and folders of its commands are removed when it starts again, and none is in ``/tmp``."""
    temporary, state = tmp_path / "tmp", tmp_path / "state"
    temporary.mkdir()
    world = replace(own_pool, environment={**own_pool.environment, "TMPDIR": str(temporary)})
    options = ("--state-dir", str(state), "--sandbox", sandbox, "--allow-root", "--lease-s", "2")
    left = says("Leave.", {"tools": [call(command="touch ~/left; mkdir ~/folder")]}, {"text": "Result: done"})
    with world.daemon("--name", "d2", *options) as daemon:
        (run_id,) = world.detached(left)
        world.ask("wait", run_id, *world.at)
        (run_id,) = world.detached(says("Sleep.", {"tools": [call(command="touch ~/left; sleep 600")]}))
        world.until_logged(run_id, "tool_started")
        daemon.kill()
        daemon.wait(PATIENCE_S)
    killed = list((state / "sandbox").iterdir())
    with world.daemon("--name", "d2", *options) as daemon:
        assert len(killed) == 1
        assert not killed[0].exists()
        world.ask("abort", run_id, *world.at)
        world.ask("wait", run_id, *world.at)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(PATIENCE_S) == 0

    assert list(temporary.iterdir()) == list((state / "sandbox").iterdir()) == list((state / "runs").iterdir()) == []


def test_serve_has_everything_a_fleet_needs(world: World, tmp_path: Path) -> None:
    """It says where it is, what it promises, and that runs are kept from one time to the next."""
    for known in (0, 1):
        with world.start("serve", "--port", "0", "--store", tmp_path / "store") as process:
            assert process.stdout is not None
            ready, url = process.stdout.readline().split()
            assert (ready, url.startswith("nats://127.0.0.1:")) == ("ready", True)
            assert len(objects(world.ask("ps", "--json", "--nats", url).stdout)[0]["runs"]) == known
            world.ask(*world.forking("Look."), "--nats", url, "--detach")
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert str(tmp_path / "store") in errors
        assert len(errors.splitlines()) == 1


def test_an_interrupted_demo_leaves_nothing(world: World, tmp_path: Path) -> None:
    """Its server, its daemons and their folders go with it."""
    with world.start("demo", env={**world.environment, "TMPDIR": str(tmp_path)}) as process:
        assert process.stdout is not None
        assert "are ready" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, "Traceback" in errors) == (130, False)
    assert list(tmp_path.iterdir()) == []


def test_serve_on_a_taken_port_says_so(world: World) -> None:
    """It ends instead of serving nobody."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = world.run("serve", "--port", str(taken.getsockname()[1]))

    assert done.returncode == 3
    assert "address already in use" in done.stderr


def test_serve_with_a_store_that_cannot_be_written_says_so(world: World) -> None:
    """One line about the folder, and the exit code of bad input."""
    done = world.run("serve", "--port", "0", "--store", world.request / "store")

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"{world.request}/store cannot be written" in done.stderr


def test_provision_says_what_is_in_force(own_pool: World) -> None:
    """A given lease is set, and stays when none is given."""
    at = ["--pool", own_pool.pool, "--json"]
    (first,) = objects(own_pool.ask("provision", "--lease-s", "3", *at).stdout)
    (second,) = objects(own_pool.ask("provision", *at).stdout)

    assert (first["pool"], first["lease_s"]) == (own_pool.pool, 3.0)
    assert first == second
    assert f"{first['streams'][0]}/pickup" == first["consumer"]


async def test_provision_sets_the_room_there_is(own_pool: World) -> None:
    """What is given is in force, and stays when nothing is given."""
    for given in (["--max-bytes", str(2 << 20)], []):
        done = await asyncio.to_thread(own_pool.run, "provision", "--pool", own_pool.pool, *given)
        assert done.returncode == 0, done.stderr
        async with open_bus(BusSettings(urls=(own_pool.nats,))) as bus:
            info = await call_api(bus, f"STREAM.INFO.{log_stream(own_pool.pool)}", None)
        assert info["config"]["max_bytes"] == 2 << 20


async def test_the_first_daemon_keeps_the_lease_that_an_admin_gave_the_pool(own_pool: World) -> None:
    """Its own default is no wish; one that was given is, and the pool's consumer gets it."""
    assert own_pool.run("provision", *own_pool.at, "--lease-s", "60", "--max-bytes", str(SMALL)).returncode == 0

    with own_pool.daemon():
        assert await lease_of(own_pool) == 60.0
    for given in (("--lease-s", "7"), ("--lease-s", "15")):
        alone = replace(own_pool, pool=f"{own_pool.pool}x{given[1]}")
        assert alone.run("provision", *alone.at, "--lease-s", "60", "--max-bytes", str(SMALL)).returncode == 0
        with alone.daemon(*given):
            assert await lease_of(alone) == float(given[1])


async def lease_of(world: World) -> float:
    """How long a request of the pool may stay unrenewed."""
    async with connected(world.nats) as bus:
        info = await call_api(bus, f"CONSUMER.INFO.{log_stream(world.pool)}.{CONSUMER}")
    return float(info["config"]["ack_wait"]) / 1e9
