"""compose.yaml describes a fleet that works: its own commands, run as processes instead of containers."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import urllib.request
import zipfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from nexofork.bus.embedded import find_binary
from nexofork.bus.jetstream import call
from nexofork.wire.streams import stream_settings
from tests.ops.chart import ROOT
from tests.support.conversation import KEY, request
from tests.support.nats import connected
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.ops, pytest.mark.timeout(120)]

_BIN = Path(sys.executable).parent
_NODES = ("nats-1", "nats-2", "nats-3")


def services() -> dict[str, dict[str, Any]]:
    """The services by name."""
    found: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    return found


def test_compose_knows_every_field(tmp_path: Path) -> None:
    """The file fits the schema of the Compose specification, as one of its programs ships it."""
    jsonschema = pytest.importorskip("jsonschema")
    words = [str(_BIN / "pip"), "download", "--quiet", "--no-deps", "--dest", str(tmp_path), "docker-compose==1.29.2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    schema = json.loads(zipfile.ZipFile(wheel).read("compose/config/compose_spec.json"))
    # The top-level name and the merge keys are younger than this copy of the schema; the reader has merged the keys.
    file = yaml.safe_load((ROOT / "compose.yaml").read_text())
    assert file.pop("name") == "nexofork"

    judge = jsonschema.Draft7Validator(schema)
    judge.validate(file)
    with pytest.raises(jsonschema.ValidationError, match="imagee"):
        judge.validate({"services": {"a": {"imagee": "b"}}})


@pytest.mark.parametrize("node", _NODES)
def test_the_server_reads_its_configuration(node: str) -> None:
    """nats-server's own check passes with the environment that the service gives."""
    given = services()[node]["environment"]
    words = [str(find_binary()), "-t", "-c", str(ROOT / "deploy" / "nats.conf")]
    done = subprocess.run(words, env=given, capture_output=True, text=True, timeout=30, check=False)

    assert given == {"NODE": node}
    assert done.returncode == 0, done.stderr
    assert "is valid" in done.stderr + done.stdout


class Host:
    """This machine in the place of the containers: each service has an address of the loopback for its name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        net = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250) + 1}"
        names = [*_NODES, "simulator"]
        self.addresses = {name: f"{net}.{number}" for number, name in enumerate(names, start=1)}

    def here(self, text: str, service: str) -> str:
        """The text with names as addresses, and a service listening on its own alone."""
        text = text.replace("0.0.0.0", self.addresses.get(service, "127.0.0.1"))
        for name, address in self.addresses.items():
            text = text.replace(f"//{name}:", f"//{address}:")
        return text

    @contextmanager
    def process(self, words: list[str], environment: dict[str, str], name: str) -> Iterator[subprocess.Popen[str]]:
        """A process that is gone at the end of the block."""
        with (self.folder / f"{name}.log").open("w") as log:
            options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": log, "text": True}
            # The containers' user is not root; the one who runs these tests may be.
            known = {"PATH": os.environ["PATH"], "NEXOFORK_DAEMON_ALLOW_ROOT": "true"}
            with subprocess.Popen(words, env={**known, **environment}, **options) as process:
                try:
                    yield process
                finally:
                    process.kill()

    def nats(self, name: str) -> tuple[list[str], dict[str, str]]:
        """What a NATS container runs."""
        settings = self.here((ROOT / "deploy" / "nats.conf").read_text(), name)
        file = self.folder / f"{name}.conf"
        file.write_text(settings.replace("store_dir: /data", f'store_dir: "{self.folder / name}"'))
        return [str(find_binary()), "--config", str(file)], services()[name]["environment"]

    def healthy(self, name: str) -> bool:
        """Whether a NATS container's health check passes; daemons are started after that."""
        (url,) = [word for word in services()[name]["healthcheck"]["test"] if word.startswith("http")]
        try:
            with urllib.request.urlopen(url.replace("127.0.0.1", self.addresses[name]), timeout=3) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def ours(self, name: str, program: str) -> tuple[list[str], dict[str, str]]:
        """What one of our containers runs, with a key and the simulator's address passed on as the file says."""
        service = services()[name]
        passed = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": f"http://{self.addresses['simulator']}:8080"}
        lines = [line.partition("=") for line in service.get("environment", [])]
        environment = {key: self.here(value, name) if given else passed[key] for key, given, value in lines}
        return [str(_BIN / program), *(self.here(word, name) for word in service["command"])], environment


async def test_the_fleet_comes_up_and_forks(tmp_path: Path) -> None:
    """Three servers become a cluster, streams have three copies, two daemons are there, and a fork runs."""
    host = Host(tmp_path)
    with ExitStack() as stack:

        def start(words: list[str], environment: dict[str, str], name: str) -> subprocess.Popen[str]:
            return stack.enter_context(host.process(words, environment, name))

        for node in _NODES:
            start(*host.nats(node), node)
        simulator = start(*host.ours("simulator", "nexofork"), "simulator")
        assert simulator.stdout is not None
        assert (await asyncio.to_thread(simulator.stdout.readline)).startswith("ready")
        await eventually(lambda: all(host.healthy(node) for node in _NODES))
        words, environment = host.ours("daemon", "nexoforkd")
        for number in range(services()["daemon"]["deploy"]["replicas"]):
            daemon = start([*words, "--name", f"daemon-{number}"], environment, f"daemon-{number}")
            assert daemon.stdout is not None
            assert await asyncio.to_thread(daemon.stdout.readline) == "ready\n", _log(host, f"daemon-{number}")

        url = environment["NATS_URL"]
        async with connected(url.split(",")[0]) as bus:
            for settings in stream_settings():
                info = await call(bus, f"STREAM.INFO.{settings['name']}", None)
                assert info["config"]["num_replicas"] == 3
        (tmp_path / "request.json").write_bytes(json.dumps(request()).encode())
        fork = ["fork", "--request", str(tmp_path / "request.json"), "-d", "Look.", "--json", "--nats", url]
        seen = await asyncio.to_thread(_nexofork, "ps", "--json", "--nats", url)
        forked = await asyncio.to_thread(_nexofork, *fork)

    assert {one["name"] for one in seen["daemons"]} == {"daemon-0", "daemon-1"}
    assert forked["status"] == "completed"


def _log(host: Host, name: str) -> str:
    return (host.folder / f"{name}.log").read_text()


def _nexofork(*words: str) -> dict[str, Any]:
    done = subprocess.run([_BIN / "nexofork", *words], capture_output=True, text=True, timeout=40, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
