"""The units in a real systemd: they start, tell, hang and are restarted, drain, and keep credentials to themselves."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkStatus
from nexofork.wire import messages as wire
from tests.ops.machine import machine
from tests.support.conversation import AGENT, KEY, call, says
from tests.support.fleet import fleet, nursery
from tests.support.nats import nats_server
from tests.support.parents import results_in
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.ops.machine import Machine
    from tests.support.fleet import Fleet

__all__ = ["fleet", "machine", "nats_server", "nursery"]

pytestmark = pytest.mark.ops
TOOLS: list[dict[str, Any]] = [AGENT, {"name": "Bash", "input_schema": {"type": "object"}}]
UNITS = Path(__file__).resolve().parents[2] / "daemon" / "systemd"


class Unit:
    """An instance of the template on the machine."""

    def __init__(self, machine: Machine, fleet: Fleet, name: str, *, more: str = "", **settings: Any) -> None:
        self.machine, self.name, self.unit = machine, name, f"nexoforkd@{name}.service"
        lines = {"slots": 4, "name": f'"{name}"', "lease_s": fleet.lease_s, "drain_s": 0, **settings}
        daemon = "\n".join(f"{key} = {value}" for key, value in lines.items())
        self.file = f"/etc/nexofork/{name}.toml"
        nats = f'[nats]\nurl = "{fleet.url}"\npool = "{fleet.pool}"'
        machine.write(self.file, f'[daemon]\n{daemon}\n{nats}\n[provider]\nbase_url = "{fleet.sim.url}"\n{more}')
        machine.write(f"/etc/credstore/nexofork.{name}.anthropic_api_key", KEY + "\n", mode=0o600)

    @property
    def pid(self) -> str:
        """Its main process, as the machine counts."""
        return self.machine.show(self.unit, "MainPID")

    async def start(self) -> None:
        """Start it; returns when it said that it is ready."""
        await asyncio.to_thread(self.machine.run, "systemctl", "start", self.unit)

    async def stop(self) -> None:
        """Stop it; returns when it is gone."""
        await asyncio.to_thread(self.machine.run, "systemctl", "stop", self.unit)


@pytest.fixture
def name(machine: Machine) -> Iterator[str]:
    """An instance that is gone after the test."""
    chosen = f"t{secrets.token_hex(3)}"
    yield chosen
    machine.run("systemctl", "kill", "-s", "SIGKILL", f"nexoforkd@{chosen}", check=False)
    machine.run("systemctl", "stop", f"nexoforkd@{chosen}", check=False)


def test_the_units_are_sound_and_closed(machine: Machine) -> None:
    """`verify` has nothing to say, and the exposure is at most 3.0."""
    for unit in ("nexoforkd.service", "nexoforkd@a.service"):
        assert machine.run("systemd-analyze", "verify", unit, check=False) == ""
    shown = machine.run("systemd-analyze", "security", "--offline=true", "--threshold=30", "nexoforkd.service")
    found = re.search(r"exposure level for nexoforkd.service: ([\d.]+)", shown)
    assert found is not None
    assert float(found[1]) <= 3.0


def test_both_units_say_the_same_but_for_the_instance() -> None:
    """Whoever changes one has to change the other."""
    plain = (UNITS / "nexoforkd.service").read_text()
    template = (UNITS / "nexoforkd@.service").read_text()
    same = template.replace(" %i:", ":").replace("/%i.toml", "/nexoforkd.toml").replace("nexofork/%i", "nexofork")
    assert same.replace("nexofork.%i.", "nexofork.") == plain


async def test_a_fork_runs_in_the_sandbox_of_the_hardened_unit(machine: Machine, fleet: Fleet, name: str) -> None:
    """Ready is told, the run finishes, its commands see no credential, and its log lines carry its id."""
    unit = Unit(machine, fleet, name)
    fleet.captured = await fleet.agent.ask(tools=TOOLS)
    await unit.start()
    assert machine.show(unit.unit, "StatusText") == "4 slots, 0 running"
    look = (
        f"id -u; cat /run/credentials/{unit.unit}/*; ls /run /etc/credstore; env; cat /proc/*/environ; cat {unit.file}"
    )
    async with fleet.connect() as forks:
        directive = says("Look.", {"tools": [call("Bash", command=look)]}, {"text": "Done."})
        result = await (await forks.fork(await fleet.params(directive))).result()

    assert (result.status, result.sandbox, result.daemon) == (ForkStatus.COMPLETED, "bwrap", name), result.error
    shown = json.dumps(results_in(fleet.sim, 2))
    assert KEY not in shown
    assert "credentials" not in shown.replace(f"/run/credentials/{unit.unit}", "")
    await eventually(lambda: "done with it" in machine.journal(unit.unit))  # said after the result
    logged = [json.loads(line) for line in machine.journal(unit.unit, "-o", "json").splitlines()]
    (line,) = [one for one in logged if one.get("RUN_ID") == result.run_id and "done with it" in one["MESSAGE"]]
    assert (line["HOST"], line["PRIORITY"], line["SYSLOG_IDENTIFIER"]) == (name, "6", "nexoforkd")
    assert line["PARENT"]
    assert KEY not in json.dumps(logged)


async def test_credentials_are_the_daemons_alone(machine: Machine, fleet: Fleet, name: str) -> None:
    """Another user can read neither the source nor what the unit got; neither is in its environment or arguments."""
    unit = Unit(machine, fleet, name)
    await unit.start()
    other = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    for path in (
        f"/run/credentials/{unit.unit}/anthropic_api_key",
        f"/etc/credstore/nexofork.{name}.anthropic_api_key",
    ):
        assert machine.run("cat", path) == KEY
        assert "Permission denied" in machine.run(*other, "cat", path, check=False)
    told = machine.run("sh", "-c", f"cat /proc/{unit.pid}/environ /proc/{unit.pid}/cmdline | tr '\\0' '\\n'")
    assert "--config" in told
    assert "CREDENTIALS_DIRECTORY=" not in told
    assert KEY not in told


async def test_a_command_is_held_to_its_memory(machine: Machine, fleet: Fleet, name: str) -> None:
    """By the kernel, in a control group of its own, where the host gives the unit one; else the daemon counts."""
    unit = Unit(machine, fleet, name, more="[sandbox]\nmemory_mb = 100\n")
    fleet.captured = await fleet.agent.ask(tools=TOOLS)
    await unit.start()
    fill = "import os; d = [os.memfd_create(str(n)) for n in range(400)]; [os.write(one, bytes(1 << 20)) for one in d]"
    command = f"/usr/bin/python3 -c \"{fill}; __import__('time').sleep(60)\""
    async with fleet.connect() as forks:
        directive = says("Fill.", {"tools": [call("Bash", command=command)]}, {"text": "Done."})
        result = await (await forks.fork(await fleet.params(directive))).result()

    assert result.status is ForkStatus.COMPLETED, result.error
    (answer,) = results_in(fleet.sim, 2)
    assert f"[killed: it used more than {100 * 1024 * 1024} bytes of memory]" in answer["content"]
    assert set(machine.show(unit.unit, "DelegateControllers").split()) >= {"memory", "pids"}
    group = machine.show(unit.unit, "ControlGroup")
    given = set(machine.run("cat", f"/sys/fs/cgroup{group}/cgroup.controllers").split()) >= {"memory", "pids"}
    where = machine.run("cat", f"/proc/{unit.pid}/cgroup").splitlines()[-1]
    assert where.endswith("/nexofork-daemon") == given
    assert machine.show(unit.unit, "ActiveState") == "active"


async def test_a_loop_that_hangs_is_restarted(machine: Machine, fleet: Fleet, name: str) -> None:
    """The watchdog ends a stopped process, and the daemon comes back ready."""
    unit = Unit(machine, fleet, name)
    drop_in = f"mkdir -p /run/systemd/system/{unit.unit}.d && printf '[Service]\\nWatchdogSec=2\\nRestartSec=0\\n'"
    machine.run("sh", "-c", f"{drop_in} > /run/systemd/system/{unit.unit}.d/soon.conf")
    machine.run("systemctl", "daemon-reload")
    await unit.start()
    hung = unit.pid
    await asyncio.sleep(5)  # more than twice the limit: a daemon that beats is left alone
    assert unit.pid == hung

    machine.run("kill", "-STOP", hung)

    await eventually(lambda: machine.show(unit.unit, "NRestarts") == "1", deadline_s=30)
    await eventually(lambda: machine.show(unit.unit, "ActiveState") == "active", deadline_s=30)
    assert unit.pid not in (hung, "0")
    assert "Watchdog timeout" in machine.journal(unit.unit)


async def test_a_stop_hands_a_run_over_to_another_daemon(machine: Machine, fleet: Fleet, name: str) -> None:
    """What is in flight when the unit is stopped goes on elsewhere, and the unit ends in good order."""
    unit = Unit(machine, fleet, name)
    await unit.start()
    async with fleet.connect() as forks:
        turn = {"text": "Scope: all\nResult: done", "hold": {"gate": "slow", "after_events": 3}}
        handle = await forks.fork(await fleet.params(says("apple", turn)))
        await fleet.sim.begun(2)
        assert machine.show(unit.unit, "StatusText") == "4 slots, 1 running"
        await fleet.daemon("heir")
        await unit.stop()
        fleet.sim.release("slow")
        result = await handle.result()

    assert (result.status, result.daemon) == (ForkStatus.COMPLETED, "heir")
    assert machine.show(unit.unit, "Result") == "success"
    claims = [report.daemon.name for report in await fleet.reports(handle.run_id) if isinstance(report, wire.Claimed)]
    assert claims == [name, "heir"]


async def test_a_drain_that_is_longer_than_the_units_limit_is_waited_for(
    machine: Machine, fleet: Fleet, name: str
) -> None:
    """The daemon asks for more time while it drains, so its run ends where it began."""
    unit = Unit(machine, fleet, name, drain_s=60)
    drop_in = f"mkdir -p /run/systemd/system/{unit.unit}.d && printf '[Service]\\nTimeoutStopSec=2\\n'"
    machine.run("sh", "-c", f"{drop_in} > /run/systemd/system/{unit.unit}.d/soon.conf")
    machine.run("systemctl", "daemon-reload")
    await unit.start()
    async with fleet.connect() as forks:
        turn = {"text": "Scope: all\nResult: done", "hold": {"gate": "slow", "after_events": 3}}
        handle = await forks.fork(await fleet.params(says("apple", turn)))
        await fleet.sim.begun(2)
        async with asyncio.TaskGroup() as stopping:
            stopping.create_task(unit.stop())
            await eventually(lambda: machine.show(unit.unit, "StatusText") == "draining, 1 running")
            await asyncio.sleep(6)  # three times the unit's own limit
            fleet.sim.release("slow")
        result = await handle.result()

    assert (result.status, result.daemon, result.attempts) == (ForkStatus.COMPLETED, name, 1)
    assert machine.show(unit.unit, "Result") == "success"


async def test_a_reload_takes_slots_and_names_what_takes_a_restart(machine: Machine, fleet: Fleet, name: str) -> None:
    """A file that is wrong changes nothing, and the unit stays up."""
    unit = Unit(machine, fleet, name)
    await unit.start()
    path = machine.root / unit.file.lstrip("/")
    text = path.read_text()

    path.write_text(text.replace("slots = 4", "slots = 9").replace(f"lease_s = {fleet.lease_s}", "lease_s = 2.0"))
    machine.run("systemctl", "reload", unit.unit)
    await eventually(lambda: machine.show(unit.unit, "StatusText") == "9 slots, 0 running")
    await fleet.until_present(lambda presence: presence.slots == 9)
    await eventually(lambda: "these take a restart: daemon.lease_s" in machine.journal(unit.unit))

    path.write_text(text.replace("slots = 4", 'slots = "many"'))
    machine.run("systemctl", "reload", unit.unit)
    await eventually(lambda: "the settings stay as they were" in machine.journal(unit.unit))
    assert machine.show(unit.unit, "StatusText") == "9 slots, 0 running"


async def test_a_wrong_setting_ends_the_unit_for_good(machine: Machine, fleet: Fleet, name: str) -> None:
    """It is not started again and again; the journal says what to do."""
    unit = Unit(machine, fleet, name, slots='"many"')
    machine.run("systemctl", "start", unit.unit, check=False)

    assert machine.show(unit.unit, "ActiveState") == "failed"
    assert machine.show(unit.unit, "NRestarts") == "0"
    assert f"{unit.file}: daemon.slots is 'many', which is text. Give a whole number" in machine.journal(unit.unit)
