"""The chart renders what Kubernetes accepts, for every example, on the oldest and the newest version it allows."""

from __future__ import annotations

import ipaddress
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

import nexofork
from tests.ops.chart import CASES, CHART, KUBERNETES, helm, render, tool

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.ops
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem.removesuffix("-values"))


@each_case
def test_helm_finds_nothing_to_complain_of(case: Path) -> None:
    """`helm lint --strict` passes with every example."""
    done = helm("lint", "--strict", CHART, "--values", case)

    assert done.returncode == 0, done.stdout


@each_case
def test_kubernetes_knows_every_field(case: Path, tmp_path: Path) -> None:
    """No field is misspelt, misplaced or of a wrong type, on the oldest and the newest version."""
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(helm("template", "r", CHART, "--values", case).stdout)

    for version in KUBERNETES:
        words = [tool("kubernetes-validate"), "--strict", "--no-warn", "-k", version, str(manifest)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=50, check=False)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        assert "deployment/" in said


def test_the_judge_finds_a_misspelt_field(tmp_path: Path) -> None:
    """The check above fails where a field is wrong."""
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(helm("template", "r", CHART).stdout.replace("startupProbe:", "startUpProbe:"))

    words = [tool("kubernetes-validate"), "--strict", "-k", KUBERNETES[0], str(manifest)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50, check=False)

    assert done.returncode != 0
    assert "startUpProbe" in done.stdout + done.stderr


def test_the_chart_is_the_version_it_installs(tmp_path: Path) -> None:
    """`helm package` works, and the image it names by default is this version of nexofork."""
    packed = helm("package", CHART, "--destination", tmp_path)
    facts = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert packed.returncode == 0, packed.stderr
    assert (tmp_path / f"nexofork-{facts['version']}.tgz").exists()
    assert facts["appVersion"] == nexofork.__version__
    assert facts["kubeVersion"] == f">={KUBERNETES[0]}.0-0"
    assert "dependencies" not in facts  # a missing subchart would break even those who do not use it


def test_a_cluster_that_is_too_old_is_refused() -> None:
    """A version before the oldest one is named, not half installed."""
    done = helm("template", "r", CHART, "--kube-version", "1.26.0")

    assert done.returncode != 0
    assert "requires kubeVersion: >=1.27" in done.stderr


