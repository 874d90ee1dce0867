"""What the chart tells a container to run is what the real programs understand."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nexofork.bus.provisioning import provision
from tests.ops.chart import CHART, ROOT, Rendered, render
from tests.support.certificates import make_authority, make_certificate
from tests.support.conversation import KEY
from tests.support.nats import SMALL, ServerProcess, connected, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nexofork.bus.embedded import EmbeddedServer
    from nexofork.simulator import ThreadedSimulator
    from tests.support.nats import AccountsServer

pytestmark = pytest.mark.ops

_SECRETS = "/run/secrets/nexofork"
_PRICES = "/etc/nexofork/prices.toml"


_AS_ROOT = {"NEXOFORK_DAEMON_ALLOW_ROOT": "true"}
"""The pods' user is not root; the one who runs these tests may be."""


class Machine:
    """Runs a container's commands without the container: the same programs, arguments and environment."""

    def __init__(self, folder: Path, *, secrets: Path | None = None) -> None:
        self.folder = folder
        self._secrets = secrets
        # In the image these are in one folder on PATH; here they are in two.
        self._path = f"{Path(sys.executable).parent}:{ROOT / 'deploy'}:{os.environ['PATH']}"

    def words(self, words: Sequence[str]) -> list[str]:
        """The words, with the places of mounted files put where they are here."""
        return [word.replace(_SECRETS, str(self._secrets)) if self._secrets else word for word in words]

    def environment(self, container: dict[str, Any]) -> dict[str, str]:
        """What the container would find, and the secret's key."""
        given = {one["name"]: one["value"] for one in container.get("env", []) if "value" in one}
        given = {name: value.replace(_PRICES, str(self.folder / "prices.toml")) for name, value in given.items()}
        named = {one["name"]: KEY for one in container.get("env", []) if "valueFrom" in one}
        return {"PATH": self._path, **_AS_ROOT, **given, **named}

    def run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a probe or a test to its end."""
        return subprocess.run(
            self.words(words), env={"PATH": self._path}, capture_output=True, text=True, timeout=30, check=False
        )

    @contextmanager
    def daemon(self, container: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
        """The container's daemon, from when it is ready."""
        words = self.words(["nexoforkd", *container["args"]])
        environment = self.environment(container)
        log = self.folder / "log"
        with (
            log.open("w") as errors,
            subprocess.Popen(
                words, env=environment, cwd=self.folder, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process,
        ):
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n", log.read_text()
                yield process
            finally:
                process.kill()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def probed(container: dict[str, Any]) -> dict[str, int | None]:
    """What each of the container's probes is answered; None where nobody answers."""
    (port,) = (one["containerPort"] for one in container["ports"] if one["name"] == "health")
    found: dict[str, int | None] = {}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        url = f"http://127.0.0.1:{port}{container[name]['httpGet']['path']}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                found[name] = answer.status
        except OSError:
            found[name] = None
    return found


def put(place: Path, file: Path) -> None:
    """Copy a file to where a secret is mounted."""
    place.parent.mkdir(parents=True)
    place.write_bytes(file.read_bytes())


def helm_test_of(release: Rendered, pool: str = "fork") -> list[str]:
    """What `helm test` runs."""
    (container,) = release.one("Pod", f"r-nexofork-{pool}-test")["spec"]["containers"]
    return [*container["command"], *container["args"]]


def test_a_pod_starts_is_probed_tested_and_drained(
    nats_server: EmbeddedServer, threaded_sim: ThreadedSimulator, tmp_path: Path
) -> None:
    """The daemon takes the chart's options; the probes pass once it is there; SIGTERM ends it well."""
    urls = f"nats.url={nats_server.url},provider.baseUrl={threaded_sim.url}"
    release = render("--set", f"{urls},pools.opsa.slots=3,health.port={free_port()}")
    container = release.daemon("r-nexofork-opsa")
    machine = Machine(tmp_path)

    assert machine.run(helm_test_of(release, "opsa")).returncode != 0
    assert probed(container) == {"startupProbe": None, "readinessProbe": None, "livenessProbe": None}
    with machine.daemon(container) as daemon:
        assert probed(container) == {"startupProbe": 200, "readinessProbe": 200, "livenessProbe": 200}
        tested = machine.run(helm_test_of(release, "opsa"))
        assert tested.returncode == 0, tested.stderr
        assert "0/3" in tested.stdout
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(20) == 0
    gone = machine.run(helm_test_of(release, "opsa"))
    assert (gone.returncode, gone.stderr) == (1, "No daemon of pool opsa takes work.\n")


def test_a_pool_that_may_be_empty_is_tested_without_daemons(nats_server: EmbeddedServer, tmp_path: Path) -> None:
    """Where the values ask for no pod, `helm test` asks for NATS and the streams alone."""
    keda = "pools.opse.autoscaling.keda"
    idle = render("--set", f"nats.url={nats_server.url},{keda}.enabled=true,{keda}.minReplicas=0")
    none = render("--set", f"nats.url={nats_server.url},pools.opse.replicas=0")
    asyncio.run(_provisioned(nats_server.url, "opse"))

    for release in (idle, none):
        tested = Machine(tmp_path).run(helm_test_of(release, "opse"))
        assert (tested.returncode, "No daemons." in tested.stdout) == (0, True), tested.stderr


async def _provisioned(url: str, pool: str) -> None:
    async with connected(url) as bus:
        await provision(bus, pool=pool, max_bytes=SMALL)


def test_a_pod_with_credentials_and_prices_starts(
    accounts_server: AccountsServer, threaded_sim: ThreadedSimulator, tmp_path: Path
) -> None:
    """The daemon's own role is enough for the daemon, its test and, without the endpoint, the probe by NATS."""
    (tmp_path / "prices.toml").write_bytes((ROOT / "nexofork" / "economics" / "prices.toml").read_bytes())
    urls = f"nats.url={accounts_server.url},provider.baseUrl={threaded_sim.url}"
    release = render(
        *("--set", f"{urls},nats.existingSecret=nexofork-nats,health.enabled=false"),
        *("--set-file", f"prices={tmp_path}/prices.toml"),
    )
    put(tmp_path / "secrets" / "nats" / "daemon.nk", accounts_server.seeds["daemon"])
    machine = Machine(tmp_path, secrets=tmp_path / "secrets")

    shipped = release.one("ConfigMap", "r-nexofork")["data"]["prices.toml"]
    assert shipped.strip() == (tmp_path / "prices.toml").read_text().strip()
    with machine.daemon(release.daemon()):
        probed = machine.run(release.daemon()["startupProbe"]["exec"]["command"])
        assert probed.returncode == 0, probed.stderr
        assert machine.run(helm_test_of(release)).returncode == 0


def test_a_pod_knows_the_private_authority_of_its_servers(threaded_sim: ThreadedSimulator, tmp_path: Path) -> None:
    """The daemon, its probe and `helm test` all trust the certificate, and none of them does without the value."""
    ca = make_authority(tmp_path)
    pair = make_certificate(tmp_path, ca, not_after="20990101000000Z")
    put(tmp_path / "secrets" / "nats-ca" / "ca.crt", ca.cert)
    machine = Machine(tmp_path, secrets=tmp_path / "secrets")
    jetstream = f'listen: "127.0.0.1:-1"\njetstream {{ store_dir: "{tmp_path}/store", domain: fork }}'
    tls = f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}" }}'
    with running(ServerProcess(f"{jetstream}\n{tls}", folder=tmp_path / "server")) as server:
        urls = f"nats.url={server.url},provider.baseUrl={threaded_sim.url},health.enabled=false"
        release, ignorant = render("--set", f"{urls},nats.caSecret=nats-ca"), render("--set", urls)
        with machine.daemon(release.daemon()):
            for one, code in ((release, 0), (ignorant, 3)):
                probed = machine.run(one.daemon()["startupProbe"]["exec"]["command"])
                tested = machine.run(helm_test_of(one))
                assert (probed.returncode == 0, tested.returncode) == (code == 0, code), tested.stderr