@each_case
def test_every_pod_is_locked_down(case: Path) -> None:
    """Not root, nothing to write to but its volumes, no capabilities, no token of the cluster."""
    for pod in render("--values", case).pods():
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        ours = pod["containers"][0]
        assert ours["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert ours["resources"]["limits"]["memory"]


@each_case
def test_no_secret_is_ever_rendered(case: Path) -> None:
    """Secrets are named; what is in them is nobody's business but the pod's."""
    release = render("--values", case)

    assert release.every("Secret") == []
    keys = [env for pod in release.pods() for one in pod["containers"] for env in one.get("env", [])]
    assert all("value" not in env for env in keys if env["name"] == "ANTHROPIC_API_KEY")


def test_a_lease_is_given_only_where_somebody_set_it() -> None:
    """A pool that an admin provisioned with another lease keeps it."""
    assert not [word for word in render().daemon()["args"] if word.startswith("--lease-s")]
    assert "--lease-s=20" in render("--set", "leaseSeconds=20").daemon()["args"]


def test_a_pool_overrides_what_it_names_and_inherits_the_rest() -> None:
    """Maps are merged, lists replaced, and 0 and false count as given."""
    release = render("--values", CHART / "ci" / "pools-values.yaml")
    gpu = release.one("Deployment", "r-nexofork-gpu")
    pod = release.pod("r-nexofork-gpu")
    trusted = release.daemon("r-nexofork-trusted")

    assert [one["metadata"]["name"] for one in release.every("Deployment")] == [
        "r-nexofork-fork",
        "r-nexofork-gpu",
        "r-nexofork-trusted",
    ]
    assert gpu["spec"]["replicas"] == 0
    assert pod["containers"][0]["resources"]["limits"] == {"memory": "16Gi", "ephemeral-storage": "12Gi"}
    assert pod["terminationGracePeriodSeconds"] == 630
    assert [one["metadata"]["name"] for one in release.every("PodDisruptionBudget")] == [
        "r-nexofork-fork",
        "r-nexofork-trusted",
    ]
    assert "--pool=Trusted_Team" in trusted["args"]
    assert "--creds=/run/secrets/nexofork/nats/user.creds" in trusted["args"]
    assert "--nkey=/run/secrets/nexofork/nats/daemon.nk" in release.daemon()["args"]


def test_the_authority_of_the_servers_is_mounted_where_it_is_named() -> None:
    """Daemon and test of a pool are given the pool's own secret, beside the credentials and without them."""
    release = render("--values", CHART / "ci" / "tls-values.yaml")

    for pool, secret, key in (("fork", "nats-ca", "ca.crt"), ("open", "other-ca", "root.pem")):
        test = release.one("Pod", f"r-nexofork-{pool}-test")["spec"]
        for pod in (release.pod(f"r-nexofork-{pool}"), test):
            (volume,) = [one["secret"] for one in pod["volumes"] if one["name"] == "nats-ca"]
            (mount,) = [one["mountPath"] for one in pod["containers"][0]["volumeMounts"] if one["name"] == "nats-ca"]
            assert (volume["secretName"], volume["items"]) == (secret, [{"key": key, "path": key}])
            assert f"--nats-ca={mount}/{key}" in pod["containers"][0]["args"]


def test_pools_select_their_own_pods_only() -> None:
    """No two deployments or budgets of a release claim the same pods."""
    release = render("--values", CHART / "ci" / "pools-values.yaml")

    for kind in ("Deployment", "PodDisruptionBudget"):
        chosen = [tuple(sorted(one["spec"]["selector"]["matchLabels"].items())) for one in release.every(kind)]
        assert len(set(chosen)) == len(chosen) > 1
    for one in release.every("Deployment"):
        assert one["spec"]["selector"]["matchLabels"].items() <= one["spec"]["template"]["metadata"]["labels"].items()


def test_the_autoscaler_alone_owns_the_number_of_pods() -> None:
    """With KEDA there is no `replicas` to fight over; the trigger counts in slots and is text throughout."""
    release = render("--values", CHART / "ci" / "keda-values.yaml")
    (scaled,) = release.every("ScaledObject")
    (trigger,) = scaled["spec"]["triggers"]

    assert "replicas" not in release.one("Deployment", "r-nexofork-fork")["spec"]
    assert release.one("Deployment", "r-nexofork-steady")["spec"]["replicas"] == 3
    assert scaled["spec"]["scaleTargetRef"] == {"name": "r-nexofork-fork"}
    assert scaled["spec"]["minReplicaCount"] == 0
    assert trigger["metadata"] == {
        "natsServerMonitoringEndpoint": "nats-headless.nats.svc:8222",
        "account": "CORE_default",
        "stream": "FORK",
        "consumer": "pickup",
        "lagThreshold": "32",
        "activationLagThreshold": "1",
        "useHttps": "false",
    }


def test_changed_prices_restart_the_daemons() -> None:
    """The configuration's digest is part of the pod."""

    def digest(prices: str) -> str:
        release = render("--set", f"prices={prices}")
        template = release.one("Deployment", "r-nexofork-fork")["spec"]["template"]
        found: str = template["metadata"]["annotations"]["checksum/config"]
        return found

    assert digest("a") == digest("a")
    assert digest("a") != digest("b")


def test_the_network_is_closed_but_for_what_is_needed() -> None:
    """Out to NATS, names and the provider; in for the given scrapers alone; private addresses are not the provider."""
    release = render("--values", CHART / "ci" / "networkpolicy-values.yaml")
    (policy,) = release.every("NetworkPolicy")
    nats, dns, provider, extra = policy["spec"]["egress"]

    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert [port["port"] for port in nats["ports"]] == [4222]
    assert nats["to"][0]["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "nats"}}
    assert {port["port"] for port in dns["ports"]} == {53}
    assert [port["port"] for port in provider["ports"]] == [443]
    assert "10.0.0.0/8" in provider["to"][0]["ipBlock"]["except"]
    assert extra["to"] == [{"ipBlock": {"cidr": "10.20.0.0/16"}}]
    (scrapers,) = policy["spec"]["ingress"]
    assert [port["port"] for port in scrapers["ports"]] == [8080]

    closed = render("--set-json", "networkPolicy.metricsFrom=[]").every("NetworkPolicy")[0]
    assert closed["spec"]["ingress"] == []


def test_the_network_is_closed_unless_it_is_opened() -> None:
    """By default pods of the same namespace may scrape, and no private or metadata address is within reach of 443."""
    (policy,) = render().every("NetworkPolicy")
    nats, dns, provider = policy["spec"]["egress"]

    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {}}], "ports": [{"port": 8080, "protocol": "TCP"}]}]
    assert {port["port"] for rule in (nats, dns) for port in rule["ports"]} == {4222, 53}
    assert [port["port"] for port in provider["ports"]] == [443]
    blocks = [ipaddress.ip_network(one["ipBlock"]["cidr"]) for one in provider["to"]]
    closed = [ipaddress.ip_network(hole) for one in provider["to"] for hole in one["ipBlock"]["except"]]
    inside = ("10.1.2.3", "172.20.0.1", "192.168.1.1", "100.100.100.200", "169.254.169.254", "fd00:ec2::254")
    for address in map(ipaddress.ip_address, (*inside, "168.63.129.16", "192.0.0.192", "127.0.0.1", "::1")):
        assert any(address in network for network in closed)
    for address in map(ipaddress.ip_address, ("160.79.104.10", "2607:6bc0::10")):
        assert any(address in network for network in blocks)
        assert not any(address in network for network in closed)
    assert render("--set", "networkPolicy.enabled=false").every("NetworkPolicy") == []


def test_the_policy_opens_the_ports_that_nats_is_reached_on() -> None:
    """A pool whose NATS listens elsewhere reaches it without a further setting."""
    urls = "nats.url=tls://a:4443\\,tls://b:4444,pools.fork.slots=1,pools.gpu.nats.url=nats://c:5222/"
    (policy,) = render("--set", urls).every("NetworkPolicy")

    assert {port["port"] for port in policy["spec"]["egress"][0]["ports"]} == {4222, 4443, 4444, 5222}


def test_names_fit_a_host_name() -> None:
    """However long a release and a pool are called, their pods' names stay host names, so daemons keep apart."""
    longest = "p" * 15
    done = helm("template", "r" * 53, CHART, "--set", f"pools.{longest}.replicas=1")
    (deployment,) = [one for one in yaml.safe_load_all(done.stdout) if one and one["kind"] == "Deployment"]

    assert deployment["metadata"]["name"].endswith(f"-{longest}")
    assert len(deployment["metadata"]["name"]) + len("-0123456789-01234") <= 63


def test_the_notes_name_the_secrets_and_the_boundary(tmp_path: Path) -> None:
    """Whoever installs reads which secrets are needed, what the sandbox is, and where NATS asks nobody."""
    chart = shutil.copytree(CHART, tmp_path / "nexofork")
    notes = chart / "templates" / "NOTES.txt"  # printed by an installation alone, so it is shown as an object here
    shown = '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "notes"}, "text": %s}'
    (chart / "templates" / "_notes.tpl").write_text('{{- define "notes" -}}' + notes.read_text() + "{{- end -}}")
    (chart / "templates" / "notes.yaml").write_text(shown % '{{ include "notes" . | toJson }}')
    pools = "pools.fork.slots=3,pools.gpu.nats.existingSecret=gpu-nats,pools.gpu.provider.baseUrl=http://engine:8000"

    done = helm("template", "r", chart, "--set", pools, "--show-only", "templates/notes.yaml")
    text = yaml.safe_load(done.stdout)["text"]

    assert "pool fork: deployment/r-nexofork-fork, 3 forks per pod, 2 pods" in text
    assert "needs secret nexofork-provider with key api-key, and secret gpu-nats" in text
    assert "The pod is the boundary" in text
    assert "WARNING: pool fork has no nats.existingSecret" in text
    assert "WARNING: pool gpu" not in text
    assert "Closed:" in text
    assert "metadata address" in text
    assert "Pods call http://engine:8000" in text