@pytest.mark.parametrize("pool", ["fork", "opsb"])
async def test_the_autoscaler_finds_what_it_counts(nats_server: EmbeddedServer, pool: str) -> None:
    """Account, stream and consumer of the trigger are those that the server's monitoring shows, with a lag."""
    enabled = f"pools.{pool}.autoscaling.keda.enabled=true"
    (scaled,) = render("--set", enabled).every("ScaledObject")
    wanted = scaled["spec"]["triggers"][0]["metadata"]
    async with connected(nats_server.url) as bus:
        await provision(bus, pool=pool, max_bytes=SMALL)

    question = f"{nats_server.monitor_url}/jsz?acc={wanted['account']}&consumers=true&config=true"
    (account,) = (await asyncio.to_thread(_fetched, question))["account_details"]
    (stream,) = [one for one in account["stream_detail"] if one["name"] == wanted["stream"]]
    (consumer,) = [one for one in stream["consumer_detail"] if one["name"] == wanted["consumer"]]

    assert account["name"] == wanted["account"]
    assert {"num_pending", "num_ack_pending"} <= set(consumer)


def test_the_example_prices_are_prices(tmp_path: Path) -> None:
    """A daemon with the example's price file gets past it, and one with a broken file is told which."""
    release = render("--values", CHART / "ci" / "hostusers-values.yaml")
    file, creds = tmp_path / "prices.toml", tmp_path / "empty.creds"
    creds.touch(mode=0o600)

    def said(prices: str) -> str:
        file.write_text(prices)
        environment = Machine(tmp_path).environment(release.daemon())
        words = [str(Path(sys.executable).with_name("nexoforkd")), f"--creds={creds}"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=30, check=False)
        return done.stderr

    assert "prices.toml" not in said(release.one("ConfigMap", "r-nexofork")["data"]["prices.toml"])
    assert "prices.toml" in said("[[price]]")


@pytest.mark.parametrize("case", ["extras", "pools", "tls"])
def test_the_examples_use_options_that_exist(case: str) -> None:
    """Every daemon of the examples gets past its command line."""
    release = render("--values", CHART / "ci" / f"{case}-values.yaml")
    nexoforkd = Path(sys.executable).with_name("nexoforkd")

    for one in release.every("Deployment"):
        args = [word for word in one["spec"]["template"]["spec"]["containers"][0]["args"] if _SECRETS not in word]
        done = subprocess.run([nexoforkd, *args], env=_AS_ROOT, capture_output=True, text=True, timeout=30, check=False)
        assert "There is no key for the provider" in done.stderr, done.stderr


def _fetched(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
    return found
